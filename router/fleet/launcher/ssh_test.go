package launcher

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/router/fleet"
)

// sshStub stands in for ssh where the real one cannot be made to do a thing at
// will; tests/fleet has the real one. The connection that only tests the way
// succeeds, unless MODE is of the first kind.
const sshStub = `#!/bin/sh
for line; do :; done
printf '%s\n' "$#" >>"$RECORD"
case $MODE in
refuses) echo 'u@far: Permission denied (publickey).' >&2; exit 255;;
asks) echo 'Are you sure (yes/no)?' >&2; read -r answer && exit 1; echo "no answer" >&2; exit 255;;
chats) head -c 10000000 /dev/zero | tr '\0' 'x' >&2; echo ' the end' >&2; exit 255;;
esac
[ "$line" != true ] || exit 0
case $MODE in
runs) exec sh -c "$line";;
breaks) sh -c "$line"; exit 255;;
drops) exit 255;;
hangs) flock "$RECORD.held" sleep 1000; exit 0;;
holds) sh -c "$line"; status=$?; setsid sleep 1000 & echo $! >"$RECORD.holder"; exit $status;;
esac
`

// remote is a world whose host is behind the stub.
func remote(t *testing.T, mode, script string, limit time.Duration) *world {
	t.Helper()
	bin := t.TempDir()
	w := newWorld(t, script, Options{
		CommandLimit: limit,
		Env:          append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "MODE="+mode, "RECORD="+filepath.Join(bin, "record"), fleet.TokenVariable+"=secret"),
	})
	w.write(t, filepath.Join(bin, "ssh"), sshStub)
	return w
}

func (w *world) far(t *testing.T, fields map[string]any) fleet.Launch {
	t.Helper()
	all := map[string]any{"ssh": "u@far", "env": map[string]string{"TOKEN": "token-{device}"}}
	for k, v := range fields {
		all[k] = v
	}
	return w.launch(t, all)
}

// Hazard 3: with a working directory the server was never started over ssh, and
// ssh said that it was.
// Fleet behaviour 76
func TestWorkdirOverSSH(t *testing.T) {
	t.Parallel()
	w := remote(t, "runs", `printf '%s\n' "$@" "$PWD" "$TOKEN" "[$PYPTO_ROUTER_ADMIN_TOKEN]"; readlink /proc/$$/fd/0; cut -d' ' -f5,6 /proc/$$/stat; echo $$ >&2`+"\n"+serving, 0)
	work := filepath.Join(w.dir, "work it's here")
	require.NoError(t, os.Mkdir(work, 0o700))
	l := w.far(t, map[string]any{"workdir": work, "log_dir": filepath.Join(w.dir, "a b;touch pwned"), "serve_args": []string{"--x", `{"k":7, "s":"a b"}`}})
	w.start(t, l)
	text := w.await(t, l, "up")
	pid, start, instance := pidOf(t, l)
	assert.Equal(t, "i1", instance)
	assert.Equal(t, startTime(pid), start)
	head, rest, _ := strings.Cut(text, "\n")
	assert.Regexp(t, `^=== \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ launch i1: `+w.server+` --model '/m odel' `, head)
	assert.NotContains(t, text[:len(head)], "token-3", "values of variables are in no log")
	assert.Contains(t, rest, "--port\n8004\n--show-startup-logs\n--x\n{\"k\":7, \"s\":\"a b\"}\n"+work+"\ntoken-3\n")
	assert.Regexp(t, `\n/dev/null\n(\d+) (\d+)\n`, rest)
	_, err := os.Stat("pwned")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, w.Stop(t.Context(), l))
	require.False(t, lives(pid, start))

	b, err := w.Log(t.Context(), l, 3)
	require.NoError(t, err)
	require.Equal(t, "up\n", string(b))
}

// Fleet behaviour 74
// Quotes are lost, or doubled, between two shells and a wrapper.
//
// Case B19.
func TestQuotingThroughEveryShell(t *testing.T) {
	t.Parallel()
	words := []string{"--c", `{"method":"x","k":7}`, "/weights/my model's $HOME", "a`id`$(id)", "two\nlines", "", "*", `\`, "é"}
	for _, far := range []bool{false, true} {
		for _, wrapped := range []bool{false, true} {
			w := remote(t, "runs", `shift 9; printf '%s\0' "$@" "$X" >"$0.said.new"; mv "$0.said.new" "$0.said"`, 0)
			fields := map[string]any{"serve_args": words, "env": map[string]string{"X": "a'b\"c`id`$(id)\n2nd {device} {{x}}"}}
			if far {
				fields["ssh"] = "u@far"
			}
			if wrapped {
				broker := filepath.Join(w.dir, "submit it")
				w.write(t, broker, "#!/bin/sh\n[ $# -eq 3 ] && [ \"$1\" = --on ] && [ \"$2\" = 3,1 ] && exec sh -c \"$3\"\n")
				fields["launch_wrapper"] = []string{broker, "--on", "{devices}"}
			}
			l := w.launch(t, fields)
			w.start(t, l)
			var said []byte
			require.Eventually(t, func() (ok bool) {
				var err error
				said, err = os.ReadFile(w.server + ".said")
				return err == nil
			}, patience, 5*time.Millisecond)
			require.Equal(t, strings.Join(words, "\x00")+"\x00a'b\"c`id`$(id)\n2nd 3 {x}\x00", string(said), "over ssh %v, wrapped %v", far, wrapped)
		}
	}
}

// Hazard 7: an ssh that fails is no proof that nothing was started. What fails
// before the launch was sent is one.
func TestWhatAFailedSSHProves(t *testing.T) {
	t.Parallel()
	for mode, c := range map[string]struct {
		uncertain, started bool
		want               string
	}{
		"refuses": {want: "launch n-d3: host n cannot be used: ssh: exit status 255: u@far: Permission denied (publickey)."},
		"asks":    {want: "launch n-d3: host n cannot be used: ssh: exit status 255: Are you sure (yes/no)?\nno answer"},
		"chats":   {want: "launch n-d3: host n cannot be used: ssh: exit status 255: " + strings.Repeat("x", tailMax-len(" the end\n")) + " the end"},
		"drops":   {uncertain: true, want: "launch n-d3 on host n: ssh: exit status 255; something may have been started"},
		"breaks":  {uncertain: true, started: true, want: "launch n-d3 on host n: ssh: exit status 255; something may have been started"},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := remote(t, mode, serving, 0)
			l := w.far(t, nil)
			err := w.Launch(t.Context(), l, nil)
			require.EqualError(t, err, c.want)
			require.Equal(t, c.uncertain, errorsIs(err))
			if c.started {
				w.await(t, l, "up")
			}
			require.NoError(t, remoteEnd(w).Stop(t.Context(), l))
			if c.started {
				pid, start, _ := pidOf(t, l)
				require.False(t, lives(pid, start), "the stop has ended what was started")
			}
		})
	}
}

func errorsIs(err error) bool {
	return strings.HasSuffix(err.Error(), fleet.ErrLaunchUncertain.Error())
}

// remoteEnd is a launcher whose ssh works.
func remoteEnd(w *world) *Launcher {
	return New(Options{Env: append(append([]string(nil), w.o.Env...), "MODE=runs"), Log: w.o.Log})
}

// An ssh that never returns is ended, with all that it has started.
//
// Case B18.
func TestSSHThatHangs(t *testing.T) {
	t.Parallel()
	w := remote(t, "hangs", serving, 500*time.Millisecond)
	l := w.far(t, nil)
	err := w.Launch(t.Context(), l, nil)
	require.ErrorIs(t, err, fleet.ErrLaunchUncertain)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.EqualError(t, err, "launch n-d3 on host n: ssh: killed: context deadline exceeded; something may have been started")
	_, err = w.Log(t.Context(), l, 10)
	require.ErrorContains(t, err, "log of n-d3 on host n: ssh: killed: context deadline exceeded")
}

// A shared connection leaves a process behind that holds ssh's output.
func TestSSHThatLeavesItsOutputOpen(t *testing.T) {
	t.Parallel()
	w := remote(t, "holds", serving, 0)
	l := w.far(t, nil)
	require.NoError(t, w.Launch(t.Context(), l, nil))
	require.NoError(t, remoteEnd(w).Stop(t.Context(), l))
	t.Cleanup(func() {
		for _, kv := range w.o.Env {
			if record, ok := strings.CutPrefix(kv, "RECORD="); ok {
				w.Launcher.run(context.WithoutCancel(t.Context()), fleet.Command{Args: []string{"sh", "-c", "kill $(cat '" + record + ".holder')"}}, nil)
			}
		}
	})
}

// What fails over there before the server's start is told, and holds no slot.
func TestRemoteStepThatFails(t *testing.T) {
	t.Parallel()
	w := remote(t, "runs", serving, 0)
	open := filepath.Join(t.TempDir(), "it's open")
	require.NoError(t, os.Mkdir(open, 0o700))
	require.NoError(t, os.Chmod(open, 0o777))
	for name, c := range map[string]struct {
		fields map[string]any
		want   string
	}{
		"anybody's logs":        {map[string]any{"log_dir": open}, "log_dir is not this user's alone"},
		"no folder for the log": {map[string]any{"log_dir": filepath.Join(w.server, "below a file")}, "mkdir"},
		"no working directory":  {map[string]any{"workdir": "/no/such/folder"}, "/no/such/folder"},
		"no program":            {map[string]any{"program": []string{"no-such-server"}}, "exit status 127: no-such-server: command not found"},
		"no wrapper":            {map[string]any{"launch_wrapper": []string{"no-such-broker"}}, "exit status 127: no-such-broker: command not found"},
	} {
		t.Run(name, func(t *testing.T) {
			err := w.Launch(t.Context(), w.far(t, c.fields), nil)
			require.ErrorContains(t, err, c.want)
			require.NotErrorIs(t, err, fleet.ErrLaunchUncertain)
		})
	}
	_, err := w.Log(t.Context(), w.far(t, map[string]any{"log_dir": w.dir}), 10)
	require.ErrorContains(t, err, "n-d3.log")
}

// A server that runs and could not be written down is uncertain, and the stop
// finds it.
func TestPidFileThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	w := remote(t, "runs", serving, 0)
	l := w.far(t, nil)
	require.NoError(t, os.MkdirAll(l.PidPath(), 0o700))
	err := w.Launch(t.Context(), l, nil)
	require.ErrorIs(t, err, fleet.ErrLaunchUncertain)
	w.await(t, l, "up")
	require.NoError(t, w.Stop(t.Context(), l))
}

// A connection that has hung delivers the launch after it was given up, stopped,
// and followed by the next one.
func TestLaunchThatArrivesLate(t *testing.T) {
	t.Parallel()
	w := remote(t, "runs", serving, 0)
	l := w.far(t, nil)
	require.NoError(t, w.Stop(t.Context(), l))
	next := l
	next.Instance = "i2"
	w.start(t, next)
	w.await(t, next, "up")
	err := w.Launch(t.Context(), l, nil)
	require.EqualError(t, err, "launch n-d3 on host n: ssh: exit status 1: stopped meanwhile")
	_, _, instance := pidOf(t, next)
	require.Equal(t, "i2", instance)

	// One that is under way when the stop looks is ended by it.
	w = remote(t, "runs", serving, 0)
	fifo := filepath.Join(w.dir, "fifo")
	require.Nil(t, w.run(t.Context(), fleet.Command{Args: []string{"mkfifo", fifo}}, nil))
	l = w.far(t, nil)
	require.NoError(t, os.MkdirAll(filepath.Dir(l.LogPath()), 0o700))
	require.NoError(t, os.Symlink(fifo, l.LogPath()), "the header waits for a reader of the log")
	ended := make(chan error)
	go func() { ended <- w.Launch(t.Context(), l, nil) }()
	mark := []string{"sh", "-c", "until [ -n \"$(grep -lzxF -e PYPTO_FLEET_SLOT='" + l.PidPath() + "' /proc/[0-9]*/environ 2>/dev/null)\" ]; do :; done"}
	require.Nil(t, w.run(t.Context(), fleet.Command{Args: mark}, nil))
	require.NoError(t, w.Stop(t.Context(), l))
	require.Error(t, <-ended)
}

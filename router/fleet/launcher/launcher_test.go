package launcher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/router/fleet"
)

// patience bounds a wait for what must happen.
const patience = time.Minute

// world is a machine with one slot, whose server is a script of the test's own.
type world struct {
	*Launcher
	dir, server string
	log         *lines
	// ends are the exits that were reported.
	ends chan error
}

// lines is a log that may be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newWorld(t *testing.T, script string, options Options) *world {
	t.Helper()
	w := &world{dir: t.TempDir(), log: &lines{}, ends: make(chan error, 10)}
	w.server = filepath.Join(w.dir, fmt.Sprintf("serve-%08x", rand.Uint32()))
	w.write(t, w.server, "#!/bin/sh\n"+script)
	options.Log = slog.New(slog.NewTextHandler(w.log, nil))
	w.Launcher = New(options)
	t.Cleanup(w.Close)
	return w
}

func (w *world) write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o700))
}

// launch is a slot with one instance; fields are added to its host's.
func (w *world) launch(t *testing.T, fields map[string]any) fleet.Launch {
	t.Helper()
	host := map[string]any{
		"name": "n", "model": "/m odel", "devices": []int{3, 1}, "devices_per_replica": 2, "port_base": 8001, "program": []string{w.server},
		"log_dir": filepath.Join(w.dir, "log s", "deep"),
	}
	for k, v := range fields {
		host[k] = v
	}
	b, err := json.Marshal(map[string]any{"hosts": []any{host}})
	require.NoError(t, err)
	c, err := fleet.Parse(b)
	require.NoError(t, err)
	return fleet.Launch{Slot: c.Slots[0], Host: &c.Hosts[0], Instance: "i1", Grace: 4 * time.Second}
}

func (w *world) start(t *testing.T, l fleet.Launch) {
	t.Helper()
	require.NoError(t, w.Launch(t.Context(), l, func(err error) { w.ends <- err }))
	// Whatever a test does, nothing of it stays.
	t.Cleanup(func() { assert.NoError(t, w.Stop(context.WithoutCancel(t.Context()), l)) })
}

// await waits until the log has a line.
func (w *world) await(t *testing.T, l fleet.Launch, line string) string {
	t.Helper()
	var text string
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(l.LogPath())
		text = string(b)
		return err == nil && strings.Contains(text, line+"\n")
	}, patience, 5*time.Millisecond, "no line %q", line)
	return text
}

func (w *world) noEnd(t *testing.T) {
	t.Helper()
	select {
	case err := <-w.ends:
		t.Fatalf("an end was reported: %v", err)
	default:
	}
}

// pidOf reads the pid file.
func pidOf(t *testing.T, l fleet.Launch) (pid int, start, instance string) {
	t.Helper()
	b, err := os.ReadFile(l.PidPath())
	require.NoError(t, err)
	fields := strings.Fields(string(b))
	require.Len(t, fields, 3)
	pid, err = strconv.Atoi(fields[0])
	require.NoError(t, err)
	return pid, fields[1], fields[2]
}

func exists(pid int) bool { return syscall.Kill(pid, 0) == nil }

// lives says that a process is there and still the one that began then. What its
// parent has not reaped does not live.
func lives(pid int, start string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && startTime(pid) == start && !bytes.Contains(b, []byte(") Z "))
}

// serving is a server that lives until it is told to end.
const serving = "trap 'exit 0' TERM\necho up\nwhile :; do sleep 1000 & wait; done\n"

// Fleet behaviour 75
// Fleet behaviour 80
func TestLocalLaunch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `printf '%s\n' "$@" "$PWD" "$A" "[$PYPTO_ROUTER_ADMIN_TOKEN]" "$KEPT"; readlink /proc/$$/fd/0; cut -d' ' -f5,6 /proc/$$/stat; echo $$ >&2`+"\n"+serving,
		Options{Env: append(os.Environ(), fleet.TokenVariable+"=secret", "KEPT=kept")})
	work := filepath.Join(w.dir, "work here")
	require.NoError(t, os.Mkdir(work, 0o700))
	l := w.launch(t, map[string]any{"workdir": work, "env": map[string]string{"A": "a'b\"c`id`$(id)\n2nd {device}"}, "serve_args": []string{"--x", `{"k":7, "s":"a b"}`}})
	w.start(t, l)
	text := w.await(t, l, "up")
	pid, start, instance := pidOf(t, l)
	assert.Equal(t, "i1", instance)
	assert.Equal(t, startTime(pid), start)
	head, rest, _ := strings.Cut(text, "\n")
	assert.Regexp(t, `^=== \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ launch i1: `+w.server+` --model '/m odel' --devices 3,1 --host 0.0.0.0 --port 8004 --show-startup-logs --x '\{"k":7, "s":"a b"\}'$`, head)
	assert.Equal(t, fmt.Sprintf("--model\n/m odel\n--devices\n3,1\n--host\n0.0.0.0\n--port\n8004\n--show-startup-logs\n--x\n{\"k\":7, \"s\":\"a b\"}\n%s\na'b\"c`id`$(id)\n2nd 3\n[]\nkept\n/dev/null\n%d %d\n%d\nup\n",
		work, pid, pid, pid), rest, "arguments, folder, variables, no input, a group and a session of its own")

	// A second life appends to the log.
	require.NoError(t, w.Stop(t.Context(), l))
	l.Instance = "i2"
	w.start(t, l)
	require.Eventually(t, func() bool {
		b, err := w.Log(t.Context(), l, 1<<20)
		return err == nil && bytes.Count(b, []byte("\nup\n")) == 2 && bytes.Contains(b, []byte("launch i2: "))
	}, patience, 5*time.Millisecond)
	b, err := w.Log(t.Context(), l, 4)
	require.NoError(t, err)
	assert.Equal(t, "\nup\n", string(b))
}

// A replica outlives a router that goes; what is told then is told to nobody.
func TestCloseLeavesTheReplica(t *testing.T) {
	t.Parallel()
	w := newWorld(t, serving, Options{})
	l := w.launch(t, nil)
	w.start(t, l)
	w.await(t, l, "up")
	w.Close()
	w.Close()
	pid, _, _ := pidOf(t, l)
	require.True(t, exists(pid))
	require.ErrorIs(t, w.Launch(t.Context(), l, nil), errClosed)
	require.NoError(t, w.Stop(t.Context(), l), "a launcher that is closed can still stop")
	// The test is its parent and must reap it, which the launcher does no more.
	_, err := syscall.Wait4(pid, nil, 0, nil)
	require.NoError(t, err)
	w.noEnd(t)
}

func TestLocalLaunchThatIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, serving, Options{})
	open := t.TempDir()
	require.NoError(t, os.Chmod(open, 0o777))
	for name, c := range map[string]struct {
		fields map[string]any
		want   string
	}{
		"no such program": {map[string]any{"program": []string{"no-such-server"}}, "launch n-d3: no-such-server: command not found"},
		"no such path":    {map[string]any{"program": []string{"/no/such/server"}}, "no such file or directory"},
		"no such folder":  {map[string]any{"workdir": "/no/such/folder"}, "/no/such/folder"},
		"no folder":       {map[string]any{"workdir": w.server}, "is none"},
		"no log":          {map[string]any{"log_dir": filepath.Join(w.server, "below a file")}, "folder of the log"},
		"anybody's logs":  {map[string]any{"log_dir": open}, "nobody else may write to it"},
	} {
		t.Run(name, func(t *testing.T) {
			l := w.launch(t, c.fields)
			err := w.Launch(t.Context(), l, func(err error) { w.ends <- err })
			require.ErrorContains(t, err, c.want)
			require.NotErrorIs(t, err, fleet.ErrLaunchUncertain)
			require.NoError(t, w.Stop(t.Context(), l))
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, w.Launch(ctx, w.launch(t, nil), nil), context.Canceled)
	w.noEnd(t)
}

// The program is looked up in the PATH that the file gives it, as env(1) does.
func TestProgramIsLookedUpInItsOwnPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t, serving, Options{})
	l := w.launch(t, map[string]any{"program": []string{filepath.Base(w.server)}, "env": map[string]string{"PATH": "relative:" + w.dir + ":" + os.Getenv("PATH")}})
	w.start(t, l)
	w.await(t, l, "up")
}

func TestEndThatIsReported(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ script, want string }{
		"status": {"echo loading; echo 'no memory on card 3' >&2; exit 3", "the process of n-d3 has ended: exit status 3: === "},
		"signal": {"echo loading; kill -9 $$", "the process of n-d3 has ended: signal: killed: === "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.script, Options{})
			l := w.launch(t, nil)
			w.start(t, l)
			select {
			case err := <-w.ends:
				require.ErrorContains(t, err, c.want)
				require.ErrorContains(t, err, "loading")
			case <-time.After(patience):
				t.Fatal("no end was reported")
			}
			// Hazard 16: a child that nobody waits for stays a zombie.
			pid, _, _ := pidOf(t, l)
			require.False(t, exists(pid))
		})
	}
}

// Nothing of a launch or a stop stays open. Not in parallel: it counts what the
// whole process has open.
func TestNothingStaysOpen(t *testing.T) {
	w := newWorld(t, "exit 0", Options{})
	l := w.launch(t, map[string]any{"stop_command": []string{"true"}})
	once := func(i int) {
		l.Instance = fmt.Sprint("i", i)
		require.NoError(t, w.Launch(t.Context(), l, func(err error) { w.ends <- err }))
		require.Eventually(t, func() bool { return strings.Contains(w.log.String(), "instance="+l.Instance+" ") }, patience, time.Millisecond)
		require.NoError(t, w.Stop(t.Context(), l))
	}
	open := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(fds)
	}
	once(0)
	before := open()
	for i := range 20 {
		once(i + 1)
	}
	require.LessOrEqual(t, open(), before)
}

// A broker queues its job and returns; its job is the replica.
func TestEndThatIsNoNews(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "exit 0", Options{})
	l := w.launch(t, nil)
	w.start(t, l)
	require.Eventually(t, func() bool { return strings.Contains(w.log.String(), `end="exit status 0"`) }, patience, time.Millisecond)
	w.noEnd(t)

	// Neither is the end of what is being stopped, however it ends.
	w = newWorld(t, "trap 'exit 7' TERM\necho up\nwhile :; do sleep 1000 & wait; done", Options{})
	l = w.launch(t, nil)
	w.start(t, l)
	w.await(t, l, "up")
	require.NoError(t, w.Stop(t.Context(), l))
	require.Eventually(t, func() bool { return strings.Contains(w.log.String(), `end="exit status 7" expected=true`) }, patience, time.Millisecond)
	w.noEnd(t)
}

// Fleet behaviour 72
// The server has ended and its port is silent; its children hold the cards. The
// stop ends them, too, and not before that it says so.
//
// Case B20.
func TestStopWaitsForTheCards(t *testing.T) {
	t.Parallel()
	for name, child := range map[string]string{
		"that ends when asked":             "flock \"$CARD\" sleep 1000",
		"that must be killed":              "flock \"$CARD\" sh -c \"trap '' TERM; sleep 1000\"",
		"in a session of its own, renamed": "setsid flock \"$CARD\" bash -c \"trap '' TERM; exec -a worker sleep 1000\"",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, child+" &\nuntil ! flock -n \"$CARD\" true; do :; done\necho held\nexit 9", Options{})
			card := filepath.Join(w.dir, "card{device}")
			l := w.launch(t, map[string]any{"env": map[string]string{"CARD": card}})
			w.start(t, l)
			w.await(t, l, "held")
			require.ErrorContains(t, <-w.ends, "exit status 9")
			card = filepath.Join(w.dir, "card3")
			require.Error(t, exec.Command("flock", "-n", card, "true").Run(), "a child holds the card")
			require.NoError(t, w.Stop(t.Context(), l))
			require.NoError(t, exec.Command("flock", "-n", card, "true").Run(), "the card is free")
		})
	}
}

// A stop that fails tells why; a command of the file is believed.
func TestStopThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, serving, Options{})
	l := w.launch(t, map[string]any{"stop_command": []string{"sh", "-c", "echo out; echo 'card {device} is stuck' >&2; exit 4"}})
	require.EqualError(t, w.Stop(t.Context(), l), "stop n-d3 on host n: sh: exit status 4: out\ncard 3 is stuck")
	l = w.launch(t, map[string]any{"stop_command": []string{"no-such-stop"}})
	require.EqualError(t, w.Stop(t.Context(), l), "stop n-d3 on host n: no-such-stop: command not found")
	l = w.launch(t, map[string]any{"stop_command": []string{"true"}})
	require.NoError(t, w.Stop(t.Context(), l))
}

// A command that hangs is ended with all that it has started.
func TestCommandThatHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, serving, Options{CommandLimit: 50 * time.Millisecond})
	held := filepath.Join(w.dir, "held")
	l := w.launch(t, map[string]any{"stop_command": []string{"sh", "-c", "flock '" + held + "' sleep 1000; :"}})
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for exec.Command("flock", "-n", held, "true").Run() == nil {
		}
		cancel(errors.New("the router goes"))
	}()
	require.EqualError(t, w.Stop(ctx, l), "stop n-d3 on host n: sh: killed: the router goes")
	require.NoError(t, exec.Command("flock", held, "true").Run(), "its child is gone, too")
}

func TestLogThatIsNotThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, serving, Options{})
	_, err := w.Log(t.Context(), w.launch(t, nil), 100)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "log of n-d3: ")
}

func TestTailKeepsTheEnd(t *testing.T) {
	long := strings.Repeat("0123456789", 1000)
	for _, piece := range []int{1, 7, 99, 100, 101, 5000, len(long)} {
		k := &tail{limit: 100}
		for rest := long; rest != ""; {
			n := min(piece, len(rest))
			_, err := k.Write([]byte(rest[:n]))
			require.NoError(t, err)
			require.LessOrEqual(t, len(k.kept), 200)
			rest = rest[n:]
		}
		require.Equal(t, long[len(long)-100:], string(k.bytes()), piece)
	}
	k := &tail{limit: 5}
	_, _ = k.Write([]byte("é\xff é\n"))
	require.Equal(t, "é", k.text())
}

// A name may hold what looks like the end of a name.
func TestStartTime(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "a) R 1 (b")
	require.NoError(t, os.Symlink("/bin/sleep", name))
	c := exec.Command(name, "1000")
	require.NoError(t, c.Start())
	defer func() { _ = c.Wait() }()
	defer c.Process.Kill()
	self := exec.Command("sleep", "1000")
	require.NoError(t, self.Start())
	defer func() { _ = self.Wait() }()
	defer self.Process.Kill()
	a, err := strconv.Atoi(startTime(c.Process.Pid))
	require.NoError(t, err)
	b, err := strconv.Atoi(startTime(self.Process.Pid))
	require.NoError(t, err)
	assert.Positive(t, a)
	assert.LessOrEqual(t, a, b)
	assert.Equal(t, "0", startTime(0))
}

package fleet

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stage is a slot of a host whose server is a script of the test's own, so that
// no other test's processes look like it.
type stage struct {
	Launch
	server string
}

func newStage(t *testing.T, fields string) *stage {
	t.Helper()
	dir := t.TempDir()
	server := filepath.Join(dir, fmt.Sprintf("serve-%08x", rand.Uint32()))
	// It says when it listens to signals. Its own child must be found, too.
	require.NoError(t, os.WriteFile(server, []byte("#!/bin/sh\ntrap 'exit 0' TERM; [ -z \"$DEAF\" ] || trap '' TERM\necho up\nwhile :; do sleep 1000 & wait; done\n"), 0o700))
	c := mustParse(t, fmt.Sprintf(`{"hosts":[{"name":"n","model":"/m","devices":[0],"port_base":8001,"program":[%q],"log_dir":%q%s}]}`, server, filepath.Join(dir, "l og"), fields))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "l og"), 0o700))
	return &stage{Launch: Launch{Slot: c.Slots[0], Host: &c.Hosts[0], Instance: "i1", Grace: 4 * time.Second}, server: server}
}

// child is a process that the test has started.
type child struct {
	*exec.Cmd
	ended chan struct{}
}

// start starts a process in a session of its own and waits until it says that it
// is up. It is reaped when it ends, unless lazy.
func start(t *testing.T, lazy bool, env []string, args ...string) *child {
	t.Helper()
	c := &child{Cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{})}
	c.Env = append(os.Environ(), env...)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "up\n", line)
	reap := func() {
		_ = c.Wait() // by a signal, mostly
		close(c.ended)
	}
	if !lazy {
		go reap()
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		if lazy {
			reap()
		}
		<-c.ended
	})
	return c
}

func (c *child) lives() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// startTime is field 22 of /proc/PID/stat.
func startTime(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+2:]))[19]
}

func (s *stage) writePid(t *testing.T, pid int, start string) {
	t.Helper()
	require.NoError(t, os.WriteFile(s.PidPath(), fmt.Appendf(nil, "%d %s i1\n", pid, start), 0o600))
}

// stop runs the stop command and gives its exit status and what it said.
func (s *stage) stop(t *testing.T) (int, string) {
	t.Helper()
	args := s.StopCommand().Args
	c := exec.Command(args[0], args[1:]...)
	out, err := c.CombinedOutput()
	if c.ProcessState == nil {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), string(out)
}

func (s *stage) wantStopped(t *testing.T) {
	t.Helper()
	status, out := s.stop(t)
	require.Zero(t, status, out)
	require.Empty(t, out)
}

// serverArgs is the server's command line.
func (s *stage) serverArgs() []string { return s.serve() }

// sleeper is a shell that keeps its command line.
const sleeper = "echo up; sleep 1000; :"

// Hazard 5: a replica that has died already can be replaced.
//
// Case B17.
func TestNothingToStopIsSuccess(t *testing.T) {
	t.Parallel()
	newStage(t, ``).wantStopped(t)
	s := newStage(t, ``)
	s.writePid(t, 1, "0")
	s.wantStopped(t)
	require.NoError(t, os.WriteFile(s.PidPath(), []byte("$(touch pwned) ;\n"), 0o600))
	s.wantStopped(t)
}

func TestStopEndsTheGroupOfThePidFile(t *testing.T) {
	t.Parallel()
	s := newStage(t, ``)
	c := start(t, false, nil, s.serverArgs()...)
	s.writePid(t, c.Process.Pid, startTime(t, c.Process.Pid))
	s.wantStopped(t)
	<-c.ended
	assert.Zero(t, c.ProcessState.ExitCode(), "it was asked, not killed")
}

// Fleet behaviour 92
func TestStopKillsAtHalfTheGrace(t *testing.T) {
	t.Parallel()
	s := newStage(t, ``)
	c := start(t, false, []string{"DEAF=1"}, s.serverArgs()...)
	s.writePid(t, c.Process.Pid, startTime(t, c.Process.Pid))
	s.wantStopped(t)
	<-c.ended
	assert.Equal(t, syscall.SIGKILL, c.ProcessState.Sys().(syscall.WaitStatus).Signal())
}

// The parent is gone and its port silent; its workers hold the cards.
func TestStopFindsWorkersWithoutTheirParent(t *testing.T) {
	t.Parallel()
	s := newStage(t, ``)
	for name, args := range map[string][]string{
		// One that has cleared its environment is still in the group, one with a
		// session of its own still has the environment.
		"in the group":           {"env", "-i", "/bin/sh", "-c", "/bin/sleep 1000 & echo up; exit 0"},
		"in the session":         {"env", "-i", "/bin/bash", "-c", "set -m; /bin/sleep 1000 & echo up; exit 0"},
		"in a session elsewhere": {"sh", "-c", "setsid --fork sleep 1000; echo up; exit 0"},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, false, []string{s.mark()}, args...)
			<-c.ended
			s.writePid(t, c.Process.Pid, "12345")
			status, out := s.stop(t)
			require.Zero(t, status, out)
			// A second look, with other means: none of the sleepers is left.
			left, err := exec.Command("sh", "-c", fmt.Sprintf("cat /proc/[0-9]*/stat 2>/dev/null | grep -E '^[0-9]+ \\(sleep\\) [^Z] [0-9]+ [0-9]+ %d '", c.Process.Pid)).Output()
			require.Error(t, err, "%s", left)
			require.Empty(t, left)
			marked, _ := exec.Command("sh", "-c", "grep -lzxF -e '"+s.mark()+"' /proc/[0-9]*/environ 2>/dev/null").Output()
			require.Empty(t, marked)
		})
	}
}

// A process whose first thread has ended is shown as dead while another thread
// hangs, in a driver say, and holds the card.
func TestStopSeesThreadsBehindADeadOne(t *testing.T) {
	t.Parallel()
	s := newStage(t, ``)
	c := start(t, false, nil, "python3", "-c", "import ctypes, sys, threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\nprint('up', flush=True)\nctypes.CDLL(None).pthread_exit(None)")
	pid := c.Process.Pid
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && strings.Contains(string(b), ") Z ")
	}, time.Minute, 5*time.Millisecond)
	s.writePid(t, pid, startTime(t, pid))
	s.wantStopped(t)
	<-c.ended
}

// What nobody has reaped holds nothing.
func TestStopDoesNotWaitForZombies(t *testing.T) {
	t.Parallel()
	s := newStage(t, ``)
	c := start(t, true, nil, s.serverArgs()...)
	s.writePid(t, c.Process.Pid, startTime(t, c.Process.Pid))
	s.wantStopped(t)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
	require.NoError(t, err)
	require.Contains(t, string(b), ") Z ")
}

// Hazard 17: a stop by a text pattern signals strangers.
func TestStopLeavesStrangersAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t, ``)
	port := []string{"--port", "8001"}
	editor := filepath.Join(t.TempDir(), "edit")
	require.NoError(t, os.Symlink(s.server, editor))
	ssh := filepath.Join(t.TempDir(), "ssh")
	require.NoError(t, os.WriteFile(ssh, []byte("#!/bin/sh\n"+sleeper), 0o700))
	strangers := map[string]*child{
		"the process that has the number of the pid file now": start(t, false, nil, "sh", "-c", sleeper),
		"a port that begins alike":                            start(t, false, nil, s.server, "--port", "80011"),
		"another program with that port":                      start(t, false, nil, append([]string{editor}, port...)...),
		"a text about it":                                     start(t, false, nil, "sh", "-c", sleeper, "sh", s.server+" --port 8001"),
		"one with empty arguments":                            start(t, false, nil, "sh", "-c", sleeper, "", ""),
		"a server of another slot":                            start(t, false, []string{markVariable + "=/other/n-d0.pid"}, append([]string{s.server}, port...)...),
		"an ssh to another machine":                           start(t, false, nil, "bash", "-c", "exec -a ssh sh -c '"+sleeper+"' "+s.server+" "+strings.Join(port, " ")),
	}
	if exec.Command("unshare", "--net", "true").Run() == nil {
		strangers["one in another network"] = start(t, false, nil, append([]string{"unshare", "--net", s.server}, port...)...)
	}
	first := strangers["the process that has the number of the pid file now"].Process.Pid
	s.writePid(t, first, "12345")
	s.wantStopped(t)
	for name, c := range strangers {
		assert.True(t, c.lives(), name)
	}

	// What looks like the server is not, where the launched process is the server.
	twin := start(t, false, nil, append([]string{s.server}, port...)...)
	c := start(t, false, []string{s.mark()}, s.serverArgs()...)
	s.wantStopped(t)
	<-c.ended
	assert.True(t, twin.lives(), "a second one of that name and port")
	for name, c := range strangers {
		assert.True(t, c.lives(), name)
	}
}

// A broker runs the server where neither pid file nor mark leads to it.
func TestStopFindsWhatABrokerRuns(t *testing.T) {
	t.Parallel()
	s := newStage(t, `,"launch_wrapper":["submit"]`)
	server := start(t, false, nil, s.serverArgs()...)
	shell := start(t, false, nil, "sh", "-c", sleeper+" # "+quoteAll(s.serverArgs()))
	waits := start(t, false, nil, "sh", "-c", sleeper, "submit", quoteAll(s.serverArgs()))
	s.wantStopped(t)
	<-server.ended
	<-shell.ended
	<-waits.ended
}

// A stop that cannot end everything says so, and who it is.
func TestStopThatCannot(t *testing.T) {
	t.Parallel()
	s := newStage(t, ``)
	s.Grace = 2 * time.Second
	// Each begins again when it is ended; that all are between two lives when the
	// stop looks does not happen.
	keeper := start(t, false, nil, "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do while :; do env '"+s.mark()+"' sh -c 'echo up; exec sleep 1000'; done & done; wait")
	status, out := s.stop(t)
	require.Equal(t, 1, status)
	require.Regexp(t, `^still there after 2 s:( ?\d+ \((sleep|env|sh)\))+\s`, out)
	require.True(t, keeper.lives())
}

package cluster

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Patience bounds every wait for something that must happen. It is far more
// than a healthy machine needs and decides nothing else.
const Patience = 60 * time.Second

// launcher owns the thread from which children are started.
type launcher struct {
	orders chan func()
	thread sync.WaitGroup
}

func newLauncher() *launcher {
	l := &launcher{orders: make(chan func())}
	l.thread.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for f := range l.orders {
			f()
		}
	})
	return l
}

// start starts a command that gets a signal when this process ends.
func (l *launcher) start(c *exec.Cmd, orphaned syscall.Signal) error {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: orphaned}
	started := make(chan error)
	l.orders <- func() { started <- c.Start() }
	return <-started
}

func (l *launcher) end() {
	close(l.orders)
	l.thread.Wait()
}

// Process is one child. Its methods may be called from any goroutine.
type Process struct {
	// Label says which one it is in messages.
	Label string

	command        *exec.Cmd
	stdout, stderr string // files
	ended          chan struct{}
	err            error // valid once ended is closed
}

// Command is one program to start.
type Command struct {
	Label string
	// Program is one of ours, or any other of PATH.
	Program string
	Args    []string
	// Dir is the working directory; the folder of the logs if empty.
	Dir string
	// Env is added to this process's environment.
	Env []string
	// Orphaned is the signal that it gets should this process die without having
	// ended it; 0 is SIGKILL.
	Orphaned syscall.Signal
}

// Spawn starts a program and ends its whole group with the test. When the test
// has failed, the end of what the process said is printed.
func Spawn(t testing.TB, c Command) *Process {
	t.Helper()
	p, err := spawn(Bin(t), t.TempDir(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bury(t, p) })
	return p
}

// bury ends a process, and shows what it said if its test has failed.
func bury(t testing.TB, p *Process) {
	p.Kill()
	if t.Failed() {
		t.Log(p.Tail())
	}
}

func spawn(bin, logs string, c Command) (*Process, error) {
	program := c.Program
	if slices.Contains(programs, program) {
		program = filepath.Join(bin, program)
	}
	p := &Process{
		Label: c.Label, command: exec.Command(program, c.Args...), ended: make(chan struct{}),
		stdout: filepath.Join(logs, "stdout"), stderr: filepath.Join(logs, "stderr"),
	}
	p.command.Dir = c.Dir
	if c.Dir == "" {
		p.command.Dir = logs
	}
	p.command.Env = append(os.Environ(), c.Env...)
	out, err := os.Create(p.stdout)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	errs, err := os.Create(p.stderr)
	if err != nil {
		return nil, err
	}
	defer errs.Close()
	p.command.Stdout, p.command.Stderr = out, errs
	run.mu.Lock()
	l := run.launcher
	run.mu.Unlock()
	if err := l.start(p.command, cmp.Or(c.Orphaned, syscall.SIGKILL)); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Label, err)
	}
	go func() {
		p.err = p.command.Wait()
		close(p.ended)
	}()
	return p, nil
}

// PID is the process's id, which is its group's too.
func (p *Process) PID() int { return p.command.Process.Pid }

// Signal sends a signal to the process alone. One that has ended gets none.
func (p *Process) Signal(s syscall.Signal) { _ = p.command.Process.Signal(s) }

// Kill ends the process and its group at once and waits for it.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL) // nobody may be left
	<-p.ended
}

// Alive says that the process has not ended.
func (p *Process) Alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Wait waits for the end and gives the exit code; -1 means ended by a signal.
func (p *Process) Wait(t testing.TB) int {
	t.Helper()
	return p.WaitWithin(t, Patience)
}

// WaitWithin is Wait for a process that builds or tests and may take longer.
func (p *Process) WaitWithin(t testing.TB, limit time.Duration) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(limit):
		t.Fatalf("%s has not ended within %v", p.Label, limit)
	}
	return p.command.ProcessState.ExitCode()
}

// Stop ends the process with SIGTERM and gives its exit code.
func (p *Process) Stop(t testing.TB) int {
	t.Helper()
	p.Signal(syscall.SIGTERM)
	return p.Wait(t)
}

// Stdout is what the process has printed so far.
func (p *Process) Stdout() string { return read(p.stdout) }

// Stderr is what the process has logged so far.
func (p *Process) Stderr() string { return read(p.stderr) }

func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// tailLines is how much of a log is shown of a process whose test has failed.
const tailLines = 12

// Tail is the end of what the process said.
func (p *Process) Tail() string {
	var out strings.Builder
	for _, part := range []struct{ name, text string }{{"stdout", p.Stdout()}, {"stderr", p.Stderr()}} {
		lines := strings.Split(strings.TrimRight(part.text, "\n"), "\n")
		fmt.Fprintf(&out, "--- %s of %s (%d lines)\n", part.name, p.Label, len(lines))
		for _, line := range lines[max(0, len(lines)-tailLines):] {
			fmt.Fprintf(&out, "    %s\n", line)
		}
	}
	return out.String()
}

// Ready waits for the program's ready line and gives its key=value fields.
func (p *Process) Ready(t testing.TB) map[string]string {
	t.Helper()
	fields, err := p.ready()
	if err != nil {
		t.Fatal(err)
	}
	return fields
}

func (p *Process) ready() (map[string]string, error) {
	var fields map[string]string
	err := poll(func() (bool, error) {
		for line := range strings.Lines(p.Stdout()) {
			if !strings.Contains(line, " ready: ") || !strings.HasSuffix(line, "\n") {
				continue
			}
			fields = map[string]string{}
			for _, f := range strings.Fields(line) {
				k, v, _ := strings.Cut(f, "=")
				fields[k] = v
			}
			return true, nil
		}
		if !p.Alive() {
			return true, fmt.Errorf("%s has ended (%v):\n%s", p.Label, p.command.ProcessState, p.Tail())
		}
		return false, fmt.Errorf("%s is not ready:\n%s", p.Label, p.Tail())
	})
	return fields, err
}

// pollInterval is how long a question is not asked again, or for as long as its
// answer took, if that is longer: whoever asks must leave the machine to whoever
// answers.
const pollInterval = 5 * time.Millisecond

// poll asks until f is done or Patience is over, and gives f's last error.
func poll(f func() (done bool, err error)) error {
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		<-again.C
		asked := time.Now()
		done, err := f()
		if done {
			return err
		}
		again.Reset(max(pollInterval, time.Since(asked)))
		select {
		case <-deadline.C:
			return fmt.Errorf("waited %v: %w", Patience, err)
		default:
		}
	}
}

// Eventually waits until f reports no error.
func Eventually(t testing.TB, f func() error) {
	t.Helper()
	err := poll(func() (bool, error) {
		err := f()
		return err == nil, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopTime is how long one child may take to end after SIGTERM.
const stopTime = 15 * time.Second

// child is one started process in a process group of its own.
type child struct {
	process process
	command *exec.Cmd
	tail    *tail
	exited  chan error
}

// children owns the processes. All are started from one locked thread that
// lives until stop, because the signal that ends them with their parent follows
// the thread that started them.
type children struct {
	env     []string
	started []*child
	orders  chan func()
	thread  sync.WaitGroup
	// failed gets the first child that ends by itself.
	failed   chan error
	stopping chan struct{}
}

func newChildren(env []string) *children {
	c := &children{env: env, orders: make(chan func()), failed: make(chan error, 1), stopping: make(chan struct{})}
	c.thread.Go(func() {
		runtime.LockOSThread()
		for f := range c.orders {
			f()
		}
	})
	return c
}

// start runs a process and waits for its ready line.
func (c *children) start(ctx context.Context, p process) error {
	path, err := pathOf(p.program)
	if err != nil {
		return err
	}
	ch := &child{process: p, command: exec.Command(path, p.args...), tail: &tail{}, exited: make(chan error, 1)}
	ch.command.Env, ch.command.Stderr = c.env, ch.tail
	ch.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	out, err := ch.command.StdoutPipe()
	if err != nil {
		return err
	}
	begun := make(chan error)
	c.orders <- func() { begun <- ch.command.Start() }
	if err := <-begun; err != nil {
		return fmt.Errorf("start %s: %w", p.label, err)
	}
	c.started = append(c.started, ch)
	ready := make(chan struct{})
	c.thread.Go(func() { ch.watch(out, ready, c) })
	timeout := time.NewTimer(60 * time.Second)
	defer timeout.Stop()
	select {
	case <-ready:
		return nil
	case err := <-c.failed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timeout.C:
		return fmt.Errorf("%s is not ready after 60 s: %s", p.label, ch.tail)
	}
}

// watch reads a child's output to its end and reports how it ended.
func (ch *child) watch(out io.Reader, ready chan<- struct{}, c *children) {
	lines := bufio.NewScanner(out)
	for said := false; lines.Scan(); {
		if !said && strings.Contains(lines.Text(), " ready: ") {
			said = true
			close(ready)
		}
	}
	err := ch.command.Wait()
	select {
	case <-c.stopping:
	default:
		select {
		case c.failed <- fmt.Errorf("%s ended by itself (%v): %s", ch.process.label, ch.command.ProcessState, ch.tail):
		default:
		}
	}
	ch.exited <- err
}

// stop ends the children in the order router, prefill, decode, each one
// together with its group, and waits for them.
func (c *children) stop() error {
	close(c.stopping)
	order := []string{"router", "prefill", "decode"}
	var all []error
	for _, kind := range order {
		for _, ch := range c.started {
			if strings.HasPrefix(ch.process.label, kind) {
				all = append(all, ch.stop())
			}
		}
	}
	close(c.orders)
	c.thread.Wait()
	return errors.Join(all...)
}

func (ch *child) stop() error {
	group := -ch.command.Process.Pid
	_ = syscall.Kill(group, syscall.SIGTERM) // it may have ended
	timer := time.NewTimer(stopTime)
	defer timer.Stop()
	select {
	case err := <-ch.exited:
		if err != nil {
			return fmt.Errorf("%s: %w: %s", ch.process.label, err, ch.tail)
		}
		return nil
	case <-timer.C:
		_ = syscall.Kill(group, syscall.SIGKILL)
		<-ch.exited
		return fmt.Errorf("%s did not stop within %v and was killed: %s", ch.process.label, stopTime, ch.tail)
	}
}

// tail keeps the last lines that a child logged.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// Write keeps the last 2 KiB.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - 2048; over > 0 {
		t.text = t.text[over:]
	}
	return len(b), nil
}

// String gives the last line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return lines[len(lines)-1]
}

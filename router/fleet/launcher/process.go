package launcher

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hw-native-sys/pypto-pd/router/fleet"
)

// start starts a process of this machine. After an error there is none.
func (l *Launcher) start(x fleet.Launch, exited func(error)) error {
	c := x.LaunchCommand()
	env := c.Environ(l.o.Env)
	program, err := find(c.Args[0], env)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Args[0], err)
	}
	if info, err := os.Stat(cmp.Or(c.Dir, "/")); err != nil {
		return fmt.Errorf("working directory: %w", err)
	} else if !info.IsDir() {
		return fmt.Errorf("working directory: %s is none", c.Dir)
	}
	if err := os.MkdirAll(filepath.Dir(c.Log), 0o755); err != nil {
		return fmt.Errorf("folder of the log: %w", err)
	}
	if err := ours(filepath.Dir(c.Log)); err != nil {
		return err
	}
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	defer log.Close() // the process has its own
	if _, err := fmt.Fprintf(log, "=== %s %s\n", time.Now().UTC().Format(time.RFC3339), c.Header); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	// What cannot be written is told before there is a process. An earlier one's
	// number is gone with it.
	if err := os.WriteFile(c.Pid, nil, 0o644); err != nil {
		return fmt.Errorf("pid file: %w", err)
	}
	cmd := &exec.Cmd{Path: program, Args: c.Args, Env: env, Dir: c.Dir, Stdout: log, Stderr: log}
	// Of a session of its own: no signal that ends the router's ends it, and a
	// stop finds its children. Its end is not tied to the router's.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return l.reaper.add(&child{slot: x.Slot.Name, instance: x.Instance, log: c.Log, exited: exited}, func() (int, error) {
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		pid := cmd.Process.Pid
		if err := os.WriteFile(c.Pid, fmt.Appendf(nil, "%d %s %s\n", pid, startTime(pid), x.Instance), 0o644); err != nil {
			l.o.Log.Warn("pid file not written; the slot's mark still leads to the process", "slot", x.Slot.Name, "pid", pid, "err", err)
		}
		// The reaper waits by number; what the handle holds is not needed.
		_ = cmd.Process.Release()
		return pid, nil
	})
}

// ours refuses a folder that is not the user's own or that everybody may write to:
// the pid file in it says what a stop ends.
func ours(folder string) error {
	info, err := os.Stat(folder)
	if err != nil {
		return fmt.Errorf("folder of the log: %w", err)
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	if owner != os.Geteuid() || info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("log_dir %s has mode %v and owner %d: it must belong to user %d, and nobody else may write to it; set log_dir to another folder", folder, info.Mode().Perm(), owner, os.Geteuid())
	}
	return nil
}

// startTime tells a process from a later one with its number; "0" if it cannot
// be read.
func startTime(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The fields follow the name, which may have brackets of its own.
	const afterName = 19
	if fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])); len(fields) > afterName {
		return fields[afterName]
	}
	return "0"
}

// child is a launched process that has not been reaped.
type child struct {
	slot, instance, log string
	exited              func(error)
	// expected: it is being stopped, and its end is no news. Guarded by the
	// reaper's mu.
	expected bool
}

// reaper waits for launched processes. It does not block in a wait, which nothing
// but the process could end: the kernel's signal makes it look.
type reaper struct {
	log     *slog.Logger
	signals chan os.Signal // of size one: one look sees all
	quit    chan struct{}
	running sync.WaitGroup

	mu sync.Mutex
	// guarded by mu
	children map[int]*child
	started  bool
	closed   bool
}

func (r *reaper) init(log *slog.Logger) {
	r.log, r.signals, r.quit, r.children = log, make(chan os.Signal, 1), make(chan struct{}), map[int]*child{}
}

var errClosed = errors.New("the launcher is closed")

// add starts a process and takes its end over.
func (r *reaper) add(c *child, start func() (int, error)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	if !r.started {
		r.started = true
		signal.Notify(r.signals, syscall.SIGCHLD)
		r.running.Go(r.run)
	}
	// Under the lock: a look between the start and the note would miss the end.
	pid, err := start()
	if err != nil {
		return err
	}
	r.children[pid] = c
	return nil
}

// expect says that a slot's process is being stopped.
func (r *reaper) expect(slot, instance string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.children {
		if c.slot == slot && c.instance == instance {
			c.expected = true
		}
	}
}

func (r *reaper) close() {
	r.mu.Lock()
	closed := r.closed
	r.closed = true
	r.mu.Unlock()
	if !closed {
		close(r.quit)
	}
	r.running.Wait()
}

func (r *reaper) run() {
	defer signal.Stop(r.signals)
	for {
		select {
		case <-r.signals:
			r.look()
		case <-r.quit:
			return
		}
	}
}

// look reaps what has ended and tells about it, without the lock.
func (r *reaper) look() {
	var tell []func()
	r.mu.Lock()
	for pid, c := range r.children {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
		if got != pid && !errors.Is(err, syscall.ECHILD) {
			continue
		}
		delete(r.children, pid)
		expected := c.expected
		tell = append(tell, func() { r.ended(c, pid, status, err, expected) })
	}
	r.mu.Unlock()
	for _, f := range tell {
		f()
	}
}

// ended tells about one process. An end with status 0 is normal: a broker queues
// its job and returns.
func (r *reaper) ended(c *child, pid int, status syscall.WaitStatus, err error, expected bool) {
	why := fmt.Sprintf("exit status %d", status.ExitStatus())
	switch {
	case err != nil:
		why = "unknown: somebody else has reaped it"
	case status.Signaled():
		why = "signal: " + status.Signal().String()
	}
	r.log.Info("launched process ended", "slot", c.slot, "instance", c.instance, "pid", pid, "end", why, "expected", expected)
	if expected || err == nil && status.Exited() && status.ExitStatus() == 0 {
		return
	}
	text := "the process of " + c.slot + " has ended: " + why
	if last, err := readTail(c.log, tailMax); err == nil {
		text += ": " + (&tail{limit: tailMax, kept: last}).text()
	}
	c.exited(errors.New(text))
}

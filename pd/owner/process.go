package owner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// The descriptors that an owner process inherits, beside the standard ones.
const (
	connFD = 3 + iota
	memoryFD
	lockFD
)

// Children starts owner processes: this program again, with other arguments.
//
// The kernel ends a child when the *thread* that started it ends
// (PR_SET_PDEATHSIG), so one thread starts all of them and lives until Close.
type Children struct {
	// constant
	args   []string
	env    func(pd.Rank) []string
	lock   *BootLock
	stderr io.Writer
	orders chan func()
	thread sync.WaitGroup
}

// ChildOptions describe owner processes.
type ChildOptions struct {
	// Program is what is started; empty means this program, by the file that runs
	// and not by its name, which may be another's by now.
	Program string
	// Args are its arguments, without the program.
	Args []string
	// Env is its environment; nil means this process's. RankEnv is added to that of
	// one rank, for the card that it is to see.
	Env     []string
	RankEnv func(pd.Rank) []string
	// Lock is inherited by each child, so that the boot lives as long as the last of
	// them.
	Lock *BootLock
	// Stderr is where the children log.
	Stderr io.Writer
}

// NewChildren starts the thread. Close ends it, after the groups whose owners it
// started were closed.
func NewChildren(o ChildOptions) (*Children, error) {
	if err := CheckPidfd(); err != nil {
		return nil, err
	}
	if o.Program == "" {
		o.Program = "/proc/self/exe"
	}
	c := &Children{args: append([]string{o.Program}, o.Args...), env: o.env, lock: o.Lock, stderr: o.Stderr, orders: make(chan func())}
	c.thread.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for f := range c.orders {
			f()
		}
	})
	return c, nil
}

func (o *ChildOptions) env(rank pd.Rank) []string {
	env := o.Env
	if env == nil {
		env = os.Environ()
	}
	if o.RankEnv == nil {
		return env
	}
	return append(slices.Clone(env), o.RankEnv(rank)...)
}

// Close ends the thread, and with it every child that still runs.
func (c *Children) Close() {
	close(c.orders)
	c.thread.Wait()
}

// Launch starts the owner process of one rank (Config.Launch).
func (c *Children) Launch(_ context.Context, rank pd.Rank) (*Process, error) {
	memory, err := newMemoryFile(fmt.Sprintf("pypto-pd-rank-%d", rank))
	if err != nil {
		return nil, err
	}
	conn, far, err := socketPair()
	if err != nil {
		memory.Close()
		return nil, err
	}
	defer far.Close()
	command := exec.Command(c.args[0], c.args[1:]...)
	command.Args[0] = os.Args[0] // what people see in a list of processes
	command.Env, command.Stderr = c.env(rank), c.stderr
	command.ExtraFiles = []*os.File{far, memory}
	if c.lock != nil {
		command.ExtraFiles = append(command.ExtraFiles, c.lock.file)
	}
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	c.orders <- func() { started <- command.Start() }
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("start the owner process: %w", err), conn.Close(), memory.Close())
	}
	ended := make(chan struct{})
	go func() {
		_ = command.Wait() // the state says it all
		close(ended)
	}()
	return &Process{
		Conn: conn, Memory: memory, PID: command.Process.Pid, Ended: ended,
		How: func() error { return howEnded(command.ProcessState) },
		// By its pidfd: the number may be another process's by then.
		Kill: func() { _ = command.Process.Kill() },
	}, nil
}

// howEnded words the end of a process for people.
func howEnded(s *os.ProcessState) error {
	w, ok := s.Sys().(syscall.WaitStatus)
	switch {
	case ok && w.Signaled() && w.CoreDump():
		return fmt.Errorf("was ended by signal %d (%v), core dumped", int(w.Signal()), w.Signal())
	case ok && w.Signaled():
		return fmt.Errorf("was ended by signal %d (%v)", int(w.Signal()), w.Signal())
	}
	return fmt.Errorf("has ended by itself: %v", s)
}

// socketPair gives the node's end as a connection, the owner's as a file.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a connection: %w", err)
	}
	far := os.NewFile(uintptr(fds[1]), "owner")
	near := os.NewFile(uintptr(fds[0]), "node")
	defer near.Close()
	conn, err := unixConn(near)
	if err != nil {
		far.Close()
		return nil, nil, err
	}
	return conn, far, nil
}

// unixConn makes a connection of a file, which stays the caller's.
func unixConn(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", f.Fd(), err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("descriptor %d is no local socket", f.Fd())
	}
	return u, nil
}

// ErrNoOwner is the error of Inherited in a process that no node has started.
var ErrNoOwner = errors.New("an owner process is started by its node; it has no use by itself")

// Inherited gives what Children.Launch has handed to this process. The caller
// fills in the rest. The boot lock stays open until the process ends.
func Inherited() (ServeConfig, error) {
	var all [3]*os.File
	for i, kind := range [...]uint32{syscall.S_IFSOCK, syscall.S_IFREG, syscall.S_IFREG} { // connFD, memoryFD, lockFD
		fd := connFD + i
		// The runtime opens descriptors of its own, which may have these numbers where
		// no node has taken them: then they are nothing of the kind.
		var is syscall.Stat_t
		if err := syscall.Fstat(fd, &is); err != nil || is.Mode&syscall.S_IFMT != kind {
			if fd == lockFD {
				break // the node has no lock to share
			}
			return ServeConfig{}, ErrNoOwner
		}
		// Owners start no children, and a library that does must not hand these on.
		syscall.CloseOnExec(fd)
		all[i] = os.NewFile(uintptr(fd), "inherited")
	}
	conn, err := unixConn(all[0])
	if err != nil {
		return ServeConfig{}, ErrNoOwner
	}
	all[0].Close()
	return ServeConfig{Conn: conn, Memory: all[1], Lock: all[2]}, nil
}

package owner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Rendezvous is where the owner of one rank, in a process that its node did not
// start, waits for that node: a socket that only its own user may open. The
// process lives on when its node has ended, and waits for the next.
type Rendezvous struct{ listener *net.UnixListener }

// Meet makes the socket. One that nobody listens on any more is taken over.
func Meet(path string) (*Rendezvous, error) {
	bad := func(text string, err error) error {
		return &pd.Error{Op: "serve", Code: pd.CodeInvalidConfig, Text: fmt.Sprintf("socket %s: %s", path, text), Err: err}
	}
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, bad("another owner waits there; give each rank its own", nil)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, bad("there is something else by that name", nil)
	} else if err == nil {
		if err := os.Remove(path); err != nil {
			return nil, bad("the one of an earlier owner cannot be removed", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, bad("cannot listen (a path has at most 107 bytes)", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, bad("cannot be made private", err)
	}
	return &Rendezvous{listener: l.(*net.UnixListener)}, nil
}

// Accept waits for a node. The caller fills in the rest of what it gets, and
// closes Lock after Serve has returned.
func (r *Rendezvous) Accept(ctx context.Context) (ServeConfig, error) {
	stop := context.AfterFunc(ctx, func() { _ = r.listener.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		conn, err := r.listener.AcceptUnix()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return ServeConfig{}, context.Cause(ctx)
		}
		if err != nil {
			return ServeConfig{}, fmt.Errorf("wait for the node: %w", err)
		}
		lock, err := receiveLock(conn)
		if err != nil {
			conn.Close() // no node; the next may be one
			continue
		}
		return ServeConfig{Conn: conn, Lock: lock}, nil
	}
}

// Close removes the socket.
func (r *Rendezvous) Close() error { return r.listener.Close() }

// receiveLock takes the node's boot lock, the first thing that a node sends:
// the boot lives as long as a process that holds it, and with it the promise
// that no other boot uses this memory.
func receiveLock(conn *net.UnixConn) (*os.File, error) {
	if err := conn.SetReadDeadline(time.Now().Add(orderTimeout)); err != nil {
		return nil, err
	}
	var first [1]byte
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(first[:], rights)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return nil, errors.New("no boot lock came along")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.New("no boot lock came along")
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "boot lock"), conn.SetReadDeadline(time.Time{})
}

// Visit gives Config.Launch for owners that wait at these sockets, by rank. Each
// shares the node's boot lock.
func Visit(paths []string, lock *BootLock) func(context.Context, pd.Rank) (*Process, error) {
	return func(ctx context.Context, rank pd.Rank) (*Process, error) {
		if int(rank) >= len(paths) {
			return nil, pd.Errorf(pd.CodeInvalidConfig, "start", "rank %d: only %d sockets of owners are given", rank, len(paths))
		}
		path := paths[rank]
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", path)
		if err != nil {
			return nil, &pd.Error{Op: "start", Code: pd.CodeOwnerLost, Text: fmt.Sprintf("rank %d: no owner waits at %s", rank, path), Err: err}
		}
		conn := c.(*net.UnixConn)
		p, err := visit(conn, lock)
		if err != nil {
			conn.Close()
			return nil, &pd.Error{Op: "start", Code: pd.CodeOwnerLost, Text: fmt.Sprintf("rank %d at %s", rank, path), Err: err}
		}
		return p, nil
	}
}

func visit(conn *net.UnixConn, lock *BootLock) (*Process, error) {
	if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(int(lock.file.Fd())), nil); err != nil {
		return nil, fmt.Errorf("share the boot lock: %w", err)
	}
	pid, err := peerOf(conn)
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err := explainPidfd(err); err != nil {
		return nil, err
	}
	watched := os.NewFile(uintptr(fd), "owner process")
	ended := make(chan struct{})
	go func() {
		if awaitEnd(watched) {
			close(ended)
		}
	}()
	return &Process{
		Conn: conn, PID: pid, Foreign: true, Ended: ended,
		How:  func() error { return errors.New("has ended") },
		Kill: func() { watched.Close() },
	}, nil
}

// peerOf is the process at the other end, which must be seen from here.
func peerOf(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var who *syscall.Ucred
	failed := raw.Control(func(fd uintptr) { who, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED) })
	switch {
	case errors.Join(failed, err) != nil:
		return 0, fmt.Errorf("ask who is there: %w", errors.Join(failed, err))
	case who.Pid <= 0:
		return 0, errors.New("the owner is in another pid namespace: its death could not be seen; run both in one")
	}
	return int(who.Pid), nil
}

// awaitEnd waits until a process has ended, or its descriptor is closed.
func awaitEnd(pidfd *os.File) (ended bool) {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, _ := unix.Poll(poll, 0)
		ended = n > 0
		return ended
	})
	return ended && err == nil
}

package edge

import (
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// watch notices that clients have left. A second epoll holds every client
// connection once, edge-triggered for EPOLLRDHUP alone, so that pipelined
// bytes are no alarm; it is itself readable in the runtime's poller, so that
// waiting costs no thread.
type watch struct {
	// constant
	fd   int
	file *os.File

	mu sync.Mutex
	// guarded by mu. Keys are never reused, so that an event that was already
	// on its way when its connection closed finds nobody.
	next  uint64
	conns map[uint64]*conn
}

func newWatch() (*watch, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create hang-up watch: %w", err)
	}
	// Non-blocking, else os.NewFile would not hand it to the runtime's poller.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("create hang-up watch: %w", err)
	}
	return &watch{fd: fd, file: os.NewFile(uintptr(fd), "hang-up watch"), conns: map[uint64]*conn{}}, nil
}

// add starts watching; remove must follow before the descriptor is closed.
func (w *watch) add(c *conn, nc *net.TCPConn) error {
	w.mu.Lock()
	w.next++
	c.watchKey = w.next
	w.conns[c.watchKey] = c
	w.mu.Unlock()
	raw, err := nc.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch connection: %w", err)
	}
	event := unix.EpollEvent{
		Events: unix.EPOLLRDHUP | unix.EPOLLET,
		Fd:     int32(uint32(c.watchKey)),
		Pad:    int32(uint32(c.watchKey >> 32)),
	}
	var addErr error
	if err := raw.Control(func(fd uintptr) {
		addErr = unix.EpollCtl(w.fd, unix.EPOLL_CTL_ADD, int(fd), &event)
	}); err != nil {
		return fmt.Errorf("watch connection: %w", err)
	}
	if addErr != nil {
		return fmt.Errorf("watch connection: %w", addErr)
	}
	return nil
}

// remove stops watching; closing the descriptor takes it out of the epoll.
func (w *watch) remove(c *conn) {
	w.mu.Lock()
	delete(w.conns, c.watchKey)
	w.mu.Unlock()
}

// run delivers hang-ups until close.
func (w *watch) run() error {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("run hang-up watch: %w", err)
	}
	events := make([]unix.EpollEvent, 128)
	for {
		var n int
		var waitErr error
		err := raw.Read(func(fd uintptr) bool {
			n, waitErr = unix.EpollWait(int(fd), events, 0)
			if waitErr == unix.EINTR {
				n, waitErr = 0, nil
			}
			return n > 0 || waitErr != nil
		})
		if err != nil {
			return nil // closed
		}
		if waitErr != nil {
			return fmt.Errorf("run hang-up watch: %w", waitErr)
		}
		for _, e := range events[:n] {
			key := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			w.mu.Lock()
			c := w.conns[key]
			w.mu.Unlock()
			if c != nil {
				c.cancel(ErrClientGone)
			}
		}
	}
}

// close ends run.
func (w *watch) close() { w.file.Close() }

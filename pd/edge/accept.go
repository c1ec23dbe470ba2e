package edge

import (
	"errors"
	"sync/atomic"
	"syscall"
	"time"
)

// temporaryAccept says that accepting may work again: the client gave up in the
// queue, or the process or machine is out of descriptors or memory.
func temporaryAccept(err error) bool {
	for _, e := range []syscall.Errno{
		syscall.ECONNABORTED, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EINTR,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// dateCache renders the Date header once a second.
type dateCache struct {
	line atomic.Pointer[dateLine]
}

type dateLine struct {
	second int64
	text   string
}

func (d *dateCache) at(now time.Time) string {
	if l := d.line.Load(); l != nil && l.second == now.Unix() {
		return l.text
	}
	l := &dateLine{second: now.Unix(), text: "Date: " + now.UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT") + "\r\n"}
	d.line.Store(l)
	return l.text
}

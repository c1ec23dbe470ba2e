package edge

import (
	"bufio"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
)

// quiet waits for the next bytes of an exchange without a buffer: what a stream
// costs while nothing is said is its connections, not room for what may come.
// It takes no more system calls than a read that waits, because the first read
// after each wake-up is the attempt that fills the buffer.
type quiet struct {
	x      *Exchange
	raw    syscall.RawConn
	source *wakeSource
	err    error
	try    func(fd uintptr) bool
}

// wakeSource is what a buffer reads from: the connection, or, within an attempt,
// its descriptor, without waiting. It outlives quiet with the buffer.
type wakeSource struct {
	nc  net.Conn
	fd  int
	now bool
}

// Read implements io.Reader.
func (s *wakeSource) Read(p []byte) (int, error) {
	if !s.now {
		return s.nc.Read(p)
	}
	for {
		n, err := syscall.Read(s.fd, p)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// quietRead is nil where r is nothing that can be waited for like this: TLS may
// hold bytes that no descriptor tells of.
func quietRead(r io.Reader) *quiet {
	x, ok := r.(*Exchange)
	if !ok || x.closed || x.conn.tls != nil {
		return nil
	}
	raw, err := x.conn.nc.SyscallConn()
	if err != nil {
		return nil // the connection is closed; the read says why
	}
	q := &quiet{x: x, raw: raw, source: &wakeSource{nc: x.conn.nc}}
	q.try = q.attempt
	return q
}

// empty says that nothing of the answer has arrived that was not read, so that
// waiting is all there is to do.
func (q *quiet) empty() bool { return q.x.body.empty() }

// wait returns when there is something to read, an end and an error among it.
func (q *quiet) wait() {
	x := q.x
	putReader(x.conn.br)
	x.conn.br, x.body.br = nil, nil
	if x.readTimeout > 0 {
		x.conn.nc.SetReadDeadline(time.Now().Add(x.readTimeout))
	}
	err := q.raw.Read(q.try)
	if x.conn.br == nil {
		x.use(takeReader(q.source))
	}
	if err == nil {
		err = q.err
	}
	// An end is found again by the next read; an error may be told only once.
	if err != nil && err != io.EOF {
		x.body.err = unexpected(err)
	}
}

// attempt reads what is there into a fresh buffer; false goes on waiting.
func (q *quiet) attempt(fd uintptr) bool {
	br := takeReader(q.source)
	q.source.fd, q.source.now = int(fd), true
	_, q.err = br.Peek(1)
	q.source.now = false
	if q.err == syscall.EAGAIN {
		putReader(br)
		return false
	}
	q.x.use(br)
	return true
}

// use makes br what the rest of the answer is read from.
func (x *Exchange) use(br *bufio.Reader) { x.conn.br, x.body.br = br, br }

// Forget lets go of the answer's header lines, which are empty from then on: a
// long stream need not hold them.
func (x *Exchange) Forget() { x.conn.head = fasthttp.ResponseHeader{} }

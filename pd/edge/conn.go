package edge

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

const (
	// readBuffer is what an idle connection costs; a head that does not fit is
	// read again into a buffer of MaxHeader.
	readBuffer = 4 << 10
	// keepBody is the largest body buffer that stays with an idle connection.
	keepBody = 64 << 10
	// lingerBytes and lingerTime bound what is still read from a client that
	// was refused while it was sending: closing at once would reset the
	// connection and take the answer with it.
	lingerBytes = 1 << 20
	lingerTime  = time.Second
)

// The states of a connection. Only idle connections are closed by a drain.
const (
	connIdle   int32 = 0
	connActive int32 = 1
	connClosed int32 = 2
)

// conn is one client connection. Its goroutine reads, runs the handler and
// writes.
type conn struct {
	// constant
	server   *Server
	nc       *net.TCPConn // what is watched, closed and timed
	ctx      context.Context
	cancel   context.CancelCauseFunc
	watchKey uint64

	state atomic.Int32

	// owned by the connection's goroutine
	// stream is what requests are read from: nc, or TLS over it.
	stream net.Conn
	tls    *tls.Conn // nil without TLS
	inner  *stallConn
	joined []byte
	br     *bufio.Reader
	head   fasthttp.RequestHeader
	body   bodyReader
	call   Call
	out    []byte
	// noBody: the answer of a HEAD has a head only.
	noBody bool
	// close ends the connection after the current answer.
	close bool
	// broken: a write failed, or an answer was left unfinished.
	broken bool
}

func newConn(s *Server, nc *net.TCPConn) *conn {
	c := &conn{server: s, nc: nc, stream: nc}
	c.ctx, c.cancel = context.WithCancelCause(s.base)
	c.call.conn = c
	return c
}

// lighten gives back what a connection needs for reading requests. A client says
// nothing while its stream runs, as a rule, and that may be for long.
func (c *conn) lighten() {
	c.out, c.joined = nil, nil
	c.head = fasthttp.RequestHeader{}
	if c.br.Buffered() == 0 {
		putReader(c.br)
		c.br, c.body.br = nil, nil
	}
}

// end releases a connection that is not watched.
func (c *conn) end() {
	c.cancel(ErrClientGone)
	c.nc.Close()
}

// closeIfIdle is the drain's way to end a connection without a call.
func (c *conn) closeIfIdle() {
	if c.state.CompareAndSwap(connIdle, connClosed) {
		c.nc.Close()
	}
}

func (c *conn) serve(h Handler) {
	s := c.server
	defer c.end()
	if err := s.watch.add(c, c.nc); err != nil {
		s.config.Log.Warn("connection refused", "error", err)
		return
	}
	defer s.watch.remove(c)

	if s.tls != nil && !c.secure(s.tls) {
		return
	}
	defer c.goodbye()
	defer func() { putReader(c.br) }()
	wait := s.config.HeaderTimeout
	for {
		if c.br == nil {
			c.br = takeReader(c.stream)
		}
		c.nc.SetReadDeadline(time.Now().Add(wait))
		if _, err := c.br.Peek(1); err != nil {
			return
		}
		if !c.state.CompareAndSwap(connIdle, connActive) {
			return
		}
		if !c.one(h) || c.broken {
			return
		}
		if c.close {
			c.linger()
			return
		}
		if !c.state.CompareAndSwap(connActive, connIdle) {
			return
		}
		// A drain that began while the call ran found it active.
		if s.isDraining() {
			return
		}
		wait = s.config.IdleTimeout
	}
}

// one reads and answers one request; false ends the connection at once.
func (c *conn) one(h Handler) bool {
	s := c.server
	c.noBody, c.close = false, s.isDraining()
	c.nc.SetReadDeadline(time.Now().Add(s.config.HeaderTimeout))
	if err := c.readHead(); err != nil {
		return c.refuseHead(err)
	}
	c.close = c.close || c.head.ConnectionClose()
	c.noBody = string(c.head.Method()) == "HEAD"
	if why := c.framing(); why != "" {
		c.refuse(400, why)
		c.linger()
		return false
	}
	c.call.begin()
	if answered, ok := c.admit(); answered || !ok {
		return ok
	}
	if !c.readBody() {
		return false
	}
	c.run(h)
	if !c.call.answered && !c.broken {
		c.refuse(500, "the request was not answered")
		return false
	}
	c.call.end()
	return true
}

// admit shows the server's Admit a request whose body was not read. When that has
// answered, a body that is already here is dropped; for another one nobody waits,
// and the connection ends with the answer.
func (c *conn) admit() (answered, ok bool) {
	admit := c.server.first
	if admit == nil {
		return false, true
	}
	length := max(c.head.ContentLength(), 0)
	here := c.head.ContentLength() != lengthChunked && length <= c.br.Buffered()
	closing := c.close
	c.close = closing || !here
	c.call.body = c.call.body[:0]
	switch whole := c.run(admit); {
	case !whole && !c.call.answered:
		// A check that panicked has let nobody in.
		c.refuse(500, "the request was not answered")
		return true, false
	case !c.call.answered:
		c.close = closing
		return false, true
	}
	if here {
		c.br.Discard(length)
	}
	c.call.end()
	return true, true
}

// readHead reads one request head, in a larger buffer when it does not fit.
func (c *conn) readHead() error {
	c.head.DisableNormalizing()
	err := c.head.Read(c.br)
	if _, small := errors.AsType[*fasthttp.ErrSmallBuffer](err); small && c.br.Size() < c.server.config.MaxHeader {
		c.br = enlarge(c.br, c.stream, c.server.config.MaxHeader)
		err = c.head.Read(c.br)
	}
	return err
}

func (c *conn) refuseHead(err error) bool {
	if _, small := errors.AsType[*fasthttp.ErrSmallBuffer](err); small {
		c.refuse(431, fmt.Sprintf("the request head exceeds %d bytes", c.server.config.MaxHeader))
		c.linger()
		return false
	}
	switch {
	case isTimeout(err):
		c.refuse(408, "the request head did not arrive in time")
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), isReset(err):
	default:
		// The parser's words quote the input; they stay here.
		c.refuse(400, "malformed HTTP request head")
		c.linger()
	}
	return false
}

// framing names what makes the body's length ambiguous, or "". fasthttp refuses
// repeated lengths and codings; what it tolerates is refused here.
func (c *conn) framing() string {
	length, coding := false, false
	for line := range bytes.Lines(c.head.RawHeaders()) {
		if line[0] == ' ' || line[0] == '\t' {
			return "header lines must not be folded"
		}
		name, _, _ := bytes.Cut(line, []byte{':'})
		switch {
		case len(name) == len("Content-Length") && bytes.EqualFold(name, []byte("Content-Length")):
			length = true
		case len(name) == len("Transfer-Encoding") && bytes.EqualFold(name, []byte("Transfer-Encoding")):
			coding = true
		}
		if bytes.IndexByte(name, ' ') >= 0 {
			return "header names must not hold spaces"
		}
		if len(line) < 2 || line[len(line)-2] != '\r' {
			return "header lines must end with CRLF"
		}
	}
	switch {
	case length && coding:
		return "Content-Length and Transfer-Encoding exclude each other"
	case coding && c.head.ContentLength() != lengthChunked:
		return "the only transfer coding understood is chunked"
	}
	return ""
}

func (c *conn) readBody() bool {
	s := c.server
	length := int64(c.head.ContentLength())
	if length == lengthToClose {
		length = 0 // a request without a length has no body
	}
	c.body.reset(c.br, length)
	if length == 0 {
		c.call.body = c.call.body[:0]
		return true
	}
	tooLarge := func() bool {
		c.refuseBody(413, fmt.Sprintf("the request body exceeds %d bytes", s.config.MaxBody))
		c.linger()
		return false
	}
	if length > int64(s.config.MaxBody) {
		return tooLarge()
	}
	c.nc.SetReadDeadline(time.Now().Add(s.config.BodyTimeout))
	if c.head.IsHTTP11() && bytes.EqualFold(c.head.Peek("Expect"), []byte("100-continue")) && c.br.Buffered() == 0 {
		if c.write([]byte("HTTP/1.1 100 Continue\r\n\r\n")) != nil {
			return false
		}
	}
	var err error
	c.call.body, err = c.body.readAll(c.call.body[:0], s.config.MaxBody)
	switch {
	case err == nil:
		return true
	case errors.Is(err, errBodyTooLarge):
		return tooLarge()
	case isTimeout(err):
		c.refuseBody(408, "the request body did not arrive in time")
		c.linger()
	case errors.Is(err, errMalformed):
		c.refuseBody(400, err.Error())
		c.linger()
	}
	return false
}

// run calls the handler, and says whether it returned. A handler that panics has a
// bug; the other clients' streams are not to end for it.
func (c *conn) run(h Handler) (whole bool) {
	defer func() {
		if p := recover(); p != nil {
			c.server.config.Log.Error("handler panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			c.broken = c.call.answered
			c.close = true
		}
	}()
	h(&c.call)
	return true
}

// refuse answers by itself; the connection ends with it.
func (c *conn) refuse(status int, message string) {
	// The call may still be that of the request before.
	c.call.header, c.call.answered = c.call.header[:0], false
	c.reject(status, message)
}

// refuseBody is refuse for a request whose head was understood.
func (c *conn) refuseBody(status int, message string) {
	c.call.begin()
	c.call.body = c.call.body[:0]
	if refusing := c.server.config.Refusing; refusing != nil {
		refusing(&c.call, status)
	}
	c.reject(status, message)
}

// reject answers. No handler knows of it, so it is told here.
func (c *conn) reject(status int, message string) {
	c.server.config.Log.Info("request refused", "client", c.nc.RemoteAddr(), "status", status, "why", message)
	c.close = true
	contentType, body := c.server.config.Refuse(status, message)
	c.call.Reply(status, contentType, body)
}

// linger ends a connection whose client may still be sending.
func (c *conn) linger() {
	c.goodbye()
	c.nc.CloseWrite()
	c.nc.SetReadDeadline(time.Now().Add(lingerTime))
	io.CopyN(io.Discard, c.nc, lingerBytes)
}

// write sends everything or breaks the connection. A client that takes at least
// one byte per WriteStall is slow, not dead.
func (c *conn) write(parts ...[]byte) error {
	if c.broken {
		return ErrClientGone
	}
	if c.tls != nil {
		if err := c.writeTLS(parts); err != nil {
			c.broken = true
			c.cancel(ErrClientGone)
			return fmt.Errorf("%w: %w", ErrClientGone, err)
		}
		return nil
	}
	bufs := net.Buffers(parts)
	for {
		c.nc.SetWriteDeadline(time.Now().Add(c.server.config.WriteStall))
		n, err := bufs.WriteTo(c.nc)
		if err == nil {
			return nil
		}
		if n > 0 && isTimeout(err) {
			continue
		}
		c.broken = true
		c.cancel(ErrClientGone)
		return fmt.Errorf("%w: %w", ErrClientGone, err)
	}
}

package edge

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

var headBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 2<<10); return &b }}

// Exchange is one request on one upstream connection. Except for Abort its
// methods belong to one goroutine. The caller closes it; the connection is used
// again only if the whole answer was read.
type Exchange struct {
	// constant
	client      *Client
	conn        *clientConn
	peer        peer
	reused      bool
	head        bool // the request was HEAD
	headTimeout time.Duration
	readTimeout time.Duration
	unwatch     func() bool

	// why is set once, before the connection is closed from outside, because
	// the read that ends with it reports no more than a closed connection.
	why atomic.Pointer[error]

	// owned by the exchange's goroutine
	body    bodyReader
	status  int
	keep    bool
	closed  bool
	sendErr error
}

func newExchange(ctx context.Context, c *Client, k *clientConn, r Request, reused bool) *Exchange {
	x := &Exchange{
		client: c, conn: k, peer: r.peer(), reused: reused, head: r.Method == "HEAD",
		headTimeout: r.HeadTimeout, readTimeout: r.ReadTimeout,
	}
	x.unwatch = context.AfterFunc(ctx, func() { x.Abort(context.Cause(ctx)) })
	return x
}

// Abort closes the connection from any goroutine; what waits on it returns why.
func (x *Exchange) Abort(why error) {
	if x.why.CompareAndSwap(nil, &why) {
		x.conn.nc.Close()
	}
}

// fail words an error of the connection: the reason of an abort comes first.
func (x *Exchange) fail(phase Phase, err error) error {
	if why := x.why.Load(); why != nil {
		err = *why
	} else if err == io.EOF || err == io.ErrUnexpectedEOF || isReset(err) {
		err = ErrEarlyEnd
	}
	return &ExchangeError{Phase: phase, Address: x.peer.address, Reused: x.reused, Err: err}
}

func (x *Exchange) sendRequest(r Request) error {
	pooled := headBuffers.Get().(*[]byte)
	defer headBuffers.Put(pooled)
	b := append((*pooled)[:0], r.Method...)
	b = append(b, ' ')
	b = append(b, r.Target...)
	b = append(b, " HTTP/1.1\r\n"...)
	host := r.Host
	if host == "" {
		host = r.Address
	}
	b = appendField(b, "Host", host)
	for _, f := range r.Header {
		if !requestFraming(f.Name) {
			b = appendField(b, f.Name, f.Value)
		}
	}
	if len(r.Body) > 0 || !r.repeatable() {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, int64(len(r.Body)), 10)
		b = append(b, "\r\n"...)
	}
	if x.client.config.MaxIdle == 0 {
		// Nobody will use the connection again; its end is for the server to keep.
		b = append(b, "Connection: close\r\n"...)
	}
	b = append(b, "\r\n"...)
	*pooled = b
	switch err := x.conn.write(b, r.Body, x.client.config.WriteStall); {
	case err == nil:
		return nil
	case isReset(err) && x.why.Load() == nil:
		// The peer may have answered before it read everything and closed;
		// Await finds that answer, or this error.
		x.sendErr = err
		return nil
	default:
		return x.fail(PhaseSend, err)
	}
}

// write sends a request. A peer that takes at least one byte per stall is slow,
// not dead.
func (k *clientConn) write(head, body []byte, stall time.Duration) error {
	if k.tls != nil {
		if len(head)+len(body) <= joinBytes {
			head, body = append(head, body...), nil
		}
		_, err := k.tls.Write(head)
		if err == nil && len(body) > 0 {
			_, err = k.tls.Write(body)
		}
		return err
	}
	bufs := net.Buffers{head}
	if len(body) > 0 {
		bufs = append(bufs, body)
	}
	for {
		k.nc.SetWriteDeadline(time.Now().Add(stall))
		if n, err := bufs.WriteTo(k.nc); err == nil || n == 0 || !isTimeout(err) {
			return err
		}
	}
}

func requestFraming(name string) bool {
	switch len(name) {
	case len("Host"):
		return strings.EqualFold(name, "Host")
	case len("Content-Length"):
		return strings.EqualFold(name, "Content-Length")
	case len("Transfer-Encoding"):
		return strings.EqualFold(name, "Transfer-Encoding")
	}
	return false
}

// Await waits for the answer's head. It is called once, before Status, the
// headers and Read.
func (x *Exchange) Await() error {
	var deadline time.Time
	switch {
	case x.sendErr != nil:
		deadline = time.Now().Add(lingerTime)
	case x.headTimeout > 0:
		deadline = time.Now().Add(x.headTimeout)
	}
	x.conn.nc.SetReadDeadline(deadline)
	if _, err := x.conn.br.Peek(1); err != nil {
		return x.headError(err)
	}
	if err := x.conn.readHead(x.client.config.MaxHeader); err != nil {
		return x.headError(err)
	}
	h := &x.conn.head
	x.status = h.StatusCode()
	x.keep = !h.ConnectionClose() && x.sendErr == nil
	length := int64(h.ContentLength())
	if x.head || noContent(x.status) {
		length = 0
	}
	x.body.reset(x.conn.br, length)
	x.conn.nc.SetReadDeadline(time.Time{})
	return nil
}

func (x *Exchange) headError(err error) error {
	switch {
	case x.sendErr != nil:
		return x.fail(PhaseSend, x.sendErr)
	case isTimeout(err) || errors.Is(err, fasthttp.ErrTimeout):
		return x.fail(PhaseHead, fmt.Errorf("%w (%v)", ErrHeadTimeout, x.headTimeout))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), isReset(err), errors.Is(err, net.ErrClosed):
		return x.fail(PhaseHead, ErrEarlyEnd)
	}
	if _, small := errors.AsType[*fasthttp.ErrSmallBuffer](err); small {
		return x.fail(PhaseHead, fmt.Errorf("%w: its head exceeds %d bytes", ErrTooLarge, x.client.config.MaxHeader))
	}
	// The parser's words quote the answer; they stay here.
	return x.fail(PhaseHead, fmt.Errorf("%w: its head cannot be read", errMalformed))
}

// Status is the answer's status.
func (x *Exchange) Status() int { return x.status }

// Address is the peer that was dialled.
func (x *Exchange) Address() string { return x.peer.address }

// Headers iterates over the answer's header lines; repeated ones stay apart,
// and set-cookie lines are whole. The strings may be kept.
func (x *Exchange) Headers() iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for n, v := range x.conn.head.All() {
			if !yield(string(n), string(v)) {
				return
			}
		}
	}
}

// Header is the first value of a header, "" if absent. Names match in any case.
func (x *Exchange) Header(name string) string {
	for n, v := range x.conn.head.All() {
		if len(n) == len(name) && bytes.EqualFold(n, bytesOf(name)) {
			return string(v)
		}
	}
	return ""
}

// Fields copies the answer's header lines.
func (x *Exchange) Fields() []Field {
	var out []Field
	for n, v := range x.Headers() {
		out = append(out, Field{n, v})
	}
	return out
}

// Length is the announced length of the body, negative if unknown.
func (x *Exchange) Length() int64 { return x.body.length }

// Read gives the answer's body as it arrives. It returns io.EOF only when the
// answer is complete, as far as its framing tells; other errors are
// *ExchangeError of PhaseBody.
func (x *Exchange) Read(p []byte) (int, error) {
	if x.closed {
		return 0, x.fail(PhaseBody, ErrExchangeClosed)
	}
	if x.readTimeout > 0 && x.conn.br.Buffered() == 0 {
		x.conn.nc.SetReadDeadline(time.Now().Add(x.readTimeout))
	}
	n, err := x.body.Read(p)
	switch {
	case err == nil || n > 0:
		return n, nil
	case err == io.EOF:
		return 0, io.EOF
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, x.fail(PhaseBody, fmt.Errorf("%w (%v)", ErrReadTimeout, x.readTimeout))
	}
	return 0, x.fail(PhaseBody, err)
}

// ReadAll reads the whole body, at most limit bytes; a longer one is ErrTooLarge.
func (x *Exchange) ReadAll(limit int) ([]byte, error) {
	tooLarge := func() ([]byte, error) {
		return nil, x.fail(PhaseBody, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit))
	}
	if x.body.length > int64(limit) {
		return tooLarge()
	}
	body := make([]byte, 0, min(max(x.body.length, 512), 64<<10))
	for {
		if len(body) == cap(body) {
			body = append(body, 0)[:len(body)]
		}
		n, err := x.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case len(body) > limit:
			return tooLarge()
		case err == io.EOF:
			return body, nil
		case err != nil:
			return nil, err
		}
	}
}

// Drain reads and drops what is left of an answer that is as good as over, so
// that its connection can be used again and its sender sees a proper end. It
// gives up after the given time or a few kilobytes, and says whether the end
// was reached.
func (x *Exchange) Drain(within time.Duration) bool {
	x.readTimeout = 0
	x.conn.nc.SetReadDeadline(time.Now().Add(within))
	var scrap [1 << 10]byte
	for range 4 {
		if _, err := x.Read(scrap[:]); err != nil {
			return err == io.EOF
		}
	}
	return false
}

// Complete says that the whole answer was read.
func (x *Exchange) Complete() bool { return x.body.complete() }

// Close ends the exchange. An answer that was not read to its end takes its
// connection with it. It may be called twice.
func (x *Exchange) Close() {
	if x.closed {
		return
	}
	x.closed = true
	if x.unwatch() && x.keep && x.body.complete() && x.conn.br.Buffered() == 0 &&
		x.why.CompareAndSwap(nil, &errExchangeClosed) {
		x.conn.nc.SetDeadline(time.Time{})
		x.client.putIdle(x.peer, x.conn)
		return
	}
	x.Abort(ErrExchangeClosed)
	putReader(x.conn.br)
	x.conn.br = nil
}

// errExchangeClosed is what a late Abort finds on an exchange whose connection
// has gone back to the pool, so that it cannot hit the next exchange.
var errExchangeClosed = ErrExchangeClosed

func fieldValue(fields []Field, name string) string {
	for _, f := range fields {
		if strings.EqualFold(f.Name, name) {
			return f.Value
		}
	}
	return ""
}

// readers keeps the buffers of connections that have ended.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readBuffer) }}

func takeReader(from io.Reader) *bufio.Reader {
	br := readers.Get().(*bufio.Reader)
	br.Reset(from)
	return br
}

func putReader(br *bufio.Reader) {
	if br != nil && br.Size() == readBuffer {
		br.Reset(nil)
		readers.Put(br)
	}
}

// enlarge gives a reader with a larger buffer that starts with what the old one
// had read ahead.
func enlarge(br *bufio.Reader, from io.Reader, size int) *bufio.Reader {
	seen, _ := br.Peek(br.Buffered())
	return bufio.NewReaderSize(io.MultiReader(bytes.NewReader(bytes.Clone(seen)), from), size)
}

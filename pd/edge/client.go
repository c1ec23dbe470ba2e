package edge

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

// ClientConfig bounds one pool of connections. Zero fields take the defaults.
// Streams, probes and control traffic each have a client of their own, so that
// none waits behind another.
type ClientConfig struct {
	// DialTimeout bounds making a connection, the TLS handshake included (5 s).
	DialTimeout time.Duration
	// MaxIdle bounds idle connections per address (32); negative keeps none.
	MaxIdle int
	// IdleTimeout is how long a connection may have been idle to be used again
	// (4 s: common servers close theirs after 5).
	IdleTimeout time.Duration
	// ReusePOST lets requests other than GET and HEAD use idle connections. A
	// server may close an idle connection just as a request is on its way, and
	// nothing then tells whether the request was taken; so only a caller whose
	// requests may be repeated sets it. Otherwise such requests dial.
	ReusePOST bool
	// MaxHeader bounds an answer's head, MaxResponse the body that Do reads
	// (32 KiB, 16 MiB).
	MaxHeader   int
	MaxResponse int
	// WriteStall ends an exchange whose peer takes no byte for so long (30 s).
	WriteStall time.Duration
}

func (c ClientConfig) withDefaults() ClientConfig {
	c.DialTimeout = cmp.Or(c.DialTimeout, 5*time.Second)
	c.MaxIdle = max(cmp.Or(c.MaxIdle, 32), 0)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 4*time.Second)
	c.MaxHeader = cmp.Or(c.MaxHeader, 32<<10)
	c.MaxResponse = cmp.Or(c.MaxResponse, 16<<20)
	c.WriteStall = cmp.Or(c.WriteStall, 30*time.Second)
	return c
}

// Client sends requests. Its methods are safe for concurrent use.
type Client struct {
	// constant
	config ClientConfig
	dialer net.Dialer

	mu sync.Mutex
	// guarded by mu; the most recently used connection is last.
	idle   map[peer][]*clientConn
	closed bool
}

// peer is what idle connections are kept by: one that was made under another
// trust, or under none, must not serve.
type peer struct {
	address string
	trust   *Trust
}

// NewClient makes a client; Close releases its idle connections.
func NewClient(config ClientConfig) *Client {
	config = config.withDefaults()
	return &Client{
		config: config,
		dialer: net.Dialer{
			Timeout: config.DialTimeout,
			// A peer whose machine died sends no FIN; a stream from it ends
			// after about half a minute.
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		},
		idle: map[peer][]*clientConn{},
	}
}

// Request is one request. Its fields are borrowed until the request was sent:
// until Send, Open or Do returned.
type Request struct {
	Method string
	// Address is the host:port to dial.
	Address string
	// Trust, if set, makes the connection TLS 1.2 or 1.3. A certificate that it
	// does not believe, or that is not of Address's host, is an error of
	// PhaseDial: the request was not sent.
	Trust *Trust
	// Host is the Host header; Address if empty.
	Host string
	// Target is path and query, sent as they are.
	Target string
	// Header holds end-to-end header lines. Host and framing are added here.
	Header []Field
	Body   []byte
	// HeadTimeout bounds the wait for the answer's head once the request was
	// sent, ReadTimeout the wait for each piece of its body. 0 means no bound
	// beyond the context.
	HeadTimeout time.Duration
	ReadTimeout time.Duration
}

func (r *Request) peer() peer { return peer{r.Address, r.Trust} }

func (r *Request) repeatable() bool { return r.Method == "GET" || r.Method == "HEAD" }

// Response is a whole answer; it owns its body.
type Response struct {
	Status int
	Header []Field
	Body   []byte
}

// Get is the first value of a header, "" if absent.
func (r *Response) Get(name string) string { return fieldValue(r.Header, name) }

// Do sends a request and reads the whole answer, at most MaxResponse bytes.
// Errors are *ExchangeError.
func (c *Client) Do(ctx context.Context, r Request) (*Response, error) {
	x, err := c.Open(ctx, r)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	body, err := x.ReadAll(c.config.MaxResponse)
	if err != nil {
		return nil, err
	}
	return &Response{Status: x.Status(), Header: x.Fields(), Body: body}, nil
}

// Open sends a request and waits for the answer's head. The caller closes the
// exchange. When ctx ends the connection is closed, whatever it waits for.
// Errors are *ExchangeError.
func (c *Client) Open(ctx context.Context, r Request) (*Exchange, error) {
	x, err := c.Send(ctx, r)
	if err == nil {
		if err = x.Await(); err == nil {
			return x, nil
		}
		x.Close()
	}
	// A reused connection that ended before any byte of an answer was idle too
	// long; what may be repeated is repeated once, on a fresh one.
	failure, ok := errors.AsType[*ExchangeError](err)
	if !ok || !failure.Reused || !r.repeatable() || !errors.Is(err, ErrEarlyEnd) || ctx.Err() != nil {
		return nil, err
	}
	x, err = c.send(ctx, r, false)
	if err != nil {
		return nil, err
	}
	if err := x.Await(); err != nil {
		x.Close()
		return nil, err
	}
	return x, nil
}

// Send sends a request and does not wait for the answer; Exchange.Await does.
// The caller closes the exchange.
func (c *Client) Send(ctx context.Context, r Request) (*Exchange, error) {
	return c.send(ctx, r, r.repeatable() || c.config.ReusePOST)
}

func (c *Client) send(ctx context.Context, r Request, reuse bool) (*Exchange, error) {
	if ctx.Err() != nil {
		return nil, &ExchangeError{Phase: PhaseDial, Address: r.Address, Err: context.Cause(ctx)}
	}
	var k *clientConn
	if reuse {
		k = c.takeIdle(r.peer())
	}
	reused := k != nil
	if k == nil {
		var err error
		if k, err = c.dial(ctx, r.peer()); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, &ExchangeError{Phase: PhaseDial, Address: r.Address, Err: err}
		}
	}
	x := newExchange(ctx, c, k, r, reused)
	if err := x.sendRequest(r); err != nil {
		x.Close()
		return nil, err
	}
	return x, nil
}

func (c *Client) dial(ctx context.Context, p peer) (*clientConn, error) {
	deadline := time.Now().Add(c.config.DialTimeout)
	nc, err := c.dialer.DialContext(ctx, "tcp", p.address)
	if err != nil {
		return nil, dialCause(err)
	}
	k := &clientConn{nc: nc.(*net.TCPConn), stream: nc}
	if p.trust != nil {
		if k.tls, err = p.trust.secure(ctx, k.nc, p.address, deadline, c.config.WriteStall); err != nil {
			nc.Close()
			return nil, err
		}
		k.stream = k.tls
	}
	k.br = takeReader(k.stream)
	return k, nil
}

// dialCause drops the address that *net.OpError repeats.
func dialCause(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return op.Err
	}
	return err
}

// Close closes idle connections; running exchanges go on and are not kept.
func (c *Client) Close() {
	c.mu.Lock()
	idle := c.idle
	c.idle, c.closed = nil, true
	c.mu.Unlock()
	for _, list := range idle {
		for _, k := range list {
			k.drop()
		}
	}
}

// clientConn is one upstream connection between or during exchanges.
type clientConn struct {
	nc *net.TCPConn // what is closed and timed
	// stream is what is read and written: nc, or TLS over it.
	stream    net.Conn
	tls       *tls.Conn // nil without TLS
	br        *bufio.Reader
	head      fasthttp.ResponseHeader
	idleSince time.Time
}

func (c *Client) takeIdle(p peer) *clientConn {
	for {
		c.mu.Lock()
		list := c.idle[p]
		if len(list) == 0 {
			c.mu.Unlock()
			return nil
		}
		k := list[len(list)-1]
		list[len(list)-1] = nil
		c.idle[p] = list[:len(list)-1]
		c.mu.Unlock()
		if time.Since(k.idleSince) < c.config.IdleTimeout && k.quiet() {
			return k
		}
		k.drop()
	}
}

// putIdle keeps a connection, and closes those that have been idle too long.
func (c *Client) putIdle(p peer, k *clientConn) {
	now := time.Now()
	k.idleSince = now
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		k.drop()
		return
	}
	list := c.idle[p]
	stale := 0
	for stale < len(list) && now.Sub(list[stale].idleSince) >= c.config.IdleTimeout {
		list[stale].drop()
		stale++
	}
	list = slices.Delete(list, 0, stale)
	if len(list) >= c.config.MaxIdle {
		k.drop()
	} else {
		list = append(list, k)
	}
	c.idle[p] = list
}

// drop closes a connection that nobody uses.
func (k *clientConn) drop() {
	k.nc.Close()
	putReader(k.br)
	k.br = nil
}

// quiet says that an idle connection is open and has nothing to read. A byte
// that nobody asked for, or the peer's FIN, makes it useless.
func (k *clientConn) quiet() bool {
	if k.br.Buffered() > 0 {
		return false
	}
	raw, err := k.nc.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Control(func(fd uintptr) {
		var one [1]byte
		_, _, err := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		quiet = err == unix.EAGAIN
	})
	return err == nil && quiet
}

// readHead reads an answer's head, in a larger buffer when it does not fit.
// Interim answers (1xx) are skipped.
func (k *clientConn) readHead(limit int) error {
	const maxInterim = 8
	for range maxInterim {
		k.head.DisableNormalizing()
		err := k.head.Read(k.br)
		if _, small := errors.AsType[*fasthttp.ErrSmallBuffer](err); small && k.br.Size() < limit {
			k.br = enlarge(k.br, k.stream, limit)
			err = k.head.Read(k.br)
		}
		if err != nil {
			return err
		}
		if status := k.head.StatusCode(); status >= 200 || status == 101 {
			return nil
		}
	}
	return fmt.Errorf("%w: more than %d interim answers", errMalformed, maxInterim)
}

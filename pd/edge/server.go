package edge

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// Handler answers one call. It runs on the connection's goroutine, must return
// when the call's context has ended, and must not keep the Call.
type Handler func(*Call)

// ServerConfig bounds a server. Zero fields take the defaults.
type ServerConfig struct {
	// Address is host:port; an IPv6 host is in brackets, port 0 picks a free one.
	Address string
	// Name is the Server header; "" sends none.
	Name string
	// MaxBody and MaxHeader bound one request in bytes (32 MiB, 32 KiB).
	MaxBody   int
	MaxHeader int
	// MaxConnections bounds open connections (4096); one more is answered 503
	// and closed.
	MaxConnections int
	// HeaderTimeout bounds a request head from its first byte, and the wait for
	// the first byte of a new connection (10 s).
	HeaderTimeout time.Duration
	// BodyTimeout bounds the upload of a body (60 s).
	BodyTimeout time.Duration
	// IdleTimeout bounds the wait for the next request of a connection (75 s).
	IdleTimeout time.Duration
	// WriteStall ends a connection whose client takes no byte for so long (60 s).
	WriteStall time.Duration
	// Certificate makes the server speak TLS 1.2 or 1.3 and nothing else. Nil
	// speaks plain HTTP.
	Certificate *Certificate
	// Refuse words what the edge answers by itself (400, 408, 413, 431, 500,
	// 503). Nil answers plain text.
	Refuse func(status int, message string) (contentType string, body []byte)
	// Refusing, if set, is called before the edge by itself answers a request of
	// which it has the head and does not take the body (400, 408, 413). It may set
	// headers of that answer, and must not answer.
	Refusing func(c *Call, status int)
	// Log takes what nobody else reports: what the edge refused by itself, a
	// handler that panicked, an accept that failed. Nil discards.
	Log *slog.Logger
}

func (c ServerConfig) withDefaults() ServerConfig {
	c.MaxBody = cmp.Or(c.MaxBody, 32<<20)
	c.MaxHeader = cmp.Or(c.MaxHeader, 32<<10)
	c.MaxConnections = cmp.Or(c.MaxConnections, 4096)
	c.HeaderTimeout = cmp.Or(c.HeaderTimeout, 10*time.Second)
	c.BodyTimeout = cmp.Or(c.BodyTimeout, 60*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 75*time.Second)
	c.WriteStall = cmp.Or(c.WriteStall, 60*time.Second)
	if c.Refuse == nil {
		c.Refuse = func(_ int, message string) (string, []byte) {
			return "text/plain; charset=utf-8", []byte(message + "\n")
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Server is a bound HTTP/1.1 server.
type Server struct {
	// constant
	config   ServerConfig
	listener *net.TCPListener
	watch    *watch
	tls      *tls.Config // nil without TLS
	base     context.Context
	stop     context.CancelCauseFunc
	// draining is closed when Shutdown begins.
	draining chan struct{}
	// idle is closed when the last connection ended after draining began.
	idle chan struct{}
	date dateCache
	// first is constant once Serve runs; nil without one.
	first Handler

	running sync.WaitGroup

	mu sync.Mutex
	// guarded by mu
	conns    map[*conn]struct{}
	stopping bool
	served   bool
}

// Listen binds the address. Connections wait in the kernel until Serve; a
// server that will not be served is ended with Shutdown.
func Listen(config ServerConfig) (*Server, error) {
	config = config.withDefaults()
	// Bound without a context: binding a numeric address or a local name does
	// not wait.
	l, err := net.Listen("tcp", config.Address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", config.Address, err)
	}
	w, err := newWatch()
	if err != nil {
		l.Close()
		return nil, err
	}
	base, stop := context.WithCancelCause(context.Background())
	var secured *tls.Config
	if config.Certificate != nil {
		secured = config.Certificate.config()
	}
	return &Server{
		tls:    secured,
		config: config, listener: l.(*net.TCPListener), watch: w,
		base: base, stop: stop,
		draining: make(chan struct{}), idle: make(chan struct{}),
		conns: map[*conn]struct{}{},
	}, nil
}

// Addr is the bound address.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Draining is closed when Shutdown begins, so that handlers can refuse new work.
func (s *Server) Draining() <-chan struct{} { return s.draining }

// Admit sets what sees each request before its body is read. When it answers, that
// is the answer: nobody waits for the body, and unless it has arrived already the
// connection ends. When it does not, the call goes to Serve's handler. It is called
// before Serve.
func (s *Server) Admit(h Handler) { s.first = h }

// Serve answers calls until Shutdown and returns when the last handler has
// returned. It is called once.
func (s *Server) Serve(h Handler) error {
	s.mu.Lock()
	served, stopping := s.served, s.stopping
	s.served = true
	s.mu.Unlock()
	switch {
	case stopping:
		return nil // Shutdown came first and has ended everything
	case served:
		return errors.New("serve: the server was served before")
	}

	watchErr := make(chan error, 1)
	go func() { watchErr <- s.watch.run() }()
	acceptErr := s.accept(h)
	if acceptErr != nil {
		// Nobody can reach this server any more; do not wait for idle clients.
		now, cancel := context.WithCancel(context.Background())
		cancel()
		s.Shutdown(now)
	}
	s.running.Wait()
	s.watch.close()
	s.stop(ErrStopping)
	return errors.Join(acceptErr, <-watchErr)
}

func (s *Server) accept(h Handler) error {
	pause := time.Duration(0)
	for {
		nc, err := s.listener.AcceptTCP()
		if err != nil {
			select {
			case <-s.draining:
				return nil
			default:
			}
			if !temporaryAccept(err) {
				return fmt.Errorf("accept on %s: %w", s.listener.Addr(), err)
			}
			// Out of descriptors or memory: waiting is all that helps.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.config.Log.Warn("accept failed", "error", err, "pause", pause)
			select {
			case <-s.draining:
				return nil
			case <-time.After(pause):
			}
			continue
		}
		pause = 0
		c := newConn(s, nc)
		switch admitted, full := s.admit(c); {
		case full:
			// A handshake would hold up the accept loop; with TLS it is closed.
			if s.tls == nil {
				c.refuse(503, "too many connections")
			}
			c.end()
		case !admitted:
			c.end()
		default:
			s.running.Go(func() {
				defer s.forget(c)
				c.serve(h)
			})
		}
	}
}

func (s *Server) admit(c *conn) (admitted, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopping:
		return false, false
	case len(s.conns) >= s.config.MaxConnections:
		return false, true
	}
	s.conns[c] = struct{}{}
	return true, false
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if s.stopping && len(s.conns) == 0 {
		close(s.idle)
	}
}

// Connections is the number of open connections.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Shutdown stops accepting, closes connections without a call, and waits for
// running calls. When ctx ends first, the remaining calls' contexts end with
// ErrStopping; what has not answered that within half a second loses its
// connection, and the context's error is returned. It may be called again, with
// another context, to cut the wait short.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if !s.stopping {
		s.stopping = true
		close(s.draining)
		s.listener.Close()
		if len(s.conns) == 0 {
			close(s.idle)
		}
		if !s.served {
			s.watch.close()
			s.stop(ErrStopping)
		}
	}
	for c := range s.conns {
		c.closeIfIdle()
	}
	s.mu.Unlock()

	select {
	case <-s.idle:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	open := len(s.conns)
	s.mu.Unlock()
	s.stop(ErrStopping)
	timer := time.NewTimer(lastWords)
	defer timer.Stop()
	select {
	case <-s.idle:
	case <-timer.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.nc.Close()
	}
	return fmt.Errorf("shut down %s with %d connections open: %w", s.listener.Addr(), open, context.Cause(ctx))
}

// lastWords is how long calls that are cut may take to say so to their clients.
const lastWords = 500 * time.Millisecond

func (s *Server) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

package edge

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// Certificate is a certificate with its key that is read from files and can be
// read again while a server uses it.
type Certificate struct {
	// constant
	certFile string
	keyFile  string

	current atomic.Pointer[tls.Certificate]
}

// LoadCertificate reads both PEM files; the first may hold a chain.
func LoadCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile}
	return c, c.Reload()
}

// Reload reads the files again. New connections get what they hold now; open ones
// stay as they are. After an error what was read before goes on being used.
func (c *Certificate) Reload() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("read the certificate %s and its key %s: %w", c.certFile, c.keyFile, err)
	}
	c.current.Store(&pair)
	return nil
}

// NotAfter is when the certificate that is in use ends.
func (c *Certificate) NotAfter() time.Time { return c.current.Load().Leaf.NotAfter }

func (c *Certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return c.current.Load(), nil
		},
	}
}

// stallConn is the connection below TLS. A write of TLS that runs out of time in
// its middle cannot be gone on with, so what makes a client slow and not dead is
// decided here. The hang-up watch looks at the descriptor below it.
type stallConn struct {
	*net.TCPConn
	// stall is owned by the connection's goroutine, the only one that writes.
	stall time.Duration
}

// Write sends everything; it gives up when no byte was taken for stall.
func (c *stallConn) Write(p []byte) (int, error) {
	written := 0
	for {
		c.TCPConn.SetWriteDeadline(time.Now().Add(c.stall))
		n, err := c.TCPConn.Write(p[written:])
		written += n
		if err == nil || n == 0 || !isTimeout(err) {
			return written, err
		}
	}
}

// SetWriteDeadline does nothing: each write has its own.
func (c *stallConn) SetWriteDeadline(time.Time) error { return nil }

const (
	// goodbyeTime bounds the last words of TLS.
	goodbyeTime = time.Second
	// joinBytes is up to where head and body become one record.
	joinBytes = 16 << 10
)

// secure makes a connection speak TLS. It says what is wrong to a client that
// speaks plain HTTP. False ends the connection.
func (c *conn) secure(config *tls.Config) bool {
	c.inner = &stallConn{TCPConn: c.nc, stall: c.server.config.WriteStall}
	secured := tls.Server(c.inner, config)
	c.nc.SetReadDeadline(time.Now().Add(c.server.config.HeaderTimeout))
	// The stack that a handshake needs is twice what a stream does; on a goroutine of
	// its own it does not stay with the connection.
	done := make(chan error)
	go func() { done <- secured.Handshake() }()
	err := <-done
	if err == nil {
		c.tls, c.stream = secured, secured
		return true
	}
	if bad, ok := errors.AsType[tls.RecordHeaderError](err); ok && bad.Conn != nil && looksLikeHTTP(bad.RecordHeader) {
		c.stream = c.nc
		c.refuse(400, "this port speaks HTTPS, the request came without TLS")
		c.linger()
	}
	return false
}

// looksLikeHTTP says that five bytes begin a request.
func looksLikeHTTP(b [5]byte) bool {
	for _, x := range b {
		if x != ' ' && x != '/' && (x < 'A' || x > 'Z') {
			return false
		}
	}
	return true
}

// goodbye tells a TLS client that what it got is whole. After a broken answer
// nothing is said, so that the client sees it as cut.
func (c *conn) goodbye() {
	if c.tls == nil || c.broken {
		return
	}
	c.inner.stall = goodbyeTime
	c.tls.CloseWrite()
}

// writeTLS sends parts, small ones as one record.
func (c *conn) writeTLS(parts [][]byte) error {
	total := 0
	for _, p := range parts {
		total += len(p)
	}
	if len(parts) > 1 && total <= joinBytes {
		c.joined = c.joined[:0]
		for _, p := range parts {
			c.joined = append(c.joined, p...)
		}
		parts = [][]byte{c.joined}
	}
	for _, p := range parts {
		if _, err := c.tls.Write(p); err != nil {
			return err
		}
	}
	return nil
}

package edge

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// Trust says which certificates of servers a client believes. It is what makes a
// Request speak TLS, and it can be read again while it is in use.
type Trust struct {
	caFile string // constant; "" for the roots of the system

	config atomic.Pointer[tls.Config]
}

// LoadTrust reads a PEM file of certification authorities, which are then the
// only ones believed. Without a file the roots of the system are.
func LoadTrust(caFile string) (*Trust, error) {
	t := &Trust{caFile: caFile}
	return t, t.Reload()
}

// Reload reads the file again. New connections are judged by what it holds now.
// After an error what was read before goes on being used.
func (t *Trust) Reload() error {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if t.caFile != "" {
		text, err := os.ReadFile(t.caFile)
		if err != nil {
			return fmt.Errorf("read the certification authorities: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("read the certification authorities: %s holds no certificate in PEM form", t.caFile)
		}
	}
	t.config.Store(config)
	return nil
}

// secure makes a fresh connection speak TLS to the host of an address. The
// handshake ends with the deadline or the context, whichever is first. It tells
// the server nothing of a request.
func (t *Trust) secure(ctx context.Context, nc *net.TCPConn, address string, deadline time.Time, stall time.Duration) (*tls.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	config := t.config.Load().Clone()
	config.ServerName = host
	secured := tls.Client(&stallConn{TCPConn: nc, stall: stall}, config)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return secured, nil
}

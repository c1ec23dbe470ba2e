package edge_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

func loadTrust(t *testing.T, caFile string) *edge.Trust {
	t.Helper()
	trust, err := edge.LoadTrust(caFile)
	require.NoError(t, err)
	return trust
}

func TestClientSpeaksTLSAndStreamsOverIt(t *testing.T) {
	s := serveTLS(t, edge.ServerConfig{}, func(c *edge.Call) {
		if c.Path() == "/stream" {
			c.Stream(200, "text/plain", func(w *edge.StreamWriter) error {
				w.Write(c.Body())
				return w.Flush()
			})
			return
		}
		c.Reply(200, "text/plain", c.Body())
	})
	trust := loadTrust(t, s.certFile)
	c := client(t, edge.ClientConfig{ReusePOST: true})
	for _, body := range []string{"", "small", strings.Repeat("large", 100<<10)} {
		for _, target := range []string{"/whole", "/stream"} {
			r, err := c.Do(within(t), edge.Request{Method: "POST", Address: s.address, Trust: trust, Target: target, Body: []byte(body)})
			require.NoError(t, err)
			require.Equal(t, 200, r.Status)
			require.True(t, body == string(r.Body))
		}
	}
}

// Idle connections are kept apart: what was checked against one authority, or
// not at all, serves no request that asks for another.
func TestConnectionsOfDifferentTrustAreNotShared(t *testing.T) {
	s := serveTLS(t, edge.ServerConfig{}, echo)
	c := client(t, edge.ClientConfig{})
	get := func(trust *edge.Trust) (string, error) {
		r, err := c.Do(within(t), edge.Request{Method: "GET", Address: s.address, Trust: trust, Target: "/"})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(r.Status, string(r.Body)), nil
	}
	good := loadTrust(t, s.certFile)
	first, err := get(good)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(first, "200"), first)
	_, err = get(loadTrust(t, ""))
	require.True(t, edge.DialFailed(err), "%v", err)
	plain, err := get(nil)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(plain, "400"), plain)
}

// A certificate that is not believed ends the exchange before the request: it
// may be sent elsewhere.
func TestWrongCertificateIsAFailedDial(t *testing.T) {
	served := make(chan struct{}, 8)
	s := serveTLS(t, edge.ServerConfig{}, func(c *edge.Call) {
		served <- struct{}{}
		c.Reply(200, "", nil)
	})
	other := filepath.Join(t.TempDir(), "other.pem")
	writeCertificate(t, other, filepath.Join(t.TempDir(), "key.pem"), 9)
	_, port, err := net.SplitHostPort(s.address)
	require.NoError(t, err)
	c := client(t, edge.ClientConfig{})
	for name, r := range map[string]edge.Request{
		"other authority": {Address: s.address, Trust: loadTrust(t, other)},
		"system roots":    {Address: s.address, Trust: loadTrust(t, "")},
		"other name":      {Address: "localhost:" + port, Trust: loadTrust(t, s.certFile)},
	} {
		r.Method, r.Target, r.Body = "POST", "/", []byte("secret")
		_, err := c.Send(within(t), r)
		require.True(t, edge.DialFailed(err), "%s: %v", name, err)
		require.ErrorContains(t, err, "certificate", name)
		_, verification := errors.AsType[*tls.CertificateVerificationError](err)
		require.True(t, verification, name)
	}
	require.Empty(t, served)
}

func TestPeerWithoutTLSOrWithAnOldVersionIsAFailedDial(t *testing.T) {
	_, plain := serve(t, edge.ServerConfig{}, echo)
	folder := t.TempDir()
	cert, key := filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	writeCertificate(t, cert, key, 1)
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	old := upstream(t, func(nc *net.TCPConn, _ *bufio.Reader) {
		tls.Server(nc, &tls.Config{Certificates: []tls.Certificate{pair}, MaxVersion: tls.VersionTLS11}).Handshake()
	})
	c := client(t, edge.ClientConfig{})
	for _, address := range []string{plain, old} {
		_, err := c.Send(within(t), edge.Request{Method: "POST", Address: address, Trust: loadTrust(t, cert), Target: "/"})
		require.True(t, edge.DialFailed(err), "%v", err)
		require.ErrorContains(t, err, "TLS handshake")
	}
}

// silent accepts and says nothing; seen gets the end of each connection.
func silent(t *testing.T) (address string, began, ended chan struct{}) {
	began, ended = make(chan struct{}, 8), make(chan struct{}, 8)
	return upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
		br.ReadByte()
		began <- struct{}{}
		io.Copy(io.Discard, br)
		ended <- struct{}{}
	}), began, ended
}

func TestDialTimeoutCoversTheHandshake(t *testing.T) {
	address, _, ended := silent(t)
	_, err := client(t, edge.ClientConfig{DialTimeout: 50 * time.Millisecond}).Send(within(t), edge.Request{
		Method: "POST", Address: address, Trust: loadTrust(t, ""), Target: "/",
	})
	require.True(t, edge.DialFailed(err), "%v", err)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	await(t, ended)
}

func TestCancelEndsAHandshake(t *testing.T) {
	address, began, ended := silent(t)
	ctx, cancel := context.WithCancelCause(within(t))
	failed := make(chan error, 1)
	c := client(t, edge.ClientConfig{})
	trust := loadTrust(t, "")
	go func() {
		_, err := c.Send(ctx, edge.Request{Method: "POST", Address: address, Trust: trust, Target: "/"})
		failed <- err
	}()
	await(t, began)
	reason := errors.New("the client left")
	cancel(reason)
	err := await(t, failed)
	require.True(t, edge.DialFailed(err))
	require.ErrorIs(t, err, reason)
	await(t, ended)
}

func TestCancelClosesATLSExchangeThatWaitsForHeaders(t *testing.T) {
	asked, left := make(chan struct{}), make(chan struct{})
	s := serveTLS(t, edge.ServerConfig{}, func(c *edge.Call) {
		close(asked)
		<-c.Context().Done()
		close(left)
	})
	ctx, cancel := context.WithCancelCause(within(t))
	failed := make(chan error, 1)
	c := client(t, edge.ClientConfig{})
	trust := loadTrust(t, s.certFile)
	go func() {
		_, err := c.Open(ctx, edge.Request{Method: "POST", Address: s.address, Trust: trust, Target: "/"})
		failed <- err
	}()
	await(t, asked)
	reason := errors.New("the client left")
	cancel(reason)
	require.ErrorIs(t, await(t, failed), reason)
	await(t, left)
}

func TestTrustIsReadAgain(t *testing.T) {
	s := serveTLS(t, edge.ServerConfig{}, echo)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	writeCertificate(t, ca, filepath.Join(t.TempDir(), "key.pem"), 3)
	trust := loadTrust(t, ca)
	c := client(t, edge.ClientConfig{MaxIdle: -1})
	get := func() error {
		_, err := c.Do(within(t), edge.Request{Method: "GET", Address: s.address, Trust: trust, Target: "/"})
		return err
	}
	require.True(t, edge.DialFailed(get()))
	text, err := os.ReadFile(s.certFile)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(ca, text, 0o600))
	require.NoError(t, trust.Reload())
	require.NoError(t, get())
	require.NoError(t, os.WriteFile(ca, []byte("no certificate"), 0o600))
	require.ErrorContains(t, trust.Reload(), ca+" holds no certificate")
	require.NoError(t, get(), "what was read before stays")
	require.NoError(t, os.Remove(ca))
	require.ErrorIs(t, trust.Reload(), os.ErrNotExist)
}

func TestFaultsOfTheRoutersOwnMachineAreToldApart(t *testing.T) {
	for err, own := range map[error]bool{syscall.EMFILE: true, syscall.EADDRNOTAVAIL: true, syscall.ECONNREFUSED: false, syscall.ETIMEDOUT: false} {
		wrapped := &edge.ExchangeError{Phase: edge.PhaseDial, Err: os.NewSyscallError("socket", err)}
		require.Equal(t, own, edge.LocalFault(wrapped), "%v", err)
	}
}

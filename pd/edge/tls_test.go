package edge_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// writeCertificate makes a certificate for 127.0.0.1 and gives its pool.
func writeCertificate(t testing.TB, certFile, keyFile string, serial int64) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	pool := x509.NewCertPool()
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool.AddCert(leaf)
	return pool
}

type secured struct {
	certificate *edge.Certificate
	pool        *x509.CertPool
	certFile    string
	keyFile     string
	address     string
}

func serveTLS(t *testing.T, config edge.ServerConfig, h edge.Handler) *secured {
	t.Helper()
	s := &secured{certFile: filepath.Join(t.TempDir(), "cert.pem"), keyFile: filepath.Join(t.TempDir(), "key.pem")}
	s.pool = writeCertificate(t, s.certFile, s.keyFile, 1)
	var err error
	s.certificate, err = edge.LoadCertificate(s.certFile, s.keyFile)
	require.NoError(t, err)
	config.Certificate = s.certificate
	_, s.address = serve(t, config, h)
	return s
}

func (s *secured) dial(t *testing.T) (*tls.Conn, *net.TCPConn) {
	t.Helper()
	nc := dial(t, s.address)
	c := tls.Client(nc, &tls.Config{RootCAs: s.pool, ServerName: "127.0.0.1"})
	require.NoError(t, c.Handshake())
	return c, nc
}

func write(t *testing.T, c io.Writer, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
}

func TestTLSServesRequestsAndStreamsOnOneConnection(t *testing.T) {
	s := serveTLS(t, edge.ServerConfig{}, func(c *edge.Call) {
		if c.Path() != "/stream" {
			c.Reply(200, "text/plain", c.Body())
			return
		}
		c.Stream(200, "text/plain", func(w *edge.StreamWriter) error {
			for range 3 {
				w.WriteString("piece ")
				w.Flush()
			}
			return nil
		})
	})
	c, _ := s.dial(t)
	require.Equal(t, uint16(tls.VersionTLS13), c.ConnectionState().Version)
	br := bufio.NewReader(c)
	large := string(make([]byte, 300<<10)) // several records either way
	for _, body := range []string{"small", large, ""} {
		write(t, c, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: "+itoa(len(body))+"\r\n\r\n"+body)
		r, got := readResponse(t, br, "POST")
		require.Equal(t, 200, r.StatusCode)
		require.True(t, body == got)
	}
	write(t, c, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\nGET /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
	_, got := readResponse(t, br, "GET")
	require.Equal(t, "piece piece piece ", got)
	r, _ := readResponse(t, br, "GET")
	require.True(t, r.Close)
	_, err := br.ReadByte()
	require.Equal(t, io.EOF, err, "TLS said that this is the end")
}

func itoa(n int) string { return big.NewInt(int64(n)).String() }

// Case B14 with TLS: the descriptor below it is watched.
func TestTLSClientThatLeavesIsNoticed(t *testing.T) {
	for name, leave := range map[string]func(*tls.Conn, *net.TCPConn){
		"properly": func(c *tls.Conn, _ *net.TCPConn) { c.Close() },
		"half":     func(_ *tls.Conn, nc *net.TCPConn) { nc.CloseWrite() },
		"reset":    func(_ *tls.Conn, nc *net.TCPConn) { nc.SetLinger(0); nc.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			inside, left := make(chan struct{}, 1), make(chan struct{}, 1)
			s := serveTLS(t, edge.ServerConfig{}, func(c *edge.Call) {
				inside <- struct{}{}
				<-c.Context().Done()
				left <- struct{}{}
			})
			c, nc := s.dial(t)
			write(t, c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
			await(t, inside)
			leave(c, nc)
			await(t, left)
		})
	}
}

// tap keeps what a TLS client receives.
type tap struct {
	net.Conn
	got []byte
}

func (c *tap) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.got = append(c.got, p[:n]...)
	return n, err
}

// lastRecord is the type of the last record; TLS 1.2 does not hide it.
func (c *tap) lastRecord(t *testing.T) (kind byte) {
	t.Helper()
	for rest := c.got; len(rest) > 0; {
		require.GreaterOrEqual(t, len(rest), 5)
		kind = rest[0]
		rest = rest[5+int(rest[3])<<8+int(rest[4]):]
	}
	return kind
}

// An answer that is ended by the connection's end is whole only where TLS says
// so; Go's client is lenient about that, others are not.
func TestTLSBrokenAnswerIsNoProperEnd(t *testing.T) {
	const alert, data = 21, 23
	s := serveTLS(t, edge.ServerConfig{}, func(c *edge.Call) {
		c.Stream(200, "text/plain", func(w *edge.StreamWriter) error {
			w.WriteString("half")
			w.Flush()
			if c.Path() == "/broken" {
				return errors.New("broken")
			}
			return nil
		})
	})
	for path, want := range map[string]byte{"/broken": data, "/whole": alert} {
		wire := &tap{Conn: dial(t, s.address)}
		c := tls.Client(wire, &tls.Config{RootCAs: s.pool, ServerName: "127.0.0.1", MaxVersion: tls.VersionTLS12})
		write(t, c, "GET "+path+" HTTP/1.0\r\nHost: h\r\n\r\n")
		all, err := io.ReadAll(c)
		require.NoError(t, err)
		require.Contains(t, string(all), "half")
		require.Equal(t, want, wire.lastRecord(t), path)
	}
}

func TestTLSClientThatTakesNothingEndsItsStreamAndASlowOneDoesNot(t *testing.T) {
	ended := make(chan error, 1)
	const size = 8 << 20
	s := serveTLS(t, edge.ServerConfig{WriteStall: 300 * time.Millisecond}, func(c *edge.Call) {
		if c.Path() == "/whole" {
			c.Reply(200, "", make([]byte, size))
			return
		}
		ended <- c.Stream(200, "", func(w *edge.StreamWriter) error {
			for {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return err
				}
			}
		})
	})
	stuck, _ := s.dial(t)
	write(t, stuck, "GET /endless HTTP/1.1\r\nHost: h\r\n\r\n")
	require.ErrorIs(t, await(t, ended), edge.ErrClientGone)

	slow, nc := s.dial(t)
	nc.SetReadBuffer(128 << 10)
	write(t, slow, "GET /whole HTTP/1.0\r\nHost: h\r\n\r\n")
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	got, buf := 0, make([]byte, 64<<10)
	for {
		n, err := slow.Read(buf)
		got += n
		if err == io.EOF {
			break
		}
		require.NoError(t, err, "after %d bytes", got)
		<-tick.C
	}
	require.Greater(t, got, size)
}

func TestPlainHTTPOnATLSPortIsToldSo(t *testing.T) {
	served := make(chan struct{}, 1)
	s := serveTLS(t, edge.ServerConfig{}, func(c *edge.Call) { served <- struct{}{} })
	nc := dial(t, s.address)
	send(t, nc, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	r, body := readResponse(t, bufio.NewReader(nc), "GET")
	require.Equal(t, 400, r.StatusCode)
	require.Contains(t, body, "HTTPS")
	rubbish := dial(t, s.address)
	send(t, rubbish, "\x00\x01\x02\x03\x04\x05\x06\x07")
	_, err := io.ReadAll(rubbish)
	if err != nil {
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	old := tls.Client(dial(t, s.address), &tls.Config{RootCAs: s.pool, ServerName: "127.0.0.1", MaxVersion: tls.VersionTLS11})
	require.Error(t, old.Handshake())
	require.Empty(t, served)
}

func TestReloadedCertificateIsForNewConnections(t *testing.T) {
	s := serveTLS(t, edge.ServerConfig{}, echo)
	first, _ := s.dial(t)
	serial := func(c *tls.Conn) int64 { return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64() }
	require.EqualValues(t, 1, serial(first))
	require.NoError(t, os.WriteFile(s.certFile, []byte("half a fi"), 0o600))
	require.ErrorContains(t, s.certificate.Reload(), s.certFile)
	kept, _ := s.dial(t)
	require.EqualValues(t, 1, serial(kept))
	s.pool = writeCertificate(t, s.certFile, s.keyFile, 2)
	require.NoError(t, s.certificate.Reload())
	require.True(t, s.certificate.NotAfter().After(time.Now()))
	second, _ := s.dial(t)
	require.EqualValues(t, 2, serial(second))
	for _, c := range []*tls.Conn{first, kept, second} {
		write(t, c, "GET /x HTTP/1.1\r\nHost: h\r\n\r\n")
		r, _ := readResponse(t, bufio.NewReader(c), "GET")
		require.Equal(t, 200, r.StatusCode)
	}
	_, err := edge.LoadCertificate(s.certFile, s.certFile)
	require.Error(t, err)
}

// A handshake that never comes to its end is bounded, and does not hold up a stop.
func TestHandshakesAreBounded(t *testing.T) {
	s := serveTLS(t, edge.ServerConfig{HeaderTimeout: 100 * time.Millisecond}, echo)
	silent := dial(t, s.address)
	_, err := io.ReadAll(silent)
	if err != nil {
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	slow := serveTLS(t, edge.ServerConfig{HeaderTimeout: time.Hour}, echo)
	dial(t, slow.address) // its cleanup stops the server, which must not wait for it
}

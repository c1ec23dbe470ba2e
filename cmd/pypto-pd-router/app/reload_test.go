package app_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/cmd/pypto-pd-router/app"
)

func writeCertificate(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
}

// lines is a log that a test waits for.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// until waits for a text to stand in the log as often as said.
func (l *lines) until(t *testing.T, text string, times int) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Count(l.String(), text) >= times }, patience, 2*time.Millisecond, "%s", text)
}

// running is a router in this process.
type running struct {
	t       *testing.T
	address string
	ready   string
	log     lines
	code    chan int
	stop    context.CancelFunc
}

func start(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, code: make(chan int, 1), stop: cancel}
	out, w := io.Pipe()
	go func() {
		r.code <- app.Run(ctx, append([]string{"--port", "0"}, args...), nil, w, &r.log)
		w.Close()
	}()
	t.Cleanup(r.end)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "%s", r.log.String())
	r.ready = line
	for _, f := range strings.Fields(line) {
		if k, v, _ := strings.Cut(f, "="); strings.HasPrefix(k, "http") {
			r.address = v
		}
	}
	return r
}

func (r *running) end() {
	r.stop()
	select {
	case c := <-r.code:
		require.Equal(r.t, 0, c)
	case <-time.After(patience):
		require.FailNow(r.t, "the router does not stop")
	}
}

func hangUp(t *testing.T) {
	t.Helper()
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
}

func get(t *testing.T, nc net.Conn, path string, header ...string) (int, string) {
	t.Helper()
	nc.SetDeadline(time.Now().Add(patience))
	_, err := io.WriteString(nc, "GET "+path+" HTTP/1.1\r\nHost: h\r\n"+strings.Join(header, "")+"\r\n")
	require.NoError(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(nc), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(body)
}

func TestHangUpReadsCertificateAndKeysAgain(t *testing.T) {
	folder := t.TempDir()
	certFile, keyFile, apiKeys := filepath.Join(folder, "cert"), filepath.Join(folder, "key"), filepath.Join(folder, "keys")
	writeCertificate(t, certFile, keyFile, 1)
	require.NoError(t, os.WriteFile(apiKeys, []byte("sk-0123456789abcdef"), 0o600))
	r := start(t, "--pd-config", pdJSON(t), "--tls-cert", certFile, "--tls-key", keyFile, "--api-key-file", apiKeys)
	require.Contains(t, r.ready, " https=")
	dial := func() *tls.Conn {
		nc, err := net.Dial("tcp", r.address)
		require.NoError(t, err)
		t.Cleanup(func() { nc.Close() })
		return tls.Client(nc, &tls.Config{InsecureSkipVerify: true})
	}
	models := func(nc net.Conn, key string) int {
		status, _ := get(t, nc, "/v1/models", "Authorization: Bearer "+key+"\r\n")
		return status
	}
	first := dial()
	require.Equal(t, 503, models(first, "sk-0123456789abcdef"))
	require.EqualValues(t, 1, first.ConnectionState().PeerCertificates[0].SerialNumber.Int64())

	// One file is broken: the other is read, the broken one stays as it was.
	writeCertificate(t, certFile, keyFile, 2)
	require.NoError(t, os.WriteFile(apiKeys, []byte("x"), 0o600))
	hangUp(t)
	r.log.until(t, "not everything could be read again", 1)
	second := dial()
	require.Equal(t, 503, models(second, "sk-0123456789abcdef"))
	require.EqualValues(t, 2, second.ConnectionState().PeerCertificates[0].SerialNumber.Int64())

	require.NoError(t, os.WriteFile(apiKeys, []byte("sk-fedcba9876543210"), 0o600))
	hangUp(t)
	r.log.until(t, "API keys read again", 1)
	require.Equal(t, 401, models(first, "sk-0123456789abcdef"))
	require.Equal(t, 503, models(first, "sk-fedcba9876543210"))
	require.NotContains(t, r.log.String(), "sk-")
}

func TestHangUpReadsPDConfigAgain(t *testing.T) {
	root := t.TempDir()
	text := func(nodes string) []byte {
		return []byte(`{"runtime":{"run_id":"run","prefill":[{"host":"127.0.0.1","port":1}],"decode":[` + nodes + `]},"observability":{"root":"` + root + `"}}`)
	}
	path := write(t, string(text(`{"host":"127.0.0.1","port":2}`)))
	r := start(t, "--pd-config", path)
	health := func() string {
		nc, err := net.Dial("tcp", r.address)
		require.NoError(t, err)
		defer nc.Close()
		_, body := get(t, nc, "/health")
		return body
	}
	require.NotContains(t, health(), "last_reload")
	require.NoError(t, os.WriteFile(path, text(`{"host":"127.0.0.1","port":3}`), 0o600))
	hangUp(t)
	r.log.until(t, "added decode node 127.0.0.1:3, removed decode node 127.0.0.1:2", 1)
	body := health()
	require.Contains(t, body, `"last_reload":{"result":"applied"`)
	require.Contains(t, body, `"node_id":"127.0.0.1:3"`)
	require.NotContains(t, body, `"node_id":"127.0.0.1:2"`)

	for i, bad := range []string{strings.ReplaceAll(string(text(`{"host":"127.0.0.1","port":3}`)), `"run_id":"run",`, ""), `{"runtime":`, string(text(`{"host":"127.0.0.1","port":3,"control_port":9}`))} {
		require.NoError(t, os.WriteFile(path, []byte(bad), 0o600))
		hangUp(t)
		r.log.until(t, "not everything could be read again", i+1)
		require.Contains(t, health(), `"last_reload":{"result":"refused"`)
		require.Contains(t, health(), `"node_id":"127.0.0.1:3"`)
	}
	require.Contains(t, health(), "control port 9")
}

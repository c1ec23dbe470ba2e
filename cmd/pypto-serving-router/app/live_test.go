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
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/cmd/pypto-serving-router/app"
)

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
	url     string
	banner  string
	log     lines
	code    chan int
	stop    func()
	client  *http.Client
	stopped bool
}

func start(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, code: make(chan int, 1), stop: cancel}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	r.client = &http.Client{Transport: transport}
	out, w := io.Pipe()
	go func() {
		r.code <- app.Run(ctx, append([]string{"--host", "127.0.0.1", "--port", "0"}, args...), []string{"PATH=" + os.Getenv("PATH")}, w, &r.log)
		w.Close()
	}()
	t.Cleanup(func() { r.end(0) })
	for br := bufio.NewReader(out); ; {
		line, err := br.ReadString('\n')
		require.NoError(t, err, "%s", r.log.String())
		r.banner += line
		if !strings.HasPrefix(line, "pypto-serving-router ready: ") {
			continue
		}
		for _, f := range strings.Fields(line) {
			if k, v, _ := strings.Cut(f, "="); strings.HasPrefix(k, "http") {
				r.url = k + "://" + v
			}
		}
		return r
	}
}

// end stops the router and expects an exit code.
func (r *running) end(code int) {
	r.t.Helper()
	if r.stopped {
		return
	}
	r.stopped = true
	r.stop()
	select {
	case c := <-r.code:
		require.Equal(r.t, code, c, "%s", r.log.String())
	case <-time.After(patience):
		require.FailNow(r.t, "the router does not stop")
	}
}

func (r *running) ask(method, path, body string, header ...string) (int, string) {
	r.t.Helper()
	q, err := http.NewRequest(method, r.url+path, strings.NewReader(body))
	require.NoError(r.t, err)
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		q.Header.Set(name, value)
	}
	a, err := r.client.Do(q)
	require.NoError(r.t, err)
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	require.NoError(r.t, err)
	return a.StatusCode, string(text)
}

// replica is a server that says its name.
func replica(t *testing.T, name string) (entry string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method == "POST" {
			io.Copy(io.Discard, q.Body)
			fmt.Fprintf(w, `{"served_by":%q}`, name)
		}
	}))
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	require.NoError(t, err)
	return fmt.Sprintf(`{"name":%q,"host":"127.0.0.1","port":%s}`, name, port)
}

func TestRouterServesUntilItsContextEnds(t *testing.T) {
	r := start(t, "--replicas", write(t, "fleet.json", `{"replicas":[`+replica(t, "a")+`],"hosts":[{"name":"n","devices":[0,1],"model":"/m"}]}`), "--initial-replicas", "0")
	for _, want := range []string{
		"pypto-serving-router at http://127.0.0.1:", "  replica a: http://127.0.0.1:", "  host n (this machine): devices [0 1], 1 for a replica, 2 slots\n",
		"  pool: ceiling 2, 0 launched at start\n", "  conversations: pinned for 10m0s, slack 8, at most 100000\n", "/v1/chat/completions", "warning: no admin token is set",
	} {
		assert.Contains(t, r.banner, want)
	}
	code, body := r.ask("POST", "/v1/completions", `{"prompt":"x"}`)
	assert.Equal(t, 200, code)
	assert.Equal(t, `{"served_by":"a"}`, body)
	code, body = r.ask("GET", "/health", "")
	assert.Equal(t, 200, code)
	assert.Contains(t, body, `"replicas_ready":1`)
	r.end(0)
	assert.Contains(t, r.log.String(), "shutting down")
}

func TestServiceManagerIsTold(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	require.NoError(t, err)
	defer l.Close()
	l.SetReadDeadline(time.Now().Add(patience))
	told := func() string {
		b := make([]byte, 100)
		n, err := l.Read(b)
		require.NoError(t, err)
		return string(b[:n])
	}
	ctx, cancel := context.WithCancel(context.Background())
	code := make(chan int, 1)
	file := write(t, "fleet.json", `{"replicas":[`+replica(t, "a")+`]}`)
	go func() {
		code <- app.Run(ctx, []string{"--replicas", file, "--host", "127.0.0.1", "--port", "0"}, []string{"NOTIFY_SOCKET=" + socket}, io.Discard, io.Discard)
	}()
	assert.Equal(t, "READY=1", told())
	cancel()
	assert.Equal(t, "STOPPING=1", told())
	assert.Zero(t, <-code)
}

// While a stream runs on a replica of the file the router waits for it, says
// draining, and takes nothing new.
func TestStopWaitsForRunningRequests(t *testing.T) {
	began, finish := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method == "POST" {
			io.Copy(io.Discard, q.Body)
			io.WriteString(w, "first ")
			w.(http.Flusher).Flush()
			close(began)
			<-finish
			io.WriteString(w, "last")
		}
	}))
	defer s.Close()
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	r := start(t, "--replicas", write(t, "fleet.json", `{"replicas":[{"host":"127.0.0.1","port":`+port+`}]}`))
	got := make(chan string, 1)
	go func() {
		_, body := r.ask("POST", "/v1/completions", "{}")
		got <- body
	}()
	<-began
	r.stop()
	require.Eventually(t, func() bool {
		code, body := r.ask("GET", "/health", "")
		return code == 503 && strings.Contains(body, `"status":"draining"`)
	}, patience, time.Millisecond)
	code, _ := r.ask("POST", "/v1/completions", "{}")
	assert.Equal(t, 503, code)
	assert.Empty(t, r.code)
	close(finish)
	assert.Equal(t, "first last", <-got)
	r.end(0)
}

func hangUp(t *testing.T) {
	t.Helper()
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
}

func TestHangUpReadsTheFleetFileAndTheTokenAgain(t *testing.T) {
	a, b := replica(t, "a"), replica(t, "b")
	file, token := write(t, "fleet.json", `{"replicas":[`+a+`]}`), write(t, "token", "first\n")
	r := start(t, "--replicas", file, "--admin-token-file", token)
	list := func(token string) (int, string) { return r.ask("GET", "/replicas", "", "Authorization: Bearer "+token) }
	code, body := list("first")
	assert.Equal(t, 200, code)
	assert.NotContains(t, body, `"name":"b"`)

	require.NoError(t, os.WriteFile(file, []byte(`{"replicas":[`+b+`]}`), 0o600))
	require.NoError(t, os.WriteFile(token, []byte("second\n"), 0o600))
	hangUp(t)
	r.log.until(t, "fleet file read again", 1)
	code, _ = list("first")
	assert.Equal(t, 401, code)
	code, body = list("second")
	assert.Equal(t, 200, code)
	assert.Contains(t, body, `"name":"b"`)
	assert.NotContains(t, body, `"name":"a"`)
	_, body = r.ask("POST", "/v1/completions", "{}")
	assert.Equal(t, `{"served_by":"b"}`, body)

	require.NoError(t, os.WriteFile(file, []byte(`{"replicas":[`), 0o600))
	hangUp(t)
	r.log.until(t, "not everything could be read again", 1)
	_, body = r.ask("GET", "/health", "")
	assert.Contains(t, body, `"last_reload":{"result":"refused"`)
	assert.Contains(t, body, `"name":"b"`)
	assert.NotContains(t, r.log.String(), "second")
}

// What the start launched is no bound for what a reload may declare.
func TestHangUpMayMakeThePoolSmaller(t *testing.T) {
	pool := func(devices string) string {
		return fmt.Sprintf(`{"replicas":[%s],"hosts":[{"name":"n","devices":[%s],"model":"/m","program":["false"],"log_dir":%q}]}`, replica(t, "a"), devices, t.TempDir())
	}
	file := write(t, "fleet.json", pool("0,1,2"))
	r := start(t, "--replicas", file, "--initial-replicas", "3", "--stop-grace", "5")
	require.NoError(t, os.WriteFile(file, []byte(pool("0")), 0o600))
	hangUp(t)
	r.log.until(t, "fleet file read again", 1)
	require.Eventually(t, func() bool {
		_, body := r.ask("GET", "/replicas", "")
		return strings.Contains(body, `"owned":0,"ceiling":1,"free_slots":["n-d0"],`)
	}, patience, 10*time.Millisecond)
}

func writeCertificate(t *testing.T, certFile, keyFile string, serial int64) {
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
}

// Certificates of both sides are read again, also while the fleet file is broken.
func TestHangUpReadsCertificatesAgain(t *testing.T) {
	folder := t.TempDir()
	certFile, keyFile := filepath.Join(folder, "cert"), filepath.Join(folder, "key")
	caFile, upstreamKey := filepath.Join(folder, "ca"), filepath.Join(folder, "upstream-key")
	writeCertificate(t, certFile, keyFile, 1)
	writeCertificate(t, caFile, upstreamKey, 7)
	upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { io.Copy(w, q.Body) }))
	pair, err := tls.LoadX509KeyPair(caFile, upstreamKey)
	require.NoError(t, err)
	upstream.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	upstream.StartTLS()
	defer upstream.Close()
	_, port, _ := net.SplitHostPort(upstream.Listener.Addr().String())
	file := write(t, "fleet.json", `{"replicas":[{"name":"s","host":"127.0.0.1","port":`+port+`,"scheme":"https"}]}`)
	right, err := os.ReadFile(caFile)
	require.NoError(t, err)
	writeCertificate(t, caFile, filepath.Join(folder, "other-key"), 8)
	r := start(t, "--replicas", file, "--tls-cert", certFile, "--tls-key", keyFile, "--ca-file", caFile, "--health-interval", "0.02", "--log-level", "warn")
	assert.True(t, strings.HasPrefix(r.url, "https://"))
	serial := func() int64 {
		nc, err := tls.Dial("tcp", strings.TrimPrefix(r.url, "https://"), &tls.Config{InsecureSkipVerify: true})
		require.NoError(t, err)
		defer nc.Close()
		return nc.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	assert.EqualValues(t, 1, serial())
	code, _ := r.ask("POST", "/v1/completions", "{}")
	assert.Contains(t, []int{502, 503}, code, "its certificate is not believed")

	writeCertificate(t, certFile, keyFile, 2)
	require.NoError(t, os.WriteFile(caFile, right, 0o600))
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	hangUp(t)
	r.log.until(t, "not everything could be read again", 1)
	assert.EqualValues(t, 2, serial())
	require.Eventually(t, func() bool {
		code, body := r.ask("POST", "/v1/completions", "{}")
		return code == 200 && body == "{}"
	}, patience, 5*time.Millisecond)
}

package stub

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }

func serve(t *testing.T, c Config) (*Replica, string) {
	t.Helper()
	r := New(c)
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return r, s.URL
}

func call(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	q, err := http.NewRequest(method, url, strings.NewReader(body))
	require.NoError(t, err)
	a, err := client.Do(q)
	require.NoError(t, err)
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	require.NoError(t, err)
	return a.StatusCode, string(b)
}

func TestAPI(t *testing.T) {
	t.Parallel()
	r, url := serve(t, Config{Name: "n-d0", Model: "q"})
	for _, c := range []struct {
		method, path, body string
		status             int
		want               []string
	}{
		{"GET", "/health", "", 200, []string{`"status":"ok"`, `"served_by":"n-d0"`}},
		{"GET", "/v1/models", "", 200, []string{`"id":"q"`, `"owned_by":"pypto"`}},
		{"GET", "/metrics/json", "", 200, []string{`"server_id":"` + r.ID() + `"`}},
		{"GET", "/metrics", "", 200, []string{"pypto:num_requests_running 0\n"}},
		{"POST", "/v1/completions", `{}`, 200, []string{`"id":"cmpl-`, `"text":" w0 w1"`, `"finish_reason":"length"`, `"object":"text_completion"`, `"total_tokens":3`, `"served_by":"n-d0"`}},
		{"POST", "/v1/chat/completions", `{}`, 200, []string{`"id":"chatcmpl-`, `"message":{"content":" w0 w1","role":"assistant"}`, `"object":"chat.completion"`}},
		{"POST", "/v1/chat/completions", `{"stream":true}`, 200, []string{`"delta":{"content":" w1","role":"assistant"}`, `"object":"chat.completion.chunk"`}},
		{"POST", "/v1/completions", `[`, 400, []string{`"object":"error"`}},
		{"GET", "/v1/completions", "", 405, nil},
		{"GET", "/elsewhere", "", 404, nil},
	} {
		status, body := call(t, c.method, url+c.path, c.body)
		assert.Equal(t, c.status, status, c.path)
		for _, want := range c.want {
			assert.Contains(t, body, want, c.path)
		}
	}
	_, body := call(t, "POST", url+"/v1/completions?a=b", `{"stream":true}`)
	events := strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n")
	require.Len(t, events, 4)
	assert.Contains(t, events[2], `"choices":[]`)
	assert.Contains(t, events[2], `"usage":{`)
	assert.Equal(t, "data: [DONE]", events[3])
	seen := Seen(t, url)
	require.Len(t, seen.Requests, 5)
	assert.Equal(t, "a=b", seen.Requests[4].Query)
	assert.Equal(t, `{"stream":true}`, string(seen.Requests[4].Body))
	assert.Equal(t, 1, seen.Probes)
	assert.Zero(t, seen.Running+seen.Aborted)
	assert.Equal(t, r.Record().Requests[4].Body, seen.Requests[4].Body)
}

func TestWhatIsOrdered(t *testing.T) {
	t.Parallel()
	r, url := serve(t, Config{})
	Post(t, url+"/toggle", nil)
	status, body := call(t, "GET", url+"/health", "")
	assert.Equal(t, 503, status)
	assert.Contains(t, body, `"not_ready"`)
	r.SetReady(true)
	status, _ = call(t, "GET", url+"/health", "")
	assert.Equal(t, 200, status)

	// A client that leaves is noted.
	Post(t, url+"/control", Config{Name: "slow", Tokens: 2, TokenDelay: time.Hour})
	ctx, leave := context.WithCancel(t.Context())
	q, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/completions", strings.NewReader("{}"))
	require.NoError(t, err)
	left := make(chan error)
	go func() {
		_, err := client.Do(q)
		left <- err
	}()
	cluster.Eventually(t, func() error { return wantRunning(t, url, 1) })
	leave()
	require.ErrorIs(t, <-left, context.Canceled)
	cluster.Eventually(t, func() error { return wantRunning(t, url, 0) })
	assert.Equal(t, 1, Seen(t, url).Aborted)

	goOn := r.Hang()
	answered := make(chan int)
	go func() {
		a, err := client.Get(url + "/health")
		if err == nil {
			a.Body.Close()
			answered <- a.StatusCode
		}
		close(answered)
	}()
	select {
	case <-answered:
		t.Fatal("it answers while it hangs")
	case <-time.After(10 * time.Millisecond):
	}
	goOn()
	goOn()
	assert.Equal(t, 200, <-answered)
}

func wantRunning(t *testing.T, url string, want int) error {
	if got := Seen(t, url).Running; got != want {
		return assert.AnError
	}
	return nil
}

// launched starts the program.
func launched(t *testing.T, cards string, env ...string) (*cluster.Process, string) {
	t.Helper()
	port := cluster.Ports(t, 1)[0]
	p := cluster.Spawn(t, cluster.Command{
		Label: "stub", Program: Program(t), Args: []string{"--model", "/m/q", "--devices", "0,1", "--host", "127.0.0.1", "--port", strconv.Itoa(port), "--show-startup-logs", "{more}"},
		Env: append(env, CardsVariable+"="+cards, "PYPTO_FLEET_SLOT="+cards+"/x.pid"),
	})
	t.Cleanup(func() { Bury(cards) })
	return p, "http://" + cluster.Address(port)
}

func up(t *testing.T, url string) {
	t.Helper()
	cluster.Eventually(t, func() error {
		status, _, err := cluster.Get(url + "/health")
		if err == nil && status != 200 {
			err = assert.AnError
		}
		return err
	})
}

func TestProgram(t *testing.T) {
	t.Parallel()
	cards := t.TempDir()
	p, url := launched(t, cards, TokensVariable+"=3", LoadVariable+"=10ms")
	up(t, url)
	_, body := call(t, "POST", url+"/v1/completions", "{}")
	assert.Contains(t, body, `"text":" w0 w1 w2"`)
	assert.Contains(t, body, `"model":"q"`)
	assert.True(t, CardHeld(t, cards, 0) && CardHeld(t, cards, 1))
	assert.False(t, CardHeld(t, cards, 2))

	// A second one on its cards is what must never be.
	require.Empty(t, Violations(t, cards))
	second, _ := launched(t, cards)
	require.Equal(t, statusViolation, second.Wait(t))
	require.Len(t, Violations(t, cards), 1)
	require.Len(t, Starts(t, cards), 1)
	require.Zero(t, p.Stop(t))
	require.False(t, CardHeld(t, cards, 0))
}

func TestProgramThatMisbehaves(t *testing.T) {
	t.Parallel()
	once := filepath.Join(t.TempDir(), "once")
	p, _ := launched(t, t.TempDir(), FailVariable+"=3", FailOnceVariable+"="+once)
	require.Equal(t, 3, p.Wait(t))
	p, url := launched(t, t.TempDir(), FailVariable+"=3", FailOnceVariable+"="+once, DeafVariable+"=1")
	up(t, url)
	p.Signal(syscall.SIGTERM)
	up(t, url)
	Post(t, url+"/silence", nil)
	_, _, err := cluster.Get(url + "/health")
	require.ErrorContains(t, err, "refused")
	require.True(t, p.Alive())

	p, url = launched(t, t.TempDir())
	up(t, url)
	Post(t, url+"/crash", nil)
	require.Equal(t, 9, p.Wait(t))
}

// The port is silent and the cards are held.
func TestWorkers(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"group", "session"} {
		cards := t.TempDir()
		p, url := launched(t, cards, WorkersVariable+"="+kind, DeafWorkersVariable+"=1ms")
		up(t, url)
		Post(t, url+"/crash", nil)
		require.Equal(t, 9, p.Wait(t))
		require.True(t, CardHeld(t, cards, 0) && CardHeld(t, cards, 1), kind)
		Bury(t.TempDir())
		require.True(t, CardHeld(t, cards, 0), "they are of another folder")
		Bury(cards)
		cluster.Eventually(t, func() error {
			if CardHeld(t, cards, 0) || CardHeld(t, cards, 1) {
				return assert.AnError
			}
			return nil
		})
	}
}

func TestRecordIsJSON(t *testing.T) {
	r, url := serve(t, Config{})
	_, body := call(t, "GET", url+"/record", "")
	want, err := json.Marshal(r.Record())
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, []byte(body)))
}

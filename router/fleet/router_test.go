package fleet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// patience bounds every wait of these tests; nothing waits that long when the
// code is right.
const patience = 20 * time.Second

// await takes one value or fails the test.
func await[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		require.FailNow(t, "nothing came")
		panic("unreachable")
	}
}

// capture is a log that may be written from many goroutines.
type capture struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(p)
}

func (c *capture) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// received is a request as a replica got it.
type received struct {
	target string
	header http.Header
	lines  []string
	body   string
}

// nativeReplica is one serving replica of a test, a server of its own.
type nativeReplica struct {
	t       *testing.T
	name    string
	address string
	server  *edge.Server
	done    chan error

	mu sync.Mutex
	// guarded by mu; the handlers are edge's own.
	health int
	post   edge.Handler
	models edge.Handler
	got    []received
}

func (n *nativeReplica) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func (n *nativeReplica) answer(post edge.Handler) { n.change(func() { n.post = post }) }

func (n *nativeReplica) healthy(status int) { n.change(func() { n.health = status }) }

func (n *nativeReplica) requests() []received {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]received(nil), n.got...)
}

// start listens at the replica's address, which it keeps over a restart.
func (n *nativeReplica) start(config edge.ServerConfig) {
	config.Address = n.address
	s, err := edge.Listen(config)
	require.NoError(n.t, err)
	n.server, n.address, n.done = s, s.Addr().String(), make(chan error, 1)
	go func() { n.done <- s.Serve(n.handle) }()
}

// kill closes the replica's port and all of its connections.
func (n *nativeReplica) kill() {
	if n.server == nil {
		return
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	n.server.Shutdown(now)
	await(n.t, n.done)
	n.server = nil
}

func (n *nativeReplica) handle(c *edge.Call) {
	n.mu.Lock()
	health, post, models := n.health, n.post, n.models
	if strings.HasPrefix(c.Path(), "/v1/") && c.Method() == "POST" {
		q := received{target: c.Target(), header: http.Header{}, body: string(c.Body())}
		for name, value := range c.Headers() {
			q.header.Add(name, value)
			q.lines = append(q.lines, name+": "+value)
		}
		n.got = append(n.got, q)
	}
	n.mu.Unlock()
	switch {
	case c.Path() == "/health":
		c.Reply(health, "application/json", []byte(`{"status":"ok"}`))
	case c.Path() == "/v1/models":
		models(c)
	case strings.HasPrefix(c.Path(), "/v1/"):
		post(c)
	default:
		c.Reply(404, "", nil)
	}
}

// says answers whole, with the replica's name.
func (n *nativeReplica) says(c *edge.Call) {
	c.Reply(200, "application/json", fmt.Appendf(nil, `{"served_by":%q}`, n.name))
}

// streams answers with three events and the end.
func (n *nativeReplica) streams(c *edge.Call) {
	c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
		for i := range 3 {
			fmt.Fprintf(w, "data: {\"served_by\":%q,\"n\":%d}\n\n", n.name, i)
			w.Flush()
		}
		w.WriteString("data: [DONE]\n\n")
		return nil
	})
}

// rig is a router with its replicas, over real sockets.
type rig struct {
	*Router
	t        *testing.T
	address  string
	replicas []*nativeReplica
	entries  []string // of the fleet file, one per replica
	log      *capture
	client   *http.Client
	server   *edge.Server
	world    *world
}

type rigOptions struct {
	replicas int
	slots    int
	edit     func(o *Options)
	// server bounds the router's own server.
	server edge.ServerConfig
	secure bool
}

// logged waits for a text in the router's log: a request's line follows its answer.
func (s *rig) logged(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(s.log.String(), text) }, patience, time.Millisecond, "%s", text)
}

// newRig starts replicas a, b, c … and a router over them. Probes come once a minute
// unless edit says otherwise, so that a test sees what requests do.
func newRig(t *testing.T, o rigOptions) *rig {
	t.Helper()
	s := &rig{t: t, log: &capture{}}
	config := edge.ServerConfig{}
	more := ""
	if o.secure {
		certFile, keyFile := certificate(t)
		var err error
		config.Certificate, err = edge.LoadCertificate(certFile, keyFile)
		require.NoError(t, err)
		more = fmt.Sprintf(`,"scheme":"https","ca_file":%q`, certFile)
	}
	for i := range o.replicas {
		n := &nativeReplica{t: t, name: string(rune('a' + i)), address: "127.0.0.1:0", health: 200}
		n.post = n.says
		n.models = func(c *edge.Call) { c.Reply(200, "application/json", []byte(`{"object":"list", "data":[]}`)) }
		n.start(config)
		t.Cleanup(n.kill)
		s.replicas = append(s.replicas, n)
		_, port, _ := net.SplitHostPort(n.address)
		s.entries = append(s.entries, fmt.Sprintf(`{"name":%q,"host":"127.0.0.1","port":%s%s}`, n.name, port, more))
	}
	text := fmt.Sprintf(`{"replicas":[%s]`, strings.Join(s.entries, ","))
	if o.slots > 0 {
		var devices []string
		for i := range o.slots {
			devices = append(devices, fmt.Sprint(i))
		}
		text += fmt.Sprintf(`,"hosts":[{"name":"n","devices":[%s],"port_base":%d,"model":"m"}]`, strings.Join(devices, ","), freePorts(t, o.slots))
	}
	c, err := Parse([]byte(text + "}"))
	require.NoError(t, err)
	options := quick(0, len(c.Slots))
	options.HealthInterval, options.RequestTimeout, options.ConnectRetries = time.Minute, patience, 1
	if o.edit != nil {
		o.edit(&options)
	}
	trusts, err := LoadTrusts("", c)
	require.NoError(t, err)
	log := slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s.world = &world{t: t, replicas: map[string]*fakeReplica{}}
	pool, err := NewPool(PoolOptions{Config: c, Options: options, Launcher: s.world, Boot: "b", TrustOf: trusts.Of, Log: log})
	require.NoError(t, err)
	s.Router = NewRouter(RouterOptions{Options: options, Pool: pool, Log: log})
	o.server.Address, o.server.Refuse, o.server.Refusing = "127.0.0.1:0", Refuse, s.Refusing
	s.server, err = edge.Listen(o.server)
	require.NoError(t, err)
	s.address = s.server.Addr().String()
	life, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { pool.Run(life) })
	running.Go(func() { s.server.Serve(s.Handle) })
	transport := &http.Transport{DisableCompression: true}
	s.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		now, cancel := context.WithCancel(context.Background())
		cancel()
		s.server.Shutdown(now)
		end()
		running.Wait()
		s.Close()
		s.world.set(func() {
			for slot := range s.world.replicas {
				s.world.killLocked(slot)
			}
		})
	})
	// The first probe of each replica is over, so that only the test makes facts.
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		st := pool.Snapshot().Stats
		assert.GreaterOrEqual(c, st.ProbesOK+st.ProbesAnswered+st.ProbesFailed, int64(o.replicas))
	}, patience, time.Millisecond)
	return s
}

// answerOf is a whole answer.
type answerOf struct {
	status int
	header http.Header
	body   string
}

func (a answerOf) session() string { return a.header.Get(SessionHeader) }

// servedBy is the name that a replica's answer carries.
func (a answerOf) servedBy(t *testing.T) string {
	t.Helper()
	var b struct {
		Name string `json:"served_by"`
	}
	require.NoError(t, json.Unmarshal([]byte(a.body), &b), "%s", a.body)
	return b.Name
}

// ask sends one request; header lines are "Name: value".
func (s *rig) ask(method, target, body string, header ...string) answerOf {
	s.t.Helper()
	a, err := s.try(method, target, body, header...)
	require.NoError(s.t, err)
	return a
}

func (s *rig) try(method, target, body string, header ...string) (answerOf, error) {
	q, err := http.NewRequest(method, "http://"+s.address+target, strings.NewReader(body))
	if err != nil {
		return answerOf{}, err
	}
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		q.Header.Add(name, value)
	}
	r, err := s.client.Do(q)
	if err != nil {
		return answerOf{}, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return answerOf{r.StatusCode, r.Header, string(text)}, err
}

func (s *rig) post(body string, header ...string) answerOf {
	s.t.Helper()
	return s.ask("POST", pathChat, body, header...)
}

// raw sends bytes on a connection of its own.
func (s *rig) raw(text string) (net.Conn, *bufio.Reader) {
	s.t.Helper()
	nc, err := net.Dial("tcp", s.address)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(patience))
	_, err = io.WriteString(nc, text)
	require.NoError(s.t, err)
	return nc, bufio.NewReader(nc)
}

// view is one replica as /replicas shows it.
func (s *rig) view(name string) ReplicaView {
	s.t.Helper()
	for _, m := range s.pool.Snapshot().Replicas {
		if m.Name == name {
			return m
		}
	}
	require.FailNow(s.t, "no replica", name)
	return ReplicaView{}
}

// idle waits until no request runs on any replica.
func (s *rig) idle() {
	s.t.Helper()
	require.EventuallyWithT(s.t, func(c *assert.CollectT) {
		assert.Zero(c, s.stats.running())
		for _, m := range s.pool.Snapshot().Replicas {
			assert.Zero(c, m.Outstanding, m.Name)
		}
	}, patience, time.Millisecond)
}

// errorOf is the message of an error that the router made.
func errorOf(t *testing.T, a answerOf) string {
	t.Helper()
	var b map[string]any
	require.NoError(t, json.Unmarshal([]byte(a.body), &b), "%s", a.body)
	require.Equal(t, "error", b["object"])
	require.Equal(t, typeJSON, a.header.Get("Content-Type"))
	return b["message"].(string)
}

func chatBody(more string) string {
	return `{"model":"m","messages":[{"role":"user","content":"hi"}]` + more + `}`
}

package pdrouter

import (
	"bufio"
	"bytes"
	"cmp"
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

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/control"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
	"github.com/hw-native-sys/pypto-pd/router/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// standNode is a node that does what its script says, on real sockets.
type standNode struct {
	control.Service // nil: a router calls nothing but Node, Status and Abort
	t               testing.TB
	role            pd.Role
	port            int
	controlPort     int
	id              pd.NodeID
	edge            *edge.Server
	control         *control.Server

	// post answers generations; the default is a plain success.
	post func(c *edge.Call)
	// posts takes every generation's headers and body as it arrives, aborts
	// every abort.
	posts  chan received
	aborts chan wire.Abort

	mu sync.Mutex
	// guarded by mu
	says   wire.Node
	silent bool // does not answer on its control port
	abort  func(wire.Abort) (wire.Status, error)
	status func() wire.Status
}

type received struct {
	target string
	header http.Header
	body   string
	gone   <-chan struct{}
}

func contract() pd.Contract {
	return pd.Contract{
		ProtocolVersion: 2, Adapter: "stand", AdapterVersion: 1, Family: "f", Variant: "v", SpeculativeTokens: 7, Continuation: "c",
		Granularity: "chunk", FinalPartial: "page", ModelRevision: "r", Provider: "simulator", Mapping: "rank-mod", RollingPolicy: "tail",
		AlignmentTokens: 128, ByteAlignment: 64,
		Groups: []pd.CacheGroup{{Name: "full", Kind: pd.Full, PageTokens: 128}, {Name: "ori", Kind: pd.Rolling, PageTokens: 32, WindowTokens: 128}},
		Components: []pd.Component{{
			ID: "k", Group: "full", Atomic: "k", DType: "bf16", ElementBytes: 2, RowsPerPage: 128, RowTokens: 1, RowElements: 8, Layers: []int{0, 1},
		}},
		Bootstrap: pd.Bootstrap{Component: "b", Rows: 128, RowElements: 8, ElementBytes: 2},
	}
}

func newStandNode(t testing.TB, role pd.Role) *standNode {
	t.Helper()
	n := &standNode{t: t, role: role, posts: make(chan received, 256), aborts: make(chan wire.Abort, 256)}
	var err error
	n.edge, err = edge.Listen(edge.ServerConfig{Address: "127.0.0.1:0", Refuse: relay.Refuse})
	require.NoError(t, err)
	n.control, err = control.Listen(control.ServerConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	n.port, n.controlPort = n.edge.Addr().(*net.TCPAddr).Port, n.control.Addr().(*net.TCPAddr).Port
	n.id = pd.NodeID(n.edge.Addr().String())
	k := contract()
	digest, err := wire.ContractDigest(&k)
	require.NoError(t, err)
	n.says = wire.Node{
		ProtocolVersion: 2, Role: role, Node: n.id, Boot: pd.NewBootID(), HTTPAddress: n.edge.Addr().String(),
		ControlAddress: n.control.Addr().String(), TransferHostname: "127.0.0.1", Health: pd.Ready, ServedModel: "m", MaxModelTokens: 1000,
		Contract: k, ContractDigest: digest, Topology: pd.Topology{Ranks: 4, TP: 4}, RingPeriods: map[pd.GroupName]int{"ori": 9},
		Capacity: wire.Capacity{Limit: 8},
	}
	if role == pd.Prefill {
		n.post = retires
	} else {
		n.post = answers
	}
	n.abort = func(wire.Abort) (wire.Status, error) { return wire.Status{Role: role, State: "Aborted"}, nil }
	n.status = func() wire.Status { return wire.Status{Role: role, State: "Reserved"} }
	return n
}

func (n *standNode) start() {
	done := make(chan error, 2)
	go func() { done <- n.edge.Serve(n.handle) }()
	go func() { done <- n.control.Serve(n) }()
	n.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		n.edge.Shutdown(ctx)
		n.control.Shutdown(ctx)
		require.NoError(n.t, <-done)
		require.NoError(n.t, <-done)
	})
}

func (n *standNode) handle(c *edge.Call) {
	h := http.Header{}
	for name, value := range c.Headers() {
		h.Add(name, value)
	}
	n.posts <- received{target: c.Target(), header: h, body: string(c.Body()), gone: c.Context().Done()}
	n.mu.Lock()
	post := n.post
	n.mu.Unlock()
	post(c)
}

// Node implements control.Service.
func (n *standNode) Node(ctx context.Context) (wire.Node, error) {
	n.mu.Lock()
	silent, says := n.silent, n.says
	n.mu.Unlock()
	if silent {
		<-ctx.Done()
		return wire.Node{}, ctx.Err()
	}
	return says, nil
}

// Abort implements control.Service.
func (n *standNode) Abort(_ context.Context, m wire.Abort) (wire.Status, error) {
	// What it does is settled before anybody can see that it was asked.
	n.mu.Lock()
	abort := n.abort
	n.mu.Unlock()
	n.aborts <- m
	return abort(m)
}

// Status implements control.Service.
func (n *standNode) Status(context.Context, wire.StatusQuery) (wire.Status, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.status(), nil
}

// change alters what the node does or says.
func (n *standNode) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// retires is a prefill node's success.
func retires(c *edge.Call) { c.Reply(200, openai.TypeJSON, []byte(`{"state":"RETIRED"}`)) }

const (
	oneEvent  = "data: {\"id\":\"x\",\"choices\":[]}\n\n"
	doneEvent = "data: [DONE]\n\n"
)

// answers is a decode node's success, streamed where that is asked for.
func answers(c *edge.Call) {
	c.SetHeader("X-Request-Id", c.Header("X-PD-Request-Id"))
	if !strings.Contains(string(c.Body()), `"stream":true`) {
		c.Reply(200, openai.TypeJSON, []byte(`{"id":"x"}`))
		return
	}
	c.Stream(200, openai.TypeEvents, func(w *edge.StreamWriter) error {
		w.WriteString(oneEvent)
		w.Flush()
		w.WriteString(doneEvent)
		return w.Flush()
	})
}

// hangs waits until its caller leaves.
func hangs(c *edge.Call) { <-c.Context().Done() }

// refuses answers an error of a node.
func refuses(err error) edge.Handler { return func(c *edge.Call) { relay.ReplyError(c, err) } }

// stand is a router over standNodes.
type stand struct {
	t        testing.TB
	router   *Router
	server   *edge.Server
	address  string
	prefills []*standNode
	decodes  []*standNode
	stop     func()
}

type settings struct {
	prefills, decodes int
	capacity          int
	handoffTimeout    float64
	requestTimeout    float64
	queue             QueueOptions
	policy            string // round_robin unless given
	log               *slog.Logger
	keys              *relay.Keys
	// before runs before the nodes and the router start.
	before func(*stand)
	// tap, if set, changes a node before its place in pd.json is written.
	tap func(*standNode)
	// server bounds the router's port.
	server edge.ServerConfig
	// unready: do not wait for pairs.
	unready bool
}

func newStand(t testing.TB, o settings) *stand {
	t.Helper()
	s := &stand{t: t}
	if o.tap == nil {
		o.tap = func(*standNode) {}
	}
	type entry struct {
		Host        string `json:"host"`
		Port        int    `json:"port"`
		ControlPort int    `json:"control_port"`
	}
	var file struct {
		Runtime struct {
			Prefill        []entry `json:"prefill"`
			Decode         []entry `json:"decode"`
			Provider       string  `json:"provider"`
			Policy         string  `json:"policy"`
			Capacity       int     `json:"capacity"`
			HandoffTimeout float64 `json:"handoff_timeout"`
			RequestTimeout float64 `json:"request_timeout"`
		} `json:"runtime"`
	}
	r := &file.Runtime
	r.Provider, r.Policy, r.Capacity, r.HandoffTimeout, r.RequestTimeout = "simulator", cmp.Or(o.policy, policyTurn), 8, 10, 20
	if o.capacity > 0 {
		r.Capacity = o.capacity
	}
	if o.handoffTimeout > 0 {
		r.HandoffTimeout = o.handoffTimeout
	}
	if o.requestTimeout > 0 {
		r.RequestTimeout = o.requestTimeout
	}
	for range max(o.prefills, 1) {
		n := newStandNode(t, pd.Prefill)
		o.tap(n)
		s.prefills = append(s.prefills, n)
		r.Prefill = append(r.Prefill, entry{"127.0.0.1", n.port, n.controlPort})
	}
	for range max(o.decodes, 1) {
		n := newStandNode(t, pd.Decode)
		o.tap(n)
		s.decodes = append(s.decodes, n)
		r.Decode = append(r.Decode, entry{"127.0.0.1", n.port, n.controlPort})
	}
	b, err := json.Marshal(file)
	require.NoError(t, err)
	c, err := config.Parse(b)
	require.NoError(t, err)
	for _, n := range s.nodes() {
		n.says.Run = c.Run()
	}
	if o.before != nil {
		o.before(s)
	}
	for _, n := range s.nodes() {
		n.start()
	}
	s.router = New(Options{Config: c, Boot: pd.NewBootID(), PollInterval: 50 * time.Millisecond, PollTimeout: 500 * time.Millisecond, Queue: o.queue, Log: o.log, Keys: o.keys})
	o.server.Address, o.server.Refuse = "127.0.0.1:0", relay.Refuse
	s.server, err = edge.Listen(o.server)
	require.NoError(t, err)
	s.address = s.server.Addr().String()
	served, ran := make(chan error, 1), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { served <- s.router.Serve(s.server) }()
	go func() { defer close(ran); s.router.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		down, release := context.WithTimeout(context.Background(), patience)
		defer release()
		s.server.Shutdown(down)
		require.NoError(t, <-served)
		cancel()
		<-ran
	})
	t.Cleanup(s.stop)
	if !o.unready {
		s.until("all pairs serve", func(v poolView) bool { return v.Pairs == len(s.prefills)*len(s.decodes) })
	}
	return s
}

func (s *stand) nodes() []*standNode {
	return append(append([]*standNode{}, s.prefills...), s.decodes...)
}

// until waits for a state of the pool.
func (s *stand) until(what string, ok func(poolView) bool) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return ok(s.router.pool.view()) }, patience, 2*time.Millisecond, what)
}

// untilFree waits until no slot is taken.
func (s *stand) untilFree() {
	s.t.Helper()
	require.Eventually(s.t, func() bool { a, b := s.router.pool.taken(); return a+b == 0 }, patience, 2*time.Millisecond, "slots are given back")
	require.Eventually(s.t, func() bool { return s.router.stats.running() == 0 }, patience, 2*time.Millisecond, "no request runs")
}

func (s *stand) dial() *net.TCPConn {
	s.t.Helper()
	nc, err := net.Dial("tcp", s.address)
	require.NoError(s.t, err)
	nc.SetDeadline(time.Now().Add(patience))
	s.t.Cleanup(func() { nc.Close() })
	return nc.(*net.TCPConn)
}

// send writes a request on a connection of its own and does not wait.
func (s *stand) send(method, target, body string, header ...string) *net.TCPConn {
	s.t.Helper()
	nc := s.dial()
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: h\r\n", method, target)
	for _, h := range header {
		b.WriteString(h + "\r\n")
	}
	fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(body), body)
	_, err := nc.Write(b.Bytes())
	require.NoError(s.t, err)
	return nc
}

// read takes one answer off a connection.
func (s *stand) read(nc net.Conn) (*http.Response, string) {
	s.t.Helper()
	r, err := http.ReadResponse(bufio.NewReader(nc), nil)
	require.NoError(s.t, err)
	body, err := io.ReadAll(r.Body)
	require.NoError(s.t, err)
	return r, string(body)
}

func (s *stand) ask(method, target, body string, header ...string) (*http.Response, string) {
	s.t.Helper()
	nc := s.send(method, target, body, header...)
	defer nc.Close()
	return s.read(nc)
}

func take[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		require.FailNow(t, "nothing came")
		panic("unreachable")
	}
}

func codeOf(t testing.TB, body string) string {
	t.Helper()
	var e struct{ Error struct{ Code string } }
	require.NoError(t, json.Unmarshal([]byte(body), &e), "%s", body)
	return e.Error.Code
}

const (
	plain    = `{"model":"m","prompt":"p"}`
	streamed = `{"model":"m","prompt":"p","stream":true}`
)

package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// read gives a golden message.
func read[T any, M interface {
	*T
	wire.Message
}](t testing.TB, name string) T {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../tests/conformance/testdata/wire", name+".json"))
	require.NoError(t, err)
	m, err := wire.Decode[T, M](b)
	require.NoError(t, err)
	return m
}

// scriptedNode answers every message with a golden one, or with err, and keeps
// what it was sent.
type scriptedNode struct {
	t   testing.TB
	err error
	// hold keeps answers back until the caller has left; left then has why.
	hold    bool
	entered chan struct{}
	left    chan error

	mu   sync.Mutex
	last any
}

func (s *scriptedNode) take(ctx context.Context, m any) error {
	s.mu.Lock()
	s.last = m
	s.mu.Unlock()
	if s.hold {
		s.entered <- struct{}{}
		<-ctx.Done()
		s.left <- context.Cause(ctx)
	}
	return s.err
}

func (s *scriptedNode) Node(ctx context.Context) (wire.Node, error) {
	return read[wire.Node](s.t, "node"), s.take(ctx, nil)
}

func (s *scriptedNode) Session(ctx context.Context, m wire.Session) (wire.Session, error) {
	answer := read[wire.Session](s.t, "session")
	answer.Peer = target.peer()
	return answer, s.take(ctx, m)
}

func (s *scriptedNode) Status(ctx context.Context, m wire.StatusQuery) (wire.Status, error) {
	return read[wire.Status](s.t, "status"), s.take(ctx, m)
}

func (s *scriptedNode) Abort(ctx context.Context, m wire.Abort) (wire.Status, error) {
	return read[wire.Status](s.t, "status"), s.take(ctx, m)
}

func (s *scriptedNode) Reserve(ctx context.Context, m wire.Reserve) (wire.Reserved, error) {
	return read[wire.Reserved](s.t, "reserved"), s.take(ctx, m)
}

func (s *scriptedNode) Chunk(ctx context.Context, m wire.Chunk) (wire.ChunkAck, error) {
	return wire.ChunkAck{Chunk: m.Manifest.Chunk}, s.take(ctx, m)
}

func (s *scriptedNode) Results(ctx context.Context, m wire.Results) (wire.Ack, error) {
	return wire.Ack{}, s.take(ctx, m)
}

func (s *scriptedNode) Commit(ctx context.Context, m wire.Commit) (wire.Committed, error) {
	return read[wire.Committed](s.t, "committed"), s.take(ctx, m)
}

func (s *scriptedNode) SourceStopped(ctx context.Context, m wire.SourceStopped) (wire.Ack, error) {
	return wire.Ack{}, s.take(ctx, m)
}

// targetNode is the decode node of the golden messages.
type targetNode pd.NodeID

const target = targetNode("[fd00::2]:8000")

func (n targetNode) peer() pd.Peer {
	return pd.Peer{Node: pd.NodeID(n), Boot: "22222222222222222222222222222222"}
}

func (n targetNode) at(address string) Target {
	return Target{Node: pd.NodeID(n), Address: address}
}

// start serves a node until the test ends and gives its address.
func start(t testing.TB, service Service, refused func(error)) string {
	t.Helper()
	s, err := Listen(ServerConfig{Address: "127.0.0.1:0", Refused: refused})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(service) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		assert.NoError(t, s.Shutdown(ctx))
		assert.NoError(t, <-ended)
	})
	return s.Addr().String()
}

func client(t testing.TB) *Client {
	c := NewClient(ClientConfig{})
	t.Cleanup(c.Close)
	return c
}

// bound is the deadline of calls that are expected to end well before it.
func bound(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// calls sends every message once.
func calls(t testing.TB, c *Client, to Target) map[string]func(context.Context) (sent, answer any, err error) {
	abort, chunk, commit := read[wire.Abort](t, "abort"), read[wire.Chunk](t, "chunk"), read[wire.Commit](t, "commit")
	reserve, results, session := read[wire.Reserve](t, "reserve"), read[wire.Results](t, "results"), read[wire.Session](t, "session")
	query, stopped := read[wire.StatusQuery](t, "status_query"), read[wire.SourceStopped](t, "source_stopped")
	return map[string]func(context.Context) (any, any, error){
		"node": func(ctx context.Context) (any, any, error) { a, err := c.Node(ctx, to); return nil, a, err },
		"session": func(ctx context.Context) (any, any, error) {
			a, err := c.Session(ctx, to, session)
			return session, a, err
		},
		"status": func(ctx context.Context) (any, any, error) { a, err := c.Status(ctx, to, query); return query, a, err },
		"abort":  func(ctx context.Context) (any, any, error) { a, err := c.Abort(ctx, to, abort); return abort, a, err },
		"reserve": func(ctx context.Context) (any, any, error) {
			a, err := c.Reserve(ctx, to, reserve)
			return reserve, a, err
		},
		"chunk": func(ctx context.Context) (any, any, error) { a, err := c.Chunk(ctx, to, chunk); return chunk, a, err },
		"results": func(ctx context.Context) (any, any, error) {
			a, err := c.Results(ctx, to, results)
			return results, a, err
		},
		"commit": func(ctx context.Context) (any, any, error) {
			a, err := c.Commit(ctx, to, commit)
			return commit, a, err
		},
		"source stopped": func(ctx context.Context) (any, any, error) {
			a, err := c.SourceStopped(ctx, to, stopped)
			return stopped, a, err
		},
	}
}

// Behaviour 14.
func TestEveryMessageArrivesAndIsAnswered(t *testing.T) {
	node := &scriptedNode{t: t}
	c := client(t)
	want := map[string]any{
		"node": read[wire.Node](t, "node"), "status": read[wire.Status](t, "status"), "abort": read[wire.Status](t, "status"),
		"reserve": read[wire.Reserved](t, "reserved"), "chunk": wire.ChunkAck{Chunk: 1}, "results": wire.Ack{},
		"commit": read[wire.Committed](t, "committed"), "source stopped": wire.Ack{},
	}
	for name, send := range calls(t, c, target.at(start(t, node, nil))) {
		t.Run(name, func(t *testing.T) {
			sent, answer, err := send(bound(t))
			require.NoError(t, err)
			if name == "session" {
				got := node.last.(wire.Session)
				assert.NotEqual(t, sent.(wire.Session).Nonce, got.Nonce, "every session has a nonce of its own")
				assert.Equal(t, got.Nonce, answer.(wire.Session).Nonce)
				got.Nonce = sent.(wire.Session).Nonce
				assert.Equal(t, sent, got)
				return
			}
			assert.Equal(t, sent, node.last)
			assert.Equal(t, want[name], answer)
		})
	}
}

func TestRefusalsKeepTheirCode(t *testing.T) {
	node := &scriptedNode{t: t, err: fmt.Errorf("wrapped: %w", pd.Errorf(pd.CodeStaleBoot, "reserve", "boot 7, want 8"))}
	c := client(t)
	for name, send := range calls(t, c, target.at(start(t, node, nil))) {
		_, _, err := send(bound(t))
		require.ErrorIs(t, err, pd.CodeStaleBoot, name)
		assert.Contains(t, err.Error(), " at [fd00::2]:8000: boot 7, want 8 (STALE_BOOT_IDENTITY)", name)
	}
}

func TestDeadlineEndsTheCallAndTheWaiting(t *testing.T) {
	node := &scriptedNode{t: t, hold: true, entered: make(chan struct{}, 1), left: make(chan error, 1)}
	c := client(t)
	to := target.at(start(t, node, nil))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Status(ctx, to, read[wire.StatusQuery](t, "status_query"))
	require.EqualError(t, err, "ask status at [fd00::2]:8000: no answer in time (DEADLINE)")
	require.ErrorContains(t, <-node.left, "client is gone", "the service learns that the caller left")
}

func TestCancelEndsTheCall(t *testing.T) {
	node := &scriptedNode{t: t, hold: true, entered: make(chan struct{}, 1), left: make(chan error, 1)}
	c := client(t)
	to := target.at(start(t, node, nil))
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Status(ctx, to, read[wire.StatusQuery](t, "status_query"))
		ended <- err
	}()
	<-node.entered
	cancel(errors.New("the request is over"))
	require.EqualError(t, <-ended, "ask status at [fd00::2]:8000: the request is over (ABORTED)")
	require.Error(t, <-node.left)
}

func TestNoPeer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	c := client(t)
	_, err = c.Node(bound(t), target.at(address))
	require.EqualError(t, err, "ask node at [fd00::2]:8000: no connection: connect: connection refused (PEER_UNREACHABLE)")
	require.NotContains(t, err.Error(), address)

	over, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = c.Node(over, target.at(address))
	require.ErrorIs(t, err, pd.CodeAborted)
}

func TestTooLargeMessageIsNotSent(t *testing.T) {
	m := read[wire.Abort](t, "abort")
	m.From = strings.Repeat("x", pd.MaxControlBytes)
	_, err := client(t).Abort(bound(t), target.at("127.0.0.1:1"), m)
	require.ErrorIs(t, err, pd.CodeBodyTooLarge)
}

// hangUp ends an answer of a stub that closes the connection.
const hangUp = "\x00"

// stub is a peer that is no node: it answers each request with the next of its
// answers.
func stub(t *testing.T, answers ...string) (address string, connections *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	connections = new(atomic.Int32)
	var all sync.WaitGroup
	next := make(chan string, len(answers))
	for _, a := range answers {
		next <- a
	}
	all.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			all.Go(func() {
				defer nc.Close()
				r := bufio.NewReader(nc)
				for {
					length := 0
					for {
						line, err := r.ReadString('\n')
						if err != nil {
							return
						}
						fmt.Sscanf(strings.ToLower(line), "content-length: %d", &length)
						if line == "\r\n" {
							break
						}
					}
					if _, err := io.CopyN(io.Discard, r, int64(length)); err != nil {
						return
					}
					answer, last := strings.CutSuffix(<-next, hangUp)
					io.WriteString(nc, answer)
					if last {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr().String(), connections
}

func http(status int, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

// Behaviour 19.
func TestPeersThatAreNoNode(t *testing.T) {
	chunk := read[wire.Chunk](t, "chunk")
	node, err := os.ReadFile("../../tests/conformance/testdata/wire/node.json")
	require.NoError(t, err)
	session, err := os.ReadFile("../../tests/conformance/testdata/wire/session.json")
	require.NoError(t, err)
	ours := strings.Replace(string(session), `"node":"10.1.0.1:8000"`, `"node":"[fd00::2]:8000"`, 1)
	for _, c := range []struct {
		name, answer, call string
		code               pd.Code
		want               string
	}{
		{"ordinary API", http(404, `{"object":"error","message":"no such route"}`), "node", pd.CodeMalformed, "HTTP status 404 without a body of the control protocol; is this its control port?"},
		{"page", http(200, `<html>`), "node", pd.CodeMalformed, "read the answer: read protocol version:"},
		{"older version", http(200, `{"protocol_version":1,"role":"P"}`), "node", pd.CodeVersionMismatch, "the peer speaks protocol version 1, this node speaks 2"},
		{"another node", http(200, strings.Replace(string(node), `"node_id":"[fd00::2]:8000"`, `"node_id":"x"`, 1)), "node", pd.CodeIdentity, `node "x" answers at its control address`},
		{"session of another node", http(200, string(session)), "session", pd.CodeIdentity, `node "10.1.0.1:8000" answers at its control address`},
		{"old nonce", http(200, ours), "session", pd.CodeIdentity, "the answer repeats another nonce"},
		{"ack of another chunk", http(200, `{"chunk":7}`), "chunk", pd.CodeMalformed, "the answer acknowledges chunk 7, want 1"},
		{"code of a newer version", http(418, `{"error":{"code":"TEAPOT","message":"short and stout","retryable":false,"definite":true}}`), "chunk", pd.CodeInternal, "unknown code TEAPOT: short and stout"},
		{"no HTTP", "SSH-2.0-OpenSSH_9.2\r\n\r\n", "chunk", pd.CodePeerUnreachable, "malformed HTTP message"},
		{"cut answer", "HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{" + hangUp, "chunk", pd.CodePeerUnreachable, "connection ended before the answer was complete"},
		{"no answer", hangUp, "chunk", pd.CodePeerUnreachable, "connection ended before the answer was complete"},
		{"too long", "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", "chunk", pd.CodeBodyTooLarge, "the answer is too large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			address, _ := stub(t, c.answer)
			to := target.at(address)
			var err error
			switch c.call {
			case "node":
				_, err = client(t).Node(bound(t), to)
			case "session":
				_, err = client(t).Session(bound(t), to, read[wire.Session](t, "session"))
			case "chunk":
				_, err = client(t).Chunk(bound(t), to, chunk)
			}
			require.ErrorContains(t, err, c.want)
			require.Equal(t, c.code, pd.CodeOf(err), "%v", err)
			require.NotContains(t, err.Error(), address)
		})
	}
}

// TestIdleConnectionClosedUnderTheCall: the peer closes a kept connection just
// when the next message arrives; the message is sent once more.
func TestIdleConnectionClosedUnderTheCall(t *testing.T) {
	ack := http(200, `{}`)
	address, connections := stub(t, ack, hangUp, ack)
	c := client(t)
	m := read[wire.Results](t, "results")
	for range 2 {
		_, err := c.Results(bound(t), target.at(address), m)
		require.NoError(t, err)
	}
	assert.EqualValues(t, 2, connections.Load())
}

func TestManyCallsAtOnce(t *testing.T) {
	node := &scriptedNode{t: t}
	c := client(t)
	to := target.at(start(t, node, nil))
	m := read[wire.Chunk](t, "chunk")
	ctx := bound(t)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 4 {
				if _, err := c.Chunk(ctx, to, m); err != nil {
					t.Errorf("chunk: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

// say sends raw bytes and reads the whole answer.
func say(t *testing.T, address, text string) (head, body string) {
	t.Helper()
	nc, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, nc.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(nc, text)
	require.NoError(t, err)
	r := bufio.NewReader(nc)
	var b strings.Builder
	length := 0
	for {
		line, err := r.ReadString('\n')
		require.NoError(t, err, "%s", b.String())
		fmt.Sscanf(line, "Content-Length: %d", &length)
		if line == "\r\n" {
			break
		}
		b.WriteString(line)
	}
	whole := make([]byte, length)
	_, err = io.ReadFull(r, whole)
	require.NoError(t, err)
	return b.String(), string(whole)
}

func TestWhatIsNoMessageIsRefused(t *testing.T) {
	var mu sync.Mutex
	var refused []pd.Code
	node := &scriptedNode{t: t}
	address := start(t, node, func(err error) {
		mu.Lock()
		defer mu.Unlock()
		refused = append(refused, pd.CodeOf(err))
	})
	post := func(path, body string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	}
	for _, c := range []struct {
		name, in, status string
		code             pd.Code
		want             string
	}{
		{"another path", "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", "404", pd.CodeNotFound, `"/v1/models" is no path of the control protocol`},
		{"an older version", post("/pd/v1/reserve", `{}`), "409", pd.CodeVersionMismatch, "the peer speaks protocol version 1, this node speaks 2"},
		{"a session of another version", post(wire.PathSession, `{"protocol_version":3,"hello":null}`), "409", pd.CodeVersionMismatch, "the peer speaks protocol version 3"},
		{"another method", "DELETE /pd/v2/node HTTP/1.1\r\nHost: x\r\n\r\n", "405", pd.CodeMethodNotAllowed, `/pd/v2/node takes GET, not "DELETE"`},
		{"GET of a message", "GET /pd/v2/abort HTTP/1.1\r\nHost: x\r\n\r\n", "405", pd.CodeMethodNotAllowed, "/pd/v2/abort takes POST"},
		{"no body", post(wire.PathAbort, ""), "400", pd.CodeMalformed, "the text is empty"},
		{"no JSON", post(wire.PathAbort, "abort!"), "400", pd.CodeMalformed, "(line 1, column 1): invalid character 'a'"},
		{"a deep body", post(wire.PathAbort, strings.Repeat("[", 1<<20)), "400", pd.CodeMalformed, "want an object, found an array"},
		{"another message", post(wire.PathCommit, `{"fence":{}}`), "400", pd.CodeMalformed, "is missing"},
		{"a body beyond the bound", "POST /pd/v2/chunk HTTP/1.1\r\nHost: x\r\nContent-Length: 4294967296\r\n\r\n", "413", pd.CodeBodyTooLarge, "the request body exceeds 16777216 bytes"},
		{"no HTTP", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "400", pd.CodeMalformed, "this is a control port, which speaks HTTP/1.1 under /pd/v2/"},
		{"an older binary frame", "\x00\x00\x00\x20\x84\xa5hello\r\n\r\n", "400", pd.CodeMalformed, "this is a control port"},
	} {
		t.Run(c.name, func(t *testing.T) {
			head, body := say(t, address, c.in)
			assert.True(t, strings.HasPrefix(head, "HTTP/1.1 "+c.status+" "), head)
			assert.Contains(t, head, "Content-Type: application/json")
			if c.code == pd.CodeMethodNotAllowed {
				assert.Contains(t, head, "Allow: ")
			}
			var f wire.Failure
			require.NoError(t, json.Unmarshal([]byte(body), &f), body)
			assert.Contains(t, f.Error.Message, c.want)
			assert.Equal(t, c.code.String(), f.Error.Code)
			assert.True(t, f.Error.Definite)
			mu.Lock()
			defer mu.Unlock()
			require.NotEmpty(t, refused)
			assert.Equal(t, c.code, refused[len(refused)-1])
		})
	}
	assert.Nil(t, node.last, "nothing of this reached the node")
}

func TestListenTellsTheAddress(t *testing.T) {
	s, err := Listen(ServerConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	address := s.Addr().String()
	_, err = Listen(ServerConfig{Address: address})
	require.ErrorContains(t, err, "listen on "+address)
	require.NoError(t, s.Shutdown(bound(t)), "a server that was never served")
}

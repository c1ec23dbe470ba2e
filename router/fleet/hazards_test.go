package fleet

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// Hazard 1: probes that wait behind streams make a busy fleet look dead. However
// many streams are open, no replica is taken out, no probe is late, and the next
// request does not wait.
func TestManyStreamsDoNotStarveProbes(t *testing.T) {
	const streams = 300
	s := newRig(t, rigOptions{replicas: 2, edit: func(o *Options) { o.HealthInterval, o.AffinitySlack = 5*time.Millisecond, streams }})
	finish := make(chan struct{})
	for _, n := range s.replicas {
		n.answer(func(c *edge.Call) {
			if strings.Contains(string(c.Body()), "quick") {
				n.says(c)
				return
			}
			c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
				w.WriteString("data: 1\n\n")
				w.Flush()
				select {
				case <-finish:
				case <-c.Context().Done():
					return errors.New("over")
				}
				w.WriteString("data: [DONE]\n\n")
				return nil
			})
		})
	}
	var open []*http.Response
	for range streams {
		_, br := s.raw("POST " + pathChat + " HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n\r\n{}")
		r, err := http.ReadResponse(br, nil)
		require.NoError(t, err)
		open = append(open, r)
	}
	before := s.pool.Snapshot()
	assert.Equal(t, streams, before.Replicas[0].Outstanding+before.Replicas[1].Outstanding)
	require.Eventually(t, func() bool { return s.pool.Snapshot().Stats.ProbesOK > before.Stats.ProbesOK+100 }, patience, time.Millisecond)
	assert.Equal(t, 200, s.post(`{"quick":1}`).status)
	after := s.pool.Snapshot()
	assert.Zero(t, after.Stats.ProbesFailed)
	assert.Zero(t, after.Stats.ProbesSkipped)
	for _, m := range after.Replicas {
		assert.True(t, m.Ready, m.Name)
	}
	assert.NotContains(t, s.log.String(), "replica of the file changed")
	close(finish)
	for _, r := range open {
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, "data: 1\n\ndata: [DONE]\n\n", string(body))
	}
	s.idle()
}

// rawReplica answers each connection of a replica's address by hand.
func rawReplica(t *testing.T, n *nativeReplica, handle func(nc net.Conn, br *bufio.Reader)) {
	t.Helper()
	n.kill()
	l, err := net.Listen("tcp", n.address)
	require.NoError(t, err)
	var serving sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer nc.Close()
				nc.SetDeadline(time.Now().Add(patience))
				handle(nc, bufio.NewReader(nc))
			})
		}
	})
}

// Hazard 2, case B13: a replica that closes its idle connections without a word
// costs no request, is not taken out, and gets no request twice.
func TestConnectionsThatTheReplicaClosesCostNothing(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 1})
	var taken atomic.Int64
	rawReplica(t, s.replicas[0], func(nc net.Conn, br *bufio.Reader) {
		q, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		io.Copy(io.Discard, q.Body)
		if q.Method == "POST" {
			taken.Add(1)
		}
		io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	})
	for range 100 {
		a := s.post(chatBody(""))
		require.Equal(t, 200, a.status)
		require.Equal(t, "ok", a.body)
	}
	assert.EqualValues(t, 100, taken.Load())
	assert.True(t, s.view("a").Ready)
}

// Case B01: what an abandoned answer leaves is nobody else's.
func TestAbandonedAnswersReachNobodyElse(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 1})
	s.replicas[0].answer(func(c *edge.Call) {
		marker := c.Header("X-Marker")
		if marker != "" {
			c.Reply(200, "text/plain", []byte(marker))
			return
		}
		c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
			for {
				w.WriteString("data: of another\n\n")
				if err := w.Flush(); err != nil {
					return err
				}
			}
		})
	})
	for i := range 30 {
		nc, br := s.raw("POST " + pathChat + " HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n\r\n{}")
		_, err := http.ReadResponse(br, nil)
		require.NoError(t, err)
		nc.Close()
		for j := range 5 {
			marker := fmt.Sprintf("marker-%d-%d", i, j)
			a := s.post(chatBody(""), "X-Marker: "+marker)
			require.Equal(t, 200, a.status)
			require.Equal(t, marker, a.body)
		}
	}
	s.idle()
}

// Hazard 15: an IPv6 replica is dialled as one.
func TestIPv6ReplicaIsDialled(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
		t.Skip("this machine has no IPv6 loopback")
	}
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	server, err := edge.Listen(edge.ServerConfig{Address: fmt.Sprintf("[::1]:%d", port)})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- server.Serve(func(c *edge.Call) { c.Reply(200, "", []byte(c.Header("Host"))) }) }()
	defer func() {
		server.Shutdown(t.Context())
		<-done
	}()
	c := mustParse(t, fmt.Sprintf(`{"replicas":[{"host":"::1","port":%d}]}`, port))
	client := edge.NewClient(edge.ClientConfig{MaxIdle: -1})
	defer client.Close()
	r, err := client.Do(t.Context(), edge.Request{Method: "GET", Address: hostPort(c.Replicas[0].Host, c.Replicas[0].Port), Target: "/"})
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintf("[::1]:%d", port), string(r.Body))
}

// Case B36: a request with two readings reaches no replica twice, and nothing that
// it hides reaches /replicas.
func TestHiddenRequestsReachNobody(t *testing.T) {
	const hidden = "POST /replicas HTTP/1.1\r\nHost: r\r\nContent-Length: 0\r\n\r\n"
	for name, head := range map[string]string{
		"length and coding": "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"coding and length": "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
		"two lengths":       "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
		"signed length":     "Content-Length: +5\r\n\r\nhello",
		"list of lengths":   "Content-Length: 5, 5\r\n\r\nhello",
		"identity":          "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"xchunked":          "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"two codings":       "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"space":             "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"hex size":          "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
		"huge size":         "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\nhello",
		"bare line feed":    "X: y\nContent-Length: 5\r\n\r\nhello",
		"zero byte":         "X: \x00\r\nContent-Length: 5\r\n\r\nhello",
		"folded":            "X: y\r\n Content-Length: 5\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := newRig(t, rigOptions{replicas: 1, slots: 1})
			nc, br := s.raw("POST " + pathChat + " HTTP/1.1\r\nHost: r\r\n" + head + hidden)
			r, err := http.ReadResponse(br, nil)
			require.NoError(t, err)
			assert.Equal(t, 400, r.StatusCode)
			_, err = io.ReadAll(r.Body)
			require.NoError(t, err)
			nc.(*net.TCPConn).CloseWrite()
			rest, err := io.ReadAll(br)
			if err == nil {
				assert.Empty(t, rest, "the connection is closed")
			}
			assert.Empty(t, s.replicas[0].requests())
			assert.Empty(t, s.world.launches())
		})
	}
}

// Case B37: brackets are not decoded, however many there are.
func TestDeeplyNestedBodiesAreForwarded(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 1, server: edge.ServerConfig{MaxBody: 64 << 20}})
	for _, depth := range []int{10_000, 3_000_000} {
		for _, body := range []string{
			`{"x":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `,"session_id":"deep"}`,
			`{"x":` + strings.Repeat("[", depth), strings.Repeat(`{"a":`, depth),
		} {
			a := s.post(body)
			require.Equal(t, 200, a.status)
			got := s.replicas[0].requests()
			require.Equal(t, sha256.Sum256([]byte(body)), sha256.Sum256([]byte(got[len(got)-1].body)))
			if strings.HasSuffix(body, "}") {
				assert.Equal(t, "deep", a.session())
			}
			s.replicas[0].change(func() { s.replicas[0].got = nil })
		}
	}
}

// Case B24: what a replica says of a client's request is held against nobody.
func TestRefusalsOfAReplicaDoNotTakeItOut(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 1})
	for _, status := range []int{400, 401, 404, 413, 422, 429, 500, 502, 503} {
		s.replicas[0].answer(func(c *edge.Call) {
			c.SetHeader("Retry-After", "9")
			c.Reply(status, "application/json", []byte(`{"detail":[]}`))
		})
		for range 5 {
			a := s.post(chatBody(""))
			require.Equal(t, status, a.status)
			require.Equal(t, `{"detail":[]}`, a.body)
			require.Equal(t, "9", a.header.Get("Retry-After"))
		}
	}
	s.replicas[0].answer(s.replicas[0].says)
	assert.Equal(t, 200, s.post(chatBody("")).status)
}

// Case B60: an answer whose head is too large is an error, and the replica stays.
func TestAnswerWithAnOversizedHead(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 1})
	s.replicas[0].answer(func(c *edge.Call) {
		c.SetHeader("X-Large", strings.Repeat("x", 20<<10))
		c.Reply(200, "", nil)
	})
	a := s.post(chatBody(""), "Cookie: "+strings.Repeat("c", 9<<10))
	assert.Equal(t, 200, a.status)
	assert.Len(t, a.header.Get("X-Large"), 20<<10)
	assert.Len(t, s.replicas[0].requests()[0].header.Get("Cookie"), 9<<10)
	s.replicas[0].answer(func(c *edge.Call) {
		c.SetHeader("X-Large", strings.Repeat("x", 40<<10))
		c.Reply(200, "", nil)
	})
	assert.Equal(t, 502, s.post(chatBody("")).status)
	assert.Equal(t, 431, s.post(chatBody(""), "Cookie: "+strings.Repeat("c", 40<<10)).status)
	s.idle()
	assert.True(t, s.view("a").Ready)
}

// Statuses without a body, and an answer that ends with its connection.
func TestAnswersWithoutABodyOrALength(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 1})
	s.replicas[0].answer(func(c *edge.Call) { c.Reply(204, "", nil) })
	a := s.post(chatBody(""))
	assert.Equal(t, 204, a.status)
	assert.Empty(t, a.header.Get("Content-Length"))
	large := strings.Repeat("x", maxWhole+1)
	rawReplica(t, s.replicas[0], func(nc net.Conn, br *bufio.Reader) {
		q, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		io.Copy(io.Discard, q.Body)
		switch {
		case q.Header.Get("X-Switch") != "":
			io.WriteString(nc, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n")
		case q.Header.Get("X-Large") != "":
			fmt.Fprintf(nc, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(large), large)
		default:
			io.WriteString(nc, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nto the end")
		}
	})
	a = s.post(chatBody(""))
	assert.Equal(t, 200, a.status)
	assert.Equal(t, "to the end", a.body)
	assert.Empty(t, a.header.Get("Connection"))
	// A large answer of known length is passed on as it comes.
	a = s.post(chatBody(""), "X-Large: 1")
	assert.Equal(t, 200, a.status)
	assert.True(t, large == a.body)
	assert.Equal(t, fmt.Sprint(len(large)), a.header.Get("Content-Length"))
	// An upgrade that nobody asked for is no answer.
	a = s.post(chatBody(""), "X-Switch: 1")
	assert.Equal(t, 502, a.status)
	assert.Equal(t, "replica a gave an answer that cannot be read", errorOf(t, a))
}

func TestProbesGoOnUntilThePoolEnds(t *testing.T) {
	// Fleet behaviour 40
	p := startPool(t, 1, quick(1, 1), nil)
	require.Eventually(t, func() bool { return p.Snapshot().Stats.ProbesOK > 5 }, patience, time.Millisecond)
	p.end()
	asked := p.Snapshot().Stats
	replica := p.Snapshot().Replicas
	require.Len(t, replica, 1)
	assert.True(t, replica[0].Ready, "the end of the router says nothing of its replicas")
	assert.Equal(t, asked, p.Snapshot().Stats)
	// One that is ended before it has begun ends.
	never, err := NewPool(PoolOptions{Config: mustParse(t, `{"replicas":[{"host":"127.0.0.1","port":1}]}`), Options: quick(0, 0), Boot: "b"})
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	never.Run(ended)
	assert.True(t, never.Snapshot().Replicas[0].Ready)
}

// Hazard 11, case B10: a generation that ends late gives back the count of the
// instance that it ran on, not that of the next one of the same name.
func TestLateEndDoesNotCountForTheNextOfTheSameName(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 2})
	began, finish := make(chan struct{}, 2), []chan struct{}{make(chan struct{}), make(chan struct{})}
	for _, n := range s.replicas {
		n.answer(func(c *edge.Call) {
			began <- struct{}{}
			<-finish[int(c.Body()[0]-'0')]
			n.says(c)
		})
	}
	done := make(chan answerOf, 2)
	run := func(body string) {
		go func() { done <- s.post(body) }()
		await(t, began)
	}
	reload := func(entries ...string) {
		t.Helper()
		require.NoError(t, s.pool.Reload(mustParse(t, `{"replicas":[`+strings.Join(entries, ",")+`]}`), s.options.Options))
	}
	run("0")
	old := "a"
	if s.view("b").Outstanding == 1 {
		old = "b"
	}
	i := int(old[0] - 'a')
	require.Equal(t, 1, s.view(old).Outstanding)
	reload(s.entries[1-i])
	reload(s.entries[0], s.entries[1])
	require.Zero(t, s.view(old).Outstanding, "it is another instance")
	reload(s.entries[i])
	run("1")
	require.Equal(t, 1, s.view(old).Outstanding)
	close(finish[0])
	require.Equal(t, 200, await(t, done).status, "what ran on goes to its end")
	require.Equal(t, 1, s.view(old).Outstanding)
	close(finish[1])
	require.Equal(t, 200, await(t, done).status)
	s.idle()
}

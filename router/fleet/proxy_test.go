package fleet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
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

// Case B08 and B60: bytes, path, query and header lines arrive as they were sent.
func TestRequestArrivesAsItWasSent(t *testing.T) {
	// Fleet behaviours 41, 44 and 55
	s := newRig(t, rigOptions{replicas: 1})
	body := `{"seed":9007199254740993,  "n":12345678901234567890,"top_p":0.95,"temperature":1e-7,"logit_bias":{"50256":-0.0},` +
		"\n\t" + `"x_vendor":{"a":[1.10,2.0]},"stream":false,"stream":false,"text":"\u4f60你"}`
	for _, path := range []string{pathCompletions, pathChat} {
		target := path + "?x=%20+&x=2&y"
		_, br := s.raw("POST " + target + " HTTP/1.1\r\nHost: router\r\nContent-Type: application/json\r\nAuthorization: Bearer k\r\n" +
			"x-CuStOm: 1\r\nX-Custom: 2\r\nConnection: X-Foo, keep-alive\r\nX-Foo: 1\r\nTE: trailers\r\nKeep-Alive: 5\r\nProxy-Authorization: p\r\n" +
			"Expect: 100-continue\r\ntraceparent: 00-1\r\nContent-Length: " + fmt.Sprint(len(body)) + "\r\n\r\n" + body)
		r, err := http.ReadResponse(br, nil)
		require.NoError(t, err)
		require.Equal(t, 200, r.StatusCode)
		got := s.replicas[0].requests()
		q := got[len(got)-1]
		assert.Equal(t, target, q.target)
		assert.Equal(t, body, q.body)
		assert.Contains(t, q.lines, "x-CuStOm: 1")
		assert.Contains(t, q.lines, "X-Custom: 2")
		assert.Equal(t, "Bearer k", q.header.Get("Authorization"))
		assert.Equal(t, "application/json", q.header.Get("Content-Type"))
		assert.Equal(t, "00-1", q.header.Get("Traceparent"))
		assert.Equal(t, []string{s.replicas[0].address}, q.header.Values("Host"))
		assert.Equal(t, []string{fmt.Sprint(len(body))}, q.header.Values("Content-Length"))
		for _, dropped := range []string{"X-Foo", "Te", "Keep-Alive", "Proxy-Authorization", "Expect", "Accept-Encoding", "User-Agent", "X-Forwarded-For", "Transfer-Encoding"} {
			assert.Empty(t, q.header.Values(dropped), dropped)
		}
	}
}

// Case B28 and B60: what a replica answers arrives as it was.
func TestAnswerArrivesAsItWasGiven(t *testing.T) {
	// Fleet behaviour 43
	s := newRig(t, rigOptions{replicas: 1})
	s.replicas[0].answer(func(c *edge.Call) {
		c.AddHeader("Set-Cookie", "a=1")
		c.AddHeader("Set-Cookie", "b=2")
		c.AddHeader("x-LoWer", "1")
		c.AddHeader("Content-Encoding", "gzip")
		c.AddHeader("Retry-After", "7")
		c.AddHeader(SessionHeader, "the-replicas-own")
		c.Reply(429, "application/vnd.x+json; charset=utf-8", []byte("not really gzip"))
	})
	_, br := s.raw("POST " + pathChat + " HTTP/1.1\r\nHost: r\r\nX-Session-Id: mine\r\nContent-Length: 2\r\n\r\n{}")
	head := ""
	for {
		line, err := br.ReadString('\n')
		require.NoError(t, err)
		if head += line; line == "\r\n" {
			break
		}
	}
	for _, line := range []string{
		"HTTP/1.1 429 ", "Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n", "x-LoWer: 1\r\n", "Content-Encoding: gzip\r\n", "Retry-After: 7\r\n",
		"Content-Type: application/vnd.x+json; charset=utf-8\r\n", "Content-Length: 15\r\n", "X-Session-Id: mine\r\n",
	} {
		assert.Contains(t, head, line)
	}
	assert.NotContains(t, head, "the-replicas-own")
	assert.NotContains(t, strings.ToLower(head), "connection:", "the replica's connection is not the client's")
	assert.True(t, s.view("a").routable(), "what is the client's own fault is held against nobody")
}

func TestSessionIDIsOnEveryAnswer(t *testing.T) {
	// Fleet behaviours 45 to 49
	s := newRig(t, rigOptions{replicas: 1, server: edge.ServerConfig{MaxBody: 1000}})
	minted := s.post(chatBody(""))
	require.Equal(t, 200, minted.status)
	assert.Regexp(t, "^[0-9a-f]{32}$", minted.session())
	assert.Equal(t, minted.session(), s.replicas[0].requests()[0].header.Get(SessionHeader), "the replica gets it, too")
	assert.Equal(t, "mine", s.post(chatBody(""), "x-SESSION-id: mine").session())
	assert.Equal(t, "of-body", s.post(chatBody(`,"session_id":"of-body"`)).session())
	assert.Equal(t, "mine", s.post(chatBody(`,"session_id":"of-body"`), "X-Session-Id: mine").session())
	notJSON := s.post("no JSON at all")
	assert.Equal(t, 200, notJSON.status)
	assert.Len(t, notJSON.session(), 32)
	for _, bad := range []string{`"a\r\nSet-Cookie: x=1"`, `"你"`, `""`, `12345`, `null`, `["x"]`, `" a "`, `"` + strings.Repeat("x", 200) + `"`} {
		a := s.post(chatBody(`,"session_id":` + bad))
		require.Equal(t, 200, a.status, "%s", bad)
		assert.Regexp(t, "^[0-9a-f]{32}$", a.session(), bad)
		assert.Empty(t, a.header.Values("Set-Cookie"))
	}
	s.logged(t, "length=200")
	assert.NotContains(t, s.log.String(), "xxxx")

	// Streams, refusals of the replica, and refusals of the router.
	s.replicas[0].answer(s.replicas[0].streams)
	assert.Equal(t, "mine", s.post(chatBody(""), "X-Session-Id: mine").session())
	s.replicas[0].answer(func(c *edge.Call) { c.Reply(400, "", nil) })
	assert.Equal(t, "mine", s.post(chatBody(""), "X-Session-Id: mine").session())
	for _, header := range []string{"X-Session-Id: mine", "X-Session-Id: not/usable", "X-Other: 1"} {
		large := s.post(strings.Repeat("x", 1001), header)
		assert.Equal(t, 413, large.status)
		assert.Equal(t, "the request body exceeds 1000 bytes", errorOf(t, large))
		if header == "X-Session-Id: mine" {
			assert.Equal(t, "mine", large.session())
		} else {
			assert.Regexp(t, "^[0-9a-f]{32}$", large.session())
		}
	}
	assert.Empty(t, s.ask("PUT", "/elsewhere", strings.Repeat("x", 1001)).session())
	wrong := s.ask("GET", pathChat, "", "X-Session-Id: mine")
	assert.Equal(t, 405, wrong.status)
	assert.Equal(t, "POST", wrong.header.Get("Allow"))
	assert.Equal(t, "mine", wrong.session())
	s.replicas[0].kill()
	gone := s.post(chatBody(""), "X-Session-Id: mine")
	assert.Equal(t, 502, gone.status)
	assert.Equal(t, "mine", gone.session())
	none := s.post(chatBody(""), "X-Session-Id: mine")
	assert.Equal(t, 503, none.status)
	assert.Equal(t, "mine", none.session())
	for _, path := range []string{pathHealth, pathModels, pathReplicas, "/nothing"} {
		assert.Empty(t, s.ask("GET", path, "").session(), path)
	}
}

func TestConversationStaysWhereItIs(t *testing.T) {
	// Fleet behaviours 50, 58, 105, 106 and 108
	s := newRig(t, rigOptions{replicas: 3})
	first := s.post(chatBody(""))
	home := first.servedBy(t)
	for range 5 {
		assert.Equal(t, home, s.post(chatBody(""), "X-Session-Id: "+first.session()).servedBy(t))
	}
	assert.Equal(t, home, s.post(chatBody(`,"session_id":"`+first.session()+`"`)).servedBy(t))
	v := s.pool.Snapshot()
	assert.EqualValues(t, 6, v.Counts.Hits)
	for _, m := range v.Replicas {
		want := int64(0)
		if m.Name == home {
			want = 7
		}
		assert.Equal(t, want, m.Routed, m.Name)
	}
}

// Clients that never send an id back may be known by other things.
func TestConversationIsKnownByWhatIsSwitchedOn(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 3, edit: func(o *Options) { o.Keys = KeyOptions{Fields: []string{"prompt_cache_key"}, Cookie: "chat"} }})
	for name, ask := range map[string]func() answerOf{
		"field":  func() answerOf { return s.post(chatBody(`,"prompt_cache_key":"k"`)) },
		"cookie": func() answerOf { return s.post(chatBody(""), "Cookie: other=1; chat=c-1") },
	} {
		home := ask().servedBy(t)
		for range 4 {
			assert.Equal(t, home, ask().servedBy(t), name)
		}
	}
	assert.Equal(t, "c-1", s.post(chatBody(""), "Cookie: chat=c-1").session())
	assert.NotEqual(t, "k", s.post(chatBody(`,"prompt_cache_key":"k"`)).session(), "it may be personal")
	assert.Equal(t, "mine", s.post(chatBody(`,"prompt_cache_key":"k"`), "X-Session-Id: mine", "Cookie: chat=c-1").session())
}

func TestNewConversationsReachEveryReplica(t *testing.T) {
	// Fleet behaviour 109; case B30
	s := newRig(t, rigOptions{replicas: 4})
	served := map[string]int{}
	for range 100 {
		served[s.post(chatBody("")).servedBy(t)]++
	}
	assert.Equal(t, map[string]int{"a": 25, "b": 25, "c": 25, "d": 25}, served)
}

func TestStreamArrivesByteForByteAndAtOnce(t *testing.T) {
	// Fleet behaviours 42, 51 and 107; cases B23 and B48
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("secure=%t", secure), func(t *testing.T) {
			s := newRig(t, rigOptions{replicas: 2, secure: secure})
			pieces := []string{
				": ping\n", "event: x\r\nid: 1\r\ndata:{}\r\n\r\n", "\ufeffdata: a\rdata: b\r\r", "data: \xf0\x9f", "\x98\x80\n\n",
				"data: " + strings.Repeat("x", 1<<20) + "\n\n", "data: {\"error\":{\"code\":400}}\n\ndata: [DONE]\n\n", "retry: 5",
			}
			next := make(chan struct{})
			answer := func(c *edge.Call) {
				c.Stream(200, "text/event-stream; charset=utf-8", func(w *edge.StreamWriter) error {
					for _, p := range pieces {
						<-next
						w.WriteString(p)
						w.Flush()
					}
					<-next
					return nil
				})
			}
			home := s.post(chatBody(""), "X-Session-Id: mine").servedBy(t)
			for _, n := range s.replicas {
				n.answer(answer)
			}
			_, br := s.raw("POST " + pathChat + " HTTP/1.1\r\nHost: r\r\nX-Session-Id: mine\r\nContent-Length: 2\r\n\r\n{}")
			r, err := http.ReadResponse(br, nil)
			require.NoError(t, err, "the head comes before the first event")
			assert.Equal(t, "text/event-stream; charset=utf-8", r.Header.Get("Content-Type"))
			assert.Equal(t, "mine", r.Header.Get(SessionHeader))
			assert.Equal(t, 1, s.view(home).Outstanding)
			for _, p := range pieces {
				next <- struct{}{}
				got := make([]byte, len(p))
				_, err := io.ReadFull(r.Body, got)
				require.NoError(t, err)
				require.True(t, p == string(got))
			}
			next <- struct{}{}
			rest, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			assert.Empty(t, rest)
			s.idle()
			assert.EqualValues(t, 2, s.view(home).Routed)
		})
	}
}

// Case B06: a stream that breaks is no end, whatever it had said before.
func TestStreamThatBreaksUpstreamIsBrokenForTheClient(t *testing.T) {
	for name, sent := range map[string]string{"nothing": "", "half an event": "data: {\"a\"", "an event": "data: {}\n\n", "before the end": "data: {\"finish_reason\":\"stop\"}\n\n"} {
		t.Run(name, func(t *testing.T) {
			s := newRig(t, rigOptions{replicas: 1})
			probes := s.pool.Snapshot().Stats.ProbesOK
			s.replicas[0].answer(func(c *edge.Call) {
				c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
					w.WriteString(sent)
					w.Flush()
					return errors.New("cut")
				})
			})
			_, br := s.raw("POST " + pathChat + " HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n\r\n{}")
			r, err := http.ReadResponse(br, nil)
			require.NoError(t, err)
			got, err := io.ReadAll(r.Body)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			assert.Equal(t, sent, string(got), "nothing is invented")
			s.idle()
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				assert.Greater(c, s.pool.Snapshot().Stats.ProbesOK, probes, "it is probed at once")
			}, patience, time.Millisecond)
			assert.True(t, s.view("a").routable(), "a break is no proof of death")
			s.logged(t, "cause=interrupted")
		})
	}
}

// An answer of which the client has nothing yet may still become a proper error.
func TestWholeAnswerThatBreaksIsAnError(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 1})
	s.replicas[0].kill()
	l, err := net.Listen("tcp", s.replicas[0].address)
	require.NoError(t, err)
	defer l.Close()
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		http.ReadRequest(bufio.NewReader(nc))
		io.WriteString(nc, "HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nContent-Length: 10\r\n\r\nhalf")
	})
	a := s.post(chatBody(""), "X-Session-Id: mine")
	assert.Equal(t, 502, a.status)
	assert.Equal(t, "the answer of replica a broke off before its end", errorOf(t, a))
	assert.Equal(t, "mine", a.session())
	assert.Empty(t, a.header.Values("Set-Cookie"))
	s.idle()
}

// Case B14: a client that leaves ends its generation on the replica, whatever that
// is doing, because its connection is the only way to say so.
func TestClientThatLeavesEndsItsGeneration(t *testing.T) {
	// Fleet behaviour 52
	for name, answer := range map[string]func(c *edge.Call, began chan<- struct{}) error{
		"before the head": func(c *edge.Call, began chan<- struct{}) error {
			began <- struct{}{}
			<-c.Context().Done()
			return nil
		},
		"in the stream": func(c *edge.Call, began chan<- struct{}) error {
			return c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
				w.WriteString("data: 1\n\n")
				w.Flush()
				began <- struct{}{}
				<-c.Context().Done()
				return errors.New("over")
			})
		},
	} {
		for _, reset := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s reset=%t", name, reset), func(t *testing.T) {
				s := newRig(t, rigOptions{replicas: 1})
				began, left := make(chan struct{}, 1), make(chan struct{}, 1)
				s.replicas[0].answer(func(c *edge.Call) {
					answer(c, began)
					left <- struct{}{}
				})
				nc, _ := s.raw("POST " + pathChat + " HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n\r\n{}")
				await(t, began)
				assert.Equal(t, 1, s.view("a").Outstanding)
				if reset {
					nc.(*net.TCPConn).SetLinger(0)
				}
				nc.Close()
				await(t, left)
				s.idle()
				assert.True(t, s.view("a").routable(), "a client's leaving is held against no replica")
				s.logged(t, "cause=client_gone")
			})
		}
	}
}

func TestReplicaThatRefusesConnections(t *testing.T) {
	// Fleet behaviours 53 and 54
	s := newRig(t, rigOptions{replicas: 1})
	s.replicas[0].kill()
	a := s.post(chatBody(""))
	assert.Equal(t, 502, a.status)
	assert.Equal(t, "replica a is unreachable", errorOf(t, a))
	assert.NotEmpty(t, a.session())
	s.idle()
	assert.False(t, s.view("a").Ready, "it is out at once, not after two probes")
	none := s.post(chatBody(""))
	assert.Equal(t, 503, none.status)
	assert.Equal(t, "no serving replica is currently routable", errorOf(t, none))
	assert.Equal(t, "1", none.header.Get("Retry-After"))
	health := s.ask("GET", pathHealth, "")
	assert.Equal(t, 503, health.status)
}

// A generation of which nothing was sent goes to another replica, and the
// conversation stays there.
func TestRefusedConnectionIsTriedElsewhere(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 2})
	home := s.post(chatBody(""), "X-Session-Id: mine").servedBy(t)
	other := map[string]string{"a": "b", "b": "a"}[home]
	s.replicas[int(home[0]-'a')].kill()
	a := s.post(chatBody(""), "X-Session-Id: mine")
	require.Equal(t, 200, a.status)
	assert.Equal(t, other, a.servedBy(t))
	s.idle()
	v := s.pool.Snapshot()
	assert.EqualValues(t, 2, v.Counts.Routed, "a try that was given back is not counted")
	assert.EqualValues(t, 1, s.view(home).Routed)
	assert.EqualValues(t, 1, s.view(other).Routed)
	s.replicas[int(home[0]-'a')].start(edge.ServerConfig{})
	s.pool.Suspect(s.pool.statics[int(home[0]-'a')].member)
	require.Eventually(t, func() bool { return s.view(home).routable() }, patience, time.Millisecond)
	assert.Equal(t, other, s.post(chatBody(""), "X-Session-Id: mine").servedBy(t), "it does not go back")
	s.logged(t, "retries=1")
}

func TestConnectRetriesAreBounded(t *testing.T) {
	for _, c := range []struct{ retries, status, down int }{{0, 502, 1}, {1, 502, 2}, {2, 502, 3}, {3, 200, 3}} {
		t.Run(fmt.Sprint(c.retries), func(t *testing.T) {
			s := newRig(t, rigOptions{replicas: 4, edit: func(o *Options) { o.ConnectRetries = c.retries }})
			for _, n := range s.replicas[:3] {
				n.kill()
			}
			assert.Equal(t, c.status, s.post(chatBody("")).status)
			s.idle()
			down := 0
			for _, m := range s.pool.Snapshot().Replicas {
				if !m.Ready {
					down++
				}
			}
			assert.Equal(t, c.down, down)
		})
	}
}

// Hazard 16, case B13: once a byte was sent, a generation is never sent again, not
// even where the client says that it may be.
func TestGenerationIsNeverSentTwice(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 2})
	for _, n := range s.replicas {
		n.answer(func(c *edge.Call) { panic("no answer comes") })
	}
	s.replicas[0].kill()
	s.replicas[1].kill()
	var mu sync.Mutex
	taken := 0
	var serving sync.WaitGroup
	var listeners []net.Listener
	for _, n := range s.replicas {
		l, err := net.Listen("tcp", n.address)
		require.NoError(t, err)
		listeners = append(listeners, l)
		serving.Go(func() {
			for {
				nc, err := l.Accept()
				if err != nil {
					return
				}
				if q, err := http.ReadRequest(bufio.NewReader(nc)); err == nil && q.Method == "POST" {
					mu.Lock()
					taken++
					mu.Unlock()
				}
				nc.Close()
			}
		})
	}
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
		serving.Wait()
	}()
	a := s.post(chatBody(""), "Idempotency-Key: k", "X-Idempotency-Key: k")
	assert.Equal(t, 502, a.status)
	mu.Lock()
	assert.Equal(t, 1, taken)
	mu.Unlock()
	s.idle()
}

func TestRequestTimeoutIsEnforced(t *testing.T) {
	// Hazard 13
	t.Run("before the head", func(t *testing.T) {
		s := newRig(t, rigOptions{replicas: 1, edit: func(o *Options) { o.RequestTimeout = 50 * time.Millisecond }})
		left := make(chan struct{}, 1)
		s.replicas[0].answer(func(c *edge.Call) { <-c.Context().Done(); left <- struct{}{} })
		probes := s.pool.Snapshot().Stats.ProbesOK
		a := s.post(chatBody(""))
		assert.Equal(t, 504, a.status)
		assert.Equal(t, "replica a did not answer within 50ms", errorOf(t, a))
		assert.NotEmpty(t, a.session())
		await(t, left)
		s.idle()
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Greater(c, s.pool.Snapshot().Stats.ProbesOK, probes) }, patience, time.Millisecond)
		assert.True(t, s.view("a").routable(), "a timeout is no proof of death")
	})
	t.Run("in the stream", func(t *testing.T) {
		s := newRig(t, rigOptions{replicas: 1, edit: func(o *Options) { o.RequestTimeout = 200 * time.Millisecond }})
		s.replicas[0].answer(func(c *edge.Call) {
			c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
				w.WriteString("data: 1\n\n")
				w.Flush()
				<-c.Context().Done()
				return errors.New("over")
			})
		})
		a, err := s.try("POST", pathChat, chatBody(""))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		assert.Equal(t, 200, a.status)
		assert.Equal(t, "data: 1\n\n", a.body)
		s.idle()
		s.logged(t, "cause=deadline")
	})
}

// Case B10: whatever way generations end, the counts come back to nothing.
func TestCountsComeBackHoweverGenerationsEnd(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 3, edit: func(o *Options) { o.HealthInterval = 5 * time.Millisecond }})
	for i, n := range s.replicas {
		n.answer([]edge.Handler{
			n.says,
			func(c *edge.Call) { <-c.Context().Done() },
			func(c *edge.Call) {
				c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
					w.WriteString("data: 1\n\n")
					w.Flush()
					return errors.New("cut")
				})
			},
		}[i])
	}
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			for j := range 30 {
				ctx, cancel := context.WithCancel(t.Context())
				if (i+j)%3 == 0 {
					cancel() // it leaves at once
				} else if (i+j)%3 == 1 {
					time.AfterFunc(3*time.Millisecond, cancel)
				} else {
					time.AfterFunc(20*time.Millisecond, cancel)
				}
				q, _ := http.NewRequestWithContext(ctx, "POST", "http://"+s.address+pathChat, strings.NewReader(chatBody("")))
				if r, err := s.client.Do(q); err == nil {
					io.Copy(io.Discard, r.Body)
					r.Body.Close()
				}
				cancel()
			}
		})
	}
	clients.Wait()
	s.idle()
	for _, n := range s.replicas {
		n.answer(n.says)
	}
	require.Eventually(t, func() bool {
		return s.view("a").routable() && s.view("b").routable() && s.view("c").routable()
	}, patience, time.Millisecond)
	served := map[string]int{}
	for range 99 {
		served[s.post(chatBody("")).servedBy(t)]++
	}
	assert.Equal(t, map[string]int{"a": 33, "b": 33, "c": 33}, served, "nothing is left that steers")
}

// Hazard 10: a generation that takes longer than a pin lives keeps its own pin.
func TestPinOutlivesALongGeneration(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 2, edit: func(o *Options) { o.SessionTTL = 300 * time.Millisecond }})
	resume := make(chan struct{})
	for _, n := range s.replicas {
		n.answer(func(c *edge.Call) { <-resume; n.says(c) })
	}
	done := make(chan answerOf, 1)
	begun := time.Now()
	go func() { done <- s.post(chatBody(""), "X-Session-Id: long") }()
	require.Eventually(t, func() bool { return time.Since(begun) > 400*time.Millisecond }, patience, 10*time.Millisecond)
	close(resume)
	home := await(t, done).servedBy(t)
	hits := s.pool.Snapshot().Counts.Hits
	assert.Equal(t, home, s.post(chatBody(""), "X-Session-Id: long").servedBy(t))
	assert.Equal(t, hits+1, s.pool.Snapshot().Counts.Hits)
}

// Hazard 14: proxies of the environment are for others.
func TestProxyVariablesAreIgnored(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"} {
		t.Setenv(name, "http://192.0.2.1:1")
	}
	s := newRig(t, rigOptions{replicas: 1, secure: true})
	s.client.Transport.(*http.Transport).Proxy = nil
	assert.Equal(t, 200, s.post(chatBody("")).status)
}

// A wrong certificate is found before a byte of the request is sent.
func TestReplicaWithAWrongCertificateGetsNothing(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 2, secure: true})
	n := s.replicas[0]
	n.kill()
	certFile, keyFile := certificate(t)
	other, err := edge.LoadCertificate(certFile, keyFile)
	require.NoError(t, err)
	n.start(edge.ServerConfig{Certificate: other})
	for range 4 {
		a := s.post(chatBody(""))
		require.Equal(t, 200, a.status)
		assert.Equal(t, "b", a.servedBy(t))
	}
	assert.Empty(t, n.requests())
	assert.False(t, s.view("a").Ready)
}

func TestAnswerThatIsNoHTTPIsHeldAgainstNobodyAtOnce(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 1})
	s.replicas[0].kill()
	l, err := net.Listen("tcp", s.replicas[0].address)
	require.NoError(t, err)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer l.Close()
	serving.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			http.ReadRequest(bufio.NewReader(nc))
			io.WriteString(nc, "SSH-2.0-OpenSSH\r\n\r\n")
			nc.Close()
		}
	})
	a := s.post(chatBody(""))
	assert.Equal(t, 502, a.status)
	assert.Equal(t, "replica a gave an answer that cannot be read", errorOf(t, a))
	s.idle()
	s.logged(t, "cause=malformed_answer")
}

// Case B60: no spelling of a path is a way to another one.
func TestPathsAreTakenAsTheyAre(t *testing.T) {
	// Fleet behaviour 56
	s := newRig(t, rigOptions{replicas: 1, edit: func(o *Options) { o.AdminToken = "secret" }})
	for _, path := range []string{"/v1/../replicas", "//replicas", "/v1//models", "/%72eplicas", "/health/", "/v1/chat/completions/", "/v1/models/x", "/metrics/json", "/start_profile", "/REPLICAS"} {
		_, br := s.raw("POST " + path + " HTTP/1.1\r\nHost: r\r\nContent-Length: 0\r\n\r\n")
		r, err := http.ReadResponse(br, nil)
		require.NoError(t, err)
		body, _ := io.ReadAll(r.Body)
		assert.Equal(t, 404, r.StatusCode, path)
		assert.Equal(t, "there is no such path here", errorOf(t, answerOf{r.StatusCode, r.Header, string(body)}))
	}
	for path, allow := range map[string]string{pathHealth: "GET", pathModels: "GET", pathMetrics: "GET", pathChat: "POST", pathCompletions: "POST"} {
		a := s.ask("PUT", path, "")
		assert.Equal(t, 405, a.status, path)
		assert.Equal(t, allow, a.header.Get("Allow"), path)
		errorOf(t, a)
	}
	for method, path := range map[string]string{"PUT": pathReplicas, "POST": pathReplicas + "/a", "DELETE": pathReplicas + "/a/log"} {
		a := s.ask(method, path, "", "Authorization: Bearer secret")
		assert.Equal(t, 405, a.status, path)
	}
	head := s.ask("HEAD", pathHealth, "")
	assert.Equal(t, 200, head.status)
	assert.Empty(t, head.body)
	// The absolute form is no other path either.
	_, br := s.raw("GET http://elsewhere/replicas HTTP/1.1\r\nHost: r\r\n\r\n")
	r, err := http.ReadResponse(br, nil)
	require.NoError(t, err)
	assert.Equal(t, 401, r.StatusCode)
}

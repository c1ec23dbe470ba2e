package pdrouter

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

// Case B22: what a client calls its requests is not what they are called inside.
func TestEqualIdsOfClientsNeverMeetInside(t *testing.T) {
	release := make(chan struct{})
	s := newStand(t, settings{before: func(s *stand) {
		s.decodes[0].post = func(c *edge.Call) {
			select {
			case <-release:
				answers(c)
			case <-c.Context().Done():
			}
		}
	}})
	const body = `{"model":"m","prompt":"p","user":"same"}`
	var clients []*net.TCPConn
	ids := map[string]bool{}
	next := func() {
		clients = append(clients, s.send("POST", "/v1/completions", body, "X-Request-Id: same"))
		d := take(t, s.decodes[0].posts)
		require.Equal(t, "same", d.header.Get("X-Request-Id"))
		ids[d.header.Get("X-Pd-Handoff-Id")] = true
		ids[d.header.Get("X-Pd-Request-Id")] = true
	}
	next()
	next()
	// And again right after it was cut.
	clients[0].SetLinger(0)
	clients[0].Close()
	next()
	require.Len(t, ids, 6)
	close(release)
	for _, nc := range clients[1:] {
		r, _ := s.read(nc)
		require.Equal(t, 200, r.StatusCode)
	}
	s.untilFree()
}

// Case B24: neither a client's mistakes nor a failure that is over shuts a good node
// out.
func TestMistakesOfClientsShutNoNodeOut(t *testing.T) {
	const bad = `{"model":"m","prompt":"bad"}`
	const broken = `{"model":"m","prompt":"broken"}`
	s := newStand(t, settings{before: func(s *stand) {
		s.prefills[0].post = func(c *edge.Call) {
			switch string(c.Body()) {
			case bad:
				refuses(&pd.Error{Code: pd.CodeContextLength, Text: "too long"})(c)
			case broken:
				c.Reply(500, openai.TypeJSON, []byte(`{"error":{"message":"ValueError: the prompt is too long"}}`))
			default:
				retires(c)
			}
		}
		s.decodes[0].post = func(c *edge.Call) {
			if body := string(c.Body()); body == bad || body == broken {
				hangs(c)
				return
			}
			answers(c)
		}
	}})
	s.discard()
	for range 25 {
		for body, status := range map[string]int{bad: 400, broken: 503, plain: 200, streamed: 200} {
			r, got := s.ask("POST", "/v1/completions", body)
			require.Equal(t, status, r.StatusCode, got)
		}
		s.untilFree()
	}
	for _, n := range s.router.pool.view().Nodes {
		require.Equal(t, "READY", n.State)
	}
}

// Case B24: one transfer that failed is the end of one request.
func TestOneFailedTransferShutsNoNodeOut(t *testing.T) {
	once := true
	s := newStand(t, settings{before: func(s *stand) {
		s.prefills[0].post = func(c *edge.Call) {
			if once {
				once = false
				refuses(pd.Errorf(pd.CodeTransferFailed, "transfer", "link"))(c)
				return
			}
			retires(c)
		}
		s.decodes[0].post = func(c *edge.Call) {
			if c.Query() == "first" {
				hangs(c)
				return
			}
			answers(c)
		}
	}})
	s.discard()
	r, body := s.ask("POST", "/v1/completions?first", plain)
	require.Equal(t, 503, r.StatusCode)
	require.Equal(t, "transfer_failed", codeOf(t, body))
	for range 20 {
		r, body := s.ask("POST", "/v1/completions", plain)
		require.Equal(t, 200, r.StatusCode, body)
	}
}

// Case B28: the framing of each hop is its own, and what belongs to a connection
// stays on it.
func TestFramingIsMadeAnewOnEachHop(t *testing.T) {
	const packed = "\x1f\x8b\x08not really"
	heads := make(chan http.Header, 4)
	s, _ := rawStand(t, settings{}, func(nc *net.TCPConn, r *http.Request, _ string) {
		r.Header.Set("Content-Length", fmt.Sprint(r.ContentLength))
		heads <- r.Header
		fmt.Fprintf(nc, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n"+
			"Keep-Alive: timeout=1\r\nContent-Length: %d\r\n\r\n%s", len(packed), packed)
	})
	nc := s.dial()
	br := bufio.NewReader(nc)
	body := "\n { \"prompt\" : \"\U0001F600\" } \t"
	for _, framed := range []string{
		fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body),
		"Transfer-Encoding: chunked\r\nTrailer: X-Late\r\n\r\n" + rawChunk(body[:7]) + rawChunk(body[7:]) + "0\r\nX-Late: 1\r\n\r\n",
	} {
		io.WriteString(nc, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, X-Foo\r\nX-Foo: 1\r\nTE: trailers\r\nKeep-Alive: timeout=9\r\n"+
			"Proxy-Authorization: p\r\nAuthorization: Bearer k\r\nExpect: 100-continue\r\n"+framed)
		r, err := http.ReadResponse(br, nil)
		require.NoError(t, err)
		got, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, packed, string(got))
		require.Equal(t, "gzip", r.Header.Get("Content-Encoding"))
		require.EqualValues(t, len(packed), r.ContentLength)
		require.False(t, r.Close, "what a node says of its connection is not the client's")
		for _, name := range []string{"X-Hop", "Keep-Alive"} {
			require.Empty(t, r.Header.Values(name), name)
		}
		h := take(t, heads)
		require.Equal(t, fmt.Sprint(len(body)), h.Get("Content-Length"))
		require.Equal(t, "Bearer k", h.Get("Authorization"))
		for _, name := range []string{"X-Foo", "Te", "Keep-Alive", "Proxy-Authorization", "Transfer-Encoding", "Trailer", "Expect", "X-Late"} {
			require.Empty(t, h.Values(name), name)
		}
	}
	// A HEAD has the head of the GET and no body, and the connection goes on.
	io.WriteString(nc, "HEAD /health HTTP/1.1\r\nHost: h\r\n\r\nGET /health HTTP/1.1\r\nHost: h\r\n\r\n")
	head, err := http.ReadResponse(br, &http.Request{Method: "HEAD"})
	require.NoError(t, err)
	get, err := http.ReadResponse(br, nil)
	require.NoError(t, err)
	whole, err := io.ReadAll(get.Body)
	require.NoError(t, err)
	require.EqualValues(t, len(whole), head.ContentLength)
}

// Case B34: a client names no host, no pair and no handoff.
func TestClientPicksNoCoordinates(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	visited := make(chan struct{}, 1)
	var listening sync.WaitGroup
	listening.Go(func() {
		if nc, err := l.Accept(); err == nil {
			nc.Close()
			visited <- struct{}{}
		}
	})
	defer listening.Wait()
	defer l.Close()
	target := l.Addr().String()
	s := newStand(t, settings{})
	body := fmt.Sprintf(`{"model":"m","prompt":"p","kv_transfer_params":{"remote_host":%q},"bootstrap_host":%q,"bootstrap_room":7,"handoff_id":"evil","request_id":"evil"}`, target, target)
	var all sync.WaitGroup
	for range 2 { // the second repeats every value
		all.Go(func() {
			nc := s.send("POST", "/v1/completions", body, "x-prefiller-host-port: "+target, "X-PD-Peer: evil;"+target, "X-PD-Request-Id: evil",
				"X-PD-Handoff-Id: "+strings.Repeat("e", 32), "x-pd-self: evil;1", "target-pod: "+target)
			r, _ := s.read(nc)
			if r.StatusCode != 200 {
				t.Errorf("status %d", r.StatusCode)
			}
		})
	}
	all.Wait()
	handoffs := map[string]bool{}
	for range 2 {
		for _, n := range s.nodes() {
			got := take(t, n.posts)
			require.NotContains(t, got.header.Get("X-Pd-Peer")+got.header.Get("X-Pd-Self")+got.header.Get("X-Pd-Request-Id"), "evil")
			require.Len(t, got.header.Values("X-Pd-Handoff-Id"), 1)
			handoffs[got.header.Get("X-Pd-Handoff-Id")] = true
			require.Equal(t, body, got.body, "fields of other systems mean nothing here, and pass as they came")
		}
	}
	require.Len(t, handoffs, 2)
	require.NotContains(t, handoffs, strings.Repeat("e", 32))
	require.Empty(t, visited)
}

// Case B36: no request with two readings hides another one.
func TestHiddenRequestReachesNoNode(t *testing.T) {
	const hidden = "POST /v1/completions?hidden HTTP/1.1\r\nHost: h\r\nContent-Length: 26\r\n\r\n" + plain
	chunked := "1a\r\n" + plain + "\r\n0\r\n\r\n"
	for name, c := range map[string]struct{ lines, body string }{
		"length, then coding": {"Content-Length: 26\r\nTransfer-Encoding: chunked", chunked},
		"coding, then length": {"Transfer-Encoding: chunked\r\nContent-Length: 5", chunked},
		"two lengths":         {"Content-Length: 5\r\nContent-Length: 6", plain},
		"signed length":       {"Content-Length: +5", plain},
		"list of lengths":     {"Content-Length: 5, 5", plain},
		"two codings":         {"Transfer-Encoding: chunked, identity", chunked},
		"unknown coding":      {"Transfer-Encoding: xchunked", chunked},
		"space before colon":  {"Transfer-Encoding : chunked\r\nContent-Length: 5", chunked},
		"coding twice":        {"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", chunked},
		"hexadecimal prefix":  {"Transfer-Encoding: chunked", "0x5\r\n" + plain[:5] + "\r\n0\r\n\r\n"},
		"huge chunk":          {"Transfer-Encoding: chunked", "FFFFFFFFFFFFFFFF\r\n" + plain},
		"bare line feed":      {"X: 1\nContent-Length: 5", plain},
		"zero byte":           {"X: a\x00b\r\nContent-Length: 5", plain},
		"leading space":       {" X: 1\r\nContent-Length: 5", plain},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t, settings{})
			nc := s.dial()
			io.WriteString(nc, "POST /v1/completions?open HTTP/1.1\r\nHost: h\r\n"+c.lines+"\r\n\r\n"+c.body+hidden)
			r, err := http.ReadResponse(bufio.NewReader(nc), nil)
			require.NoError(t, err)
			require.Equal(t, 400, r.StatusCode)
			require.True(t, r.Close)
			io.Copy(io.Discard, nc) // to the end of the connection
			for _, n := range s.nodes() {
				require.Empty(t, n.posts)
			}
		})
	}
	t.Run("old version", func(t *testing.T) {
		s := newStand(t, settings{})
		nc := s.dial()
		io.WriteString(nc, "POST /v1/completions?open HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"+chunked+hidden)
		io.Copy(io.Discard, nc)
		for _, n := range s.nodes() {
			for len(n.posts) > 0 {
				require.Equal(t, "/v1/completions?open", take(t, n.posts).target)
			}
		}
	})
}

// Case B37: bodies that would exhaust a recursive reader are refused; the streams of
// others go on.
func TestDeepBodyEndsNoOtherStream(t *testing.T) {
	release := make(chan struct{})
	s := newStand(t, settings{before: func(s *stand) {
		s.decodes[0].post = func(c *edge.Call) {
			c.Stream(200, openai.TypeEvents, func(w *edge.StreamWriter) error {
				w.WriteString(oneEvent)
				w.Flush()
				<-release
				w.WriteString(doneEvent)
				return w.Flush()
			})
		}
	}})
	stream := s.send("POST", "/v1/completions", streamed)
	take(t, s.decodes[0].posts)
	for _, depth := range []int{10_000, 100_000, 3_000_000} {
		for _, brackets := range [][2]string{{"[", "]"}, {`{"a":`, "}"}} {
			if brackets[0] != "[" && depth > 100_000 {
				continue // one way to exhaust a stack is enough
			}
			body := `{"model":"m","prompt":"p","x":` + strings.Repeat(brackets[0], depth) + "1" + strings.Repeat(brackets[1], depth) + "}"
			r, got := s.ask("POST", "/v1/completions", body)
			require.Equal(t, 400, r.StatusCode, got)
			require.Equal(t, "invalid_request", codeOf(t, got))
		}
	}
	var keys bytes.Buffer
	keys.WriteString(`{"model":"m","prompt":"p"`)
	for i := range 1_000_000 {
		fmt.Fprintf(&keys, `,"k%d":0`, i)
	}
	keys.WriteString("}")
	wide := s.send("POST", "/v1/completions", keys.String())
	require.Len(t, take(t, s.decodes[0].posts).body, keys.Len())
	close(release)
	for _, nc := range []*net.TCPConn{stream, wide} {
		r, body := s.read(nc)
		require.Equal(t, 200, r.StatusCode)
		require.Equal(t, oneEvent+doneEvent, body)
	}
	s.untilFree()
}

// Case B50: router and node take the same one of two equal fields, the last. The
// router's reading shows in how it treats an answer that breaks: a stream ends with
// an error event, a whole answer is an error by itself.
func TestRouterReadsRepeatedFieldsAsNodesDo(t *testing.T) {
	for body, streams := range map[string]bool{
		`{"prompt":"p","stream":false,"stream":true}`:      true,
		`{"prompt":"p","stream":true,"stream":false}`:      false,
		`{"prompt":"p","stream":false,"str\u0065am":true}`: true,
		`{"prompt":"p","stream":true,"Stream":false}`:      true,
		`{"prompt":"p","x":{"stream":true}}`:               false,
		`{"prompt":"p","n":2,"n":1,"stream":true}`:         true,
	} {
		t.Run(body, func(t *testing.T) {
			s, _ := rawStand(t, settings{}, func(nc *net.TCPConn, _ *http.Request, got string) {
				facts, err := openai.Parse(openai.Completion, []byte(got))
				if err != nil || got != body || facts.Stream != streams {
					io.WriteString(nc, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
					return
				}
				if streams {
					io.WriteString(nc, rawStreamHead+rawChunk(oneEvent))
					return
				}
				io.WriteString(nc, rawJSONHead+"Content-Length: 99\r\n\r\n{")
			})
			r, got := s.ask("POST", "/v1/completions", body)
			if streams {
				require.Equal(t, 200, r.StatusCode)
				require.True(t, strings.HasPrefix(got, oneEvent) && strings.HasSuffix(got, interrupted), got)
				return
			}
			require.Equal(t, 502, r.StatusCode)
			require.Equal(t, "upstream_interrupted", codeOf(t, got))
		})
	}
}

// Case B60: targets and header lines arrive as they were spelled, and no spelling of
// a path is a way to another one.
func TestTargetsAndHeadersAreNotTidied(t *testing.T) {
	lines := make(chan string, 1)
	var log capture
	s, _ := rawStand(t, settings{server: edge.ServerConfig{Log: slog.New(slog.NewTextHandler(&log, nil))}}, func(nc *net.TCPConn, r *http.Request, _ string) {
		lines <- r.RequestURI + " " + strings.Join(r.Header["X-Custom"], ",") + fmt.Sprintf(" %d %d", len(r.Header), len(r.Header.Get("Cookie")))
		answer := rawJSON(`{"id":"x"}`)
		if r.Header.Get("X-Want") != "" {
			answer = strings.Replace(answer, "\r\n", "\r\nX-Large: "+strings.Repeat("x", len(r.Header.Get("X-Want"))<<10)+"\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n", 1)
		}
		io.WriteString(nc, answer)
	})
	ask := func(target string, header ...string) (*http.Response, string) {
		return s.ask("POST", target, plain, header...)
	}
	many := []string{"X-CuStOm: 1", "x-custom: 2", "Cookie: " + strings.Repeat("c", 9<<10)}
	for i := range 120 {
		many = append(many, fmt.Sprintf("X-Many-%d: 1", i))
	}
	r, body := ask("/v1/completions?x=%20+&x=2&y=a%2Fb//", many...)
	require.Equal(t, 200, r.StatusCode, body)
	got := take(t, lines)
	require.True(t, strings.HasPrefix(got, "/v1/completions?x=%20+&x=2&y=a%2Fb// 1,2 "), got)
	require.True(t, strings.HasSuffix(got, fmt.Sprintf(" %d", 9<<10)), got)
	// Absolute form is served by its path.
	r, _ = ask("http://elsewhere/v1/completions")
	require.Equal(t, 200, r.StatusCode)
	require.True(t, strings.HasPrefix(take(t, lines), "/v1/completions "))
	// Large heads of nodes pass up to a limit; beyond it they are the node's failure.
	r, _ = ask("/v1/completions", "X-Want: "+strings.Repeat("x", 20))
	require.Equal(t, 200, r.StatusCode)
	require.Len(t, r.Header.Get("X-Large"), 20<<10)
	require.Equal(t, []string{"a=1", "b=2"}, r.Header.Values("Set-Cookie"))
	take(t, lines)
	r, _ = ask("/v1/completions", "X-Want: "+strings.Repeat("x", 64))
	require.Equal(t, 503, r.StatusCode)
	take(t, lines)
	// Large heads of clients are refused, and somebody is told.
	r, _ = ask("/v1/completions", "Cookie: "+strings.Repeat("c", 40<<10))
	require.Equal(t, 431, r.StatusCode)
	require.Contains(t, log.String(), "status=431")
	require.NotContains(t, log.String(), "ccc")

	for target, want := range map[string]int{
		"/v1/../health": 404, "/v1//completions": 404, "//v1/completions": 404, "/v1/completions/": 404, "/V1/completions": 404,
		"/v1/%63ompletions": 404, "/v1/models/../../metrics": 405, "/./v1/completions": 404,
	} {
		r, _ := ask(target)
		require.Equal(t, want, r.StatusCode, target)
	}
	for method, want := range map[string]int{"OPTIONS": 405, "DELETE": 405, "post": 405} {
		r, _ := s.ask(method, "/v1/completions", plain)
		require.Equal(t, want, r.StatusCode, method)
	}
	require.Empty(t, lines)
}

// Case B25: a node whose control port answers while its generations hang is not
// given everything: what hangs holds its slots, and the others go on.
func TestNodeThatOnlyLooksAliveDoesNotGetEverything(t *testing.T) {
	s := newStand(t, settings{decodes: 2, capacity: 64, policy: policyLoad, before: func(s *stand) {
		s.decodes[0].post = hangs
	}})
	arrived := func(n *standNode) int {
		v := s.router.pool.view()
		return int(v.Nodes[slices.IndexFunc(v.Nodes, func(o nodeView) bool { return o.Node == n.id })].requests)
	}
	var hanging []*net.TCPConn
	for i := range 40 {
		nc := s.send("POST", "/v1/completions", plain)
		s.until("it is given to a node", func(poolView) bool { return arrived(s.decodes[0])+arrived(s.decodes[1]) == i+1 })
		if arrived(s.decodes[0]) > len(hanging) {
			hanging = append(hanging, nc)
			continue
		}
		r, body := s.read(nc)
		require.Equal(t, 200, r.StatusCode, body)
	}
	require.Len(t, hanging, 1, "the node that answers nothing gets no more while its slot is taken")
	hanging[0].Close()
	s.untilFree()
}

// Case B25: a node that is too busy to tell its state, or says that it is gated,
// gets no new requests; the stream on it goes on.
func TestStreamOfABusyNodeGoesOn(t *testing.T) {
	for name, busy := range map[string]func(n *standNode){
		"silent": func(n *standNode) { n.silent = true },
		"gated":  func(n *standNode) { n.says.Health, n.says.Reason = pd.RecoveryRequired, "uncertain" },
	} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			s := newStand(t, settings{decodes: 2, handoffTimeout: 0.2, before: func(s *stand) {
				for _, n := range s.decodes {
					n.post = func(c *edge.Call) {
						c.Stream(200, openai.TypeEvents, func(w *edge.StreamWriter) error {
							tick := time.NewTicker(20 * time.Millisecond)
							defer tick.Stop()
							for {
								select {
								case <-release:
									w.WriteString(doneEvent)
									return w.Flush()
								case <-tick.C:
									w.WriteString(oneEvent)
									if err := w.Flush(); err != nil {
										return err
									}
								}
							}
						})
					}
				}
			}})
			stream := s.send("POST", "/v1/completions", streamed)
			on, other := s.decodes[0], s.decodes[1]
			select {
			case <-on.posts:
			case <-other.posts:
				on, other = other, on
			}
			on.change(func() { busy(on) })
			s.until("it is out of rotation", func(v poolView) bool { return v.Pairs == 1 })
			second := s.send("POST", "/v1/completions", streamed)
			take(t, other.posts)
			close(release)
			for _, nc := range []*net.TCPConn{stream, second} {
				r, body := s.read(nc)
				require.Equal(t, 200, r.StatusCode)
				require.Equal(t, doneEvent, strings.ReplaceAll(body, oneEvent, ""))
			}
			require.Empty(t, on.aborts)
		})
	}
}

// Case B25: what answers on a control port without being a node, or never finishes,
// is out of rotation with a reason, and holds up no other node's questions.
func TestControlPortThatIsNoneIsLeftOut(t *testing.T) {
	for name, answer := range map[string]string{
		"a page":         "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>",
		"never finishes": "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n{",
		"no HTTP at all": "220 mail.example ESMTP\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			var serving sync.WaitGroup
			serving.Go(func() {
				for {
					nc, err := l.Accept()
					if err != nil {
						return
					}
					serving.Go(func() {
						defer nc.Close()
						nc.SetDeadline(time.Now().Add(patience))
						io.WriteString(nc, answer)
						io.Copy(io.Discard, nc)
					})
				}
			})
			t.Cleanup(func() { l.Close(); serving.Wait() })
			first := true
			s := newStand(t, settings{decodes: 2, unready: true, tap: func(n *standNode) {
				if n.role == pd.Decode && first {
					first = false
					n.controlPort = l.Addr().(*net.TCPAddr).Port
				}
			}})
			s.until("the others are asked on time", func(v poolView) bool { return v.Pairs == 1 })
			s.until("it has a reason", func(v poolView) bool { return v.Nodes[1].Reason != "" })
			for range 4 {
				r, _ := s.ask("POST", "/v1/completions", plain)
				require.Equal(t, 200, r.StatusCode)
			}
			require.Empty(t, s.decodes[0].posts)
		})
	}
}

package pdrouter

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

// Case B01: streams that were given up in their middle leave nothing that another
// caller could be handed.
func TestAbandonedStreamReachesNoOtherCaller(t *testing.T) {
	const mark = "X-Mark"
	s, nodes := rawStand(t, settings{capacity: 64}, func(nc *net.TCPConn, r *http.Request, body string) {
		event := "data: " + r.Header.Get(mark) + "\n\n"
		if body == plain {
			io.WriteString(nc, rawJSON(r.Header.Get(mark)))
			return
		}
		io.WriteString(nc, rawStreamHead)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if _, err := io.WriteString(nc, rawChunk(event)); err != nil {
				return // given up, as it should be
			}
		}
	})
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			nc, err := net.Dial("tcp", s.address)
			if err != nil {
				t.Error(err)
				return
			}
			defer nc.Close()
			fmt.Fprintf(nc, "POST /v1/completions HTTP/1.1\r\nHost: h\r\n%s: left-%d\r\nContent-Length: %d\r\n\r\n%s", mark, i, len(streamed), streamed)
			nc.SetReadDeadline(time.Now().Add(time.Duration(20+rand.IntN(100)) * time.Millisecond))
			io.Copy(io.Discard, nc)
		})
	}
	for i := range 200 {
		want := fmt.Sprintf("mine-%d", i)
		r, body := s.ask("POST", "/v1/completions", plain, mark+": "+want)
		if r.StatusCode == 503 && strings.Contains(body, "node_busy") {
			continue // the streams have all slots
		}
		require.Equal(t, 200, r.StatusCode, body)
		require.Equal(t, want, body)
	}
	all.Wait()
	s.untilFree()
	for _, n := range nodes {
		require.Eventually(t, func() bool { open, _ := n.counts(); return open == 0 }, patience, time.Millisecond, "what was given up is closed")
	}
}

// Case B13: a node that closes its connection right after each answer, without
// saying so, costs no request, and none is executed twice.
func TestNodeThatClosesAfterEachAnswerCostsNoRequest(t *testing.T) {
	var mu sync.Mutex
	executed := map[string]int{}
	// This decode does not wait for prefill, whose slots then come back late.
	s, _ := rawStand(t, settings{capacity: 512}, func(nc *net.TCPConn, r *http.Request, _ string) {
		mu.Lock()
		executed[r.Header.Get(openai.RouteHeaders[openai.RouteHandoff])]++
		mu.Unlock()
		io.WriteString(nc, strings.Replace(rawJSON(`{"id":"x"}`), "Connection: close\r\n", "", 1))
		<-time.After(time.Duration(rand.IntN(5)) * time.Millisecond)
	})
	nc := s.dial()
	br := bufio.NewReader(nc)
	const requests = 300
	for range requests {
		fmt.Fprintf(nc, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(plain), plain)
		r, err := http.ReadResponse(br, nil)
		require.NoError(t, err)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, 200, r.StatusCode, "%s", body)
	}
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, executed, requests)
	for id, times := range executed {
		require.Equal(t, 1, times, id)
	}
}

// Case B14: a request that is sent while the one before it is answered is no
// hang-up, and is answered in its turn.
func TestPipelinedRequestIsNotTakenForAHangUp(t *testing.T) {
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
	nc := s.send("POST", "/v1/completions?first", streamed)
	require.Equal(t, "/v1/completions?first", take(t, s.decodes[0].posts).target)
	fmt.Fprintf(nc, "POST /v1/completions?second HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(plain), plain)
	// The router has seen the bytes when it has answered somebody who came later.
	r, _ := s.ask("GET", "/health", "")
	require.Equal(t, 200, r.StatusCode)
	require.Empty(t, s.decodes[0].aborts)
	close(release)
	br := bufio.NewReader(nc)
	for _, want := range []string{oneEvent + doneEvent, `{"id":"x"}`} {
		r, err := http.ReadResponse(br, nil)
		require.NoError(t, err)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, want, string(body))
	}
	require.Equal(t, "/v1/completions?second", take(t, s.decodes[0].posts).target)
	s.untilFree()
	require.Empty(t, s.decodes[0].aborts)
}

// Case B15: a stream in which something happens is cut by no limit, however long it
// lasts.
func TestLongStreamOutlivesEveryLimit(t *testing.T) {
	const limit, events = 200 * time.Millisecond, 30
	s, _ := rawStand(t, settings{
		handoffTimeout: limit.Seconds(), requestTimeout: limit.Seconds(),
		server: edge.ServerConfig{HeaderTimeout: limit, BodyTimeout: limit, IdleTimeout: limit, WriteStall: limit},
	}, func(nc *net.TCPConn, _ *http.Request, _ string) {
		io.WriteString(nc, rawStreamHead)
		tick := time.NewTicker(limit / 8)
		defer tick.Stop()
		for range events {
			<-tick.C
			io.WriteString(nc, rawChunk(oneEvent))
		}
		io.WriteString(nc, rawChunk(doneEvent)+rawStreamEnd)
	})
	began := time.Now()
	r, body := s.ask("POST", "/v1/completions", streamed)
	require.Equal(t, 200, r.StatusCode)
	require.Equal(t, strings.Repeat(oneEvent, events)+doneEvent, body)
	require.Greater(t, time.Since(began), 3*limit)
}

// Case B15: a stream in which nothing happens any more ends with an error event at
// the limit that is meant for that.
func TestStalledStreamEndsByRequestTimeout(t *testing.T) {
	s, _ := rawStand(t, settings{requestTimeout: 0.3, handoffTimeout: 0.2}, func(nc *net.TCPConn, _ *http.Request, _ string) {
		io.WriteString(nc, rawStreamHead+strings.Repeat(rawChunk(oneEvent), 5))
		io.Copy(io.Discard, nc)
	})
	r, body := s.ask("POST", "/v1/completions", streamed)
	require.Equal(t, 200, r.StatusCode)
	rest, ok := strings.CutPrefix(body, strings.Repeat(oneEvent, 5))
	require.True(t, ok, body)
	require.Equal(t, 1, strings.Count(rest, `"error":`), rest)
	require.True(t, strings.HasSuffix(rest, doneEvent), rest)
	s.untilFree()
}

// Case B23: an event reaches the client before anything comes behind it.
func TestEventIsNotHeldBackForTheNext(t *testing.T) {
	seen := make(chan struct{})
	s, _ := rawStand(t, settings{}, func(nc *net.TCPConn, _ *http.Request, _ string) {
		io.WriteString(nc, rawStreamHead)
		for range 3 {
			io.WriteString(nc, rawChunk(oneEvent))
			<-seen
		}
		io.WriteString(nc, rawChunk(doneEvent)+rawStreamEnd)
	})
	r, err := http.ReadResponse(bufio.NewReader(s.send("POST", "/v1/completions", streamed)), nil)
	require.NoError(t, err)
	got := make([]byte, len(oneEvent))
	for range 3 {
		_, err := io.ReadFull(r.Body, got)
		require.NoError(t, err)
		require.Equal(t, oneEvent, string(got))
		seen <- struct{}{}
	}
	rest, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Equal(t, doneEvent, string(rest))
}

// Case B23: lines that are longer than any buffer pass.
func TestLongLinesPassUnchanged(t *testing.T) {
	for _, size := range []int{70 << 10, 1100 << 10, 8 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			event := fmt.Sprintf("data: {\"id\":\"x\",\"text\":%q}\n\n", strings.Repeat("0123456789abcdef", size/16))
			s, _ := rawStand(t, settings{}, func(nc *net.TCPConn, _ *http.Request, _ string) {
				io.WriteString(nc, rawStreamHead+rawChunk(oneEvent)+rawChunk(event)+rawChunk(doneEvent)+rawStreamEnd)
			})
			_, body := s.ask("POST", "/v1/completions", streamed)
			require.Equal(t, sha256.Sum256([]byte(oneEvent+event+doneEvent)), sha256.Sum256([]byte(body)))
		})
	}
}

// Cases B23 and B48: every spelling of a stream passes byte for byte, byte by byte,
// and is understood: the stream is whole, and no error is added to it.
func TestStreamsOfEverySpellingPassByteByByte(t *testing.T) {
	const text = ": ping\n\n" + "event: x\r\nid: 1\r\nretry: 5\r\ndata:{\"a\":\"\U0001F600 \u4f60\u597d\"}\r\n\r\n" + "data: one\ndata: two\n\n" + "data: mac\r\r"
	for name, last := range map[string]string{
		"usual":         "data: [DONE]\n\n",
		"no space":      "data:[DONE]\n\n",
		"crlf":          "data: [DONE]\r\n\r\n",
		"cr":            "data: [DONE]\r\r",
		"no blank line": "data: [DONE]",
		"then a line":   "data: [DONE]\n\n: bye\n\n",
	} {
		for _, mark := range []string{"", "\ufeff"} {
			t.Run(fmt.Sprintf("%s bom=%t", name, mark != ""), func(t *testing.T) {
				s, _ := rawStand(t, settings{}, func(nc *net.TCPConn, _ *http.Request, _ string) {
					nc.SetNoDelay(true)
					io.WriteString(nc, rawStreamHead)
					whole := rawChunk(mark+text) + rawChunk(last)
					for i := range len(whole) {
						io.WriteString(nc, whole[i:i+1])
					}
					io.WriteString(nc, rawStreamEnd)
				})
				_, body := s.ask("POST", "/v1/completions", streamed)
				want := mark + text + last
				if name == "then a line" && !strings.HasSuffix(body, "bye\n\n") {
					want = strings.TrimSuffix(want, ": bye\n\n") // what comes behind the end is nobody's
				}
				require.Equal(t, want, body)
				s.untilFree()
				require.EqualValues(t, 1, s.router.stats.states[stateCompleted])
			})
		}
	}
}

// Case B48: comments keep coming while prefill works, and are no first token.
func TestCommentsPassBeforeTheFirstEvent(t *testing.T) {
	seen := make(chan struct{})
	s, _ := rawStand(t, settings{}, func(nc *net.TCPConn, _ *http.Request, _ string) {
		io.WriteString(nc, rawStreamHead+rawChunk(": still here\n\n"))
		<-seen
		io.WriteString(nc, rawChunk(oneEvent)+rawChunk(doneEvent)+rawStreamEnd)
	})
	r, err := http.ReadResponse(bufio.NewReader(s.send("POST", "/v1/completions", streamed)), nil)
	require.NoError(t, err)
	got := make([]byte, len(": still here\n\n"))
	_, err = io.ReadFull(r.Body, got)
	require.NoError(t, err)
	require.Equal(t, ": still here\n\n", string(got))
	close(seen)
	rest, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Equal(t, oneEvent+doneEvent, string(rest))
}

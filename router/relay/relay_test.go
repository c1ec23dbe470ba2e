package relay_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/router/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

func serve(t *testing.T, h edge.Handler) string {
	t.Helper()
	s, err := edge.Listen(edge.ServerConfig{Address: "127.0.0.1:0", Refuse: relay.Refuse})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve(h) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s.Shutdown(ctx)
		require.NoError(t, <-done)
	})
	return s.Addr().String()
}

func raw(t *testing.T, handle func(nc *net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			nc.SetDeadline(time.Now().Add(patience))
			http.ReadRequest(bufio.NewReader(nc))
			handle(nc.(*net.TCPConn))
			nc.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func TestEndToEndDropsWhatBelongsToOneConnection(t *testing.T) {
	in := [][2]string{
		{"Host", "a"},
		{"Connection", "close, X-Foo"},
		{"x-foo", "1"},
		{"TE", "trailers"},
		{"Keep-Alive", "5"},
		{"Proxy-Authorization", "p"},
		{"Authorization", "Bearer k"},
		{"x-CuStOm", "1"},
		{"x-CuStOm", "2"},
		{"Content-Length", "5"},
		{"Transfer-Encoding", "chunked"},
		{"Upgrade", "h2c"},
		{"Expect", "100-continue"},
		{"x-pd-Self", "evil"},
		{"Content-Type", "application/json"},
	}
	seq := func(yield func(string, string) bool) {
		for _, f := range in {
			if !yield(f[0], f[1]) {
				return
			}
		}
	}
	got := relay.EndToEnd(seq, func(name string) bool { return relay.HasPrefixFold(name, "X-PD-") })
	require.Equal(t, "[{Authorization Bearer k} {x-CuStOm 1} {x-CuStOm 2} {Content-Type application/json}]", fmt.Sprint(got))
}

func TestLegsEndWithTheirContext(t *testing.T) {
	silent := make(chan struct{})
	address := raw(t, func(nc *net.TCPConn) {
		close(silent)
		io.Copy(io.Discard, nc)
	})
	client := edge.NewClient(edge.ClientConfig{})
	defer client.Close()
	why := errors.New("the other leg failed")
	l := relay.NewLeg(context.Background(), client, edge.Request{Method: "POST", Address: address, Target: "/", Body: []byte("x")})
	go l.Run()
	<-l.Sent()
	<-silent
	l.Cancel(why)
	_, err := l.Answer()
	require.ErrorIs(t, err, why)
	l.Close(nil)

	l = relay.NewLeg(context.Background(), client, edge.Request{Method: "POST", Address: "127.0.0.1:1", Target: "/"})
	l.Run()
	_, err = l.Answer()
	require.True(t, edge.DialFailed(err))
	<-l.Sent()
	l.Close(nil)
}

// relayed runs one upstream answer through Events and gives the client's view.
func relayed(t *testing.T, upstream func(nc *net.TCPConn)) (*http.Response, string, relay.Seen) {
	t.Helper()
	address := raw(t, upstream)
	client := edge.NewClient(edge.ClientConfig{})
	t.Cleanup(client.Close)
	seen := make(chan relay.Seen, 1)
	front := serve(t, func(c *edge.Call) {
		x, err := client.Open(c.Context(), edge.Request{Method: "POST", Address: address, Target: "/"})
		if err != nil {
			relay.ReplyError(c, err)
			return
		}
		defer x.Close()
		seen <- relay.Events(c, x, nil, func() {}, func(*relay.Seen) error {
			return pd.Errorf(pd.CodeUpstreamInterrupted, "relay", "the stream broke")
		})
	})
	nc, err := net.Dial("tcp", front)
	require.NoError(t, err)
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(patience))
	io.WriteString(nc, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	r, err := http.ReadResponse(bufio.NewReader(nc), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r, string(body), <-seen
}

const (
	streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Request-Id: 7\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nDate: then\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n"
	errorEvent = `data: {"object":"error","message":"the stream broke","error":{"message":"the stream broke","type":"pd_decode_error","param":null,"code":"upstream_interrupted"}}` + "\n\ndata: [DONE]\n\n"
)

func chunked(s string) string {
	return fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(s), s)
}

func TestWholeStreamPassesUnchanged(t *testing.T) {
	const events = ": ping\n\ndata: {\"a\":1}\r\n\r\ndata:[DONE]\n\n"
	r, body, seen := relayed(t, func(nc *net.TCPConn) { io.WriteString(nc, streamHead+chunked(events)+"0\r\n\r\n") })
	require.Equal(t, events, body)
	require.True(t, seen.Whole())
	require.Equal(t, 2, seen.Events)
	require.Equal(t, http.Header{
		"Content-Type": {"text/event-stream"}, "X-Request-Id": {"7"}, "Set-Cookie": {"a", "b"}, "Date": {"then"},
	}, maps.Clone(r.Header))
}

// Case B06: a broken stream is never dressed up as a normal finish.
func TestBrokenStreamsEndWithOneErrorEvent(t *testing.T) {
	one := "data: {\"n\":1}\n\n"
	for name, c := range map[string]struct {
		stream string
		want   string
	}{
		"nothing":           {"", ""},
		"one event":         {one, one},
		"mid line":          {one + "data: {\"n\":", one},
		"no done at all":    {one + "data: {\"finish_reason\":\"stop\"}\n\n", one + "data: {\"finish_reason\":\"stop\"}\n\n"},
		"unfinished marker": {one + "data: [DO", one},
	} {
		for _, end := range []string{"fin", "reset", "length", "proper"} {
			t.Run(name+" "+end, func(t *testing.T) {
				r, body, seen := relayed(t, func(nc *net.TCPConn) {
					switch {
					case end == "length":
						fmt.Fprintf(nc, "%sContent-Length: 999\r\n\r\n%s", streamHead, c.stream)
					case c.stream == "" && end == "proper":
						io.WriteString(nc, streamHead+"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
					case c.stream == "":
						io.WriteString(nc, streamHead+"Transfer-Encoding: chunked\r\n\r\n")
					case end == "proper":
						io.WriteString(nc, streamHead+chunked(c.stream)+"0\r\n\r\n")
					default:
						io.WriteString(nc, streamHead+chunked(c.stream))
					}
					if end == "reset" {
						// Let the bytes arrive first; a reset overtakes them.
						time.AfterFunc(50*time.Millisecond, func() { nc.SetLinger(0); nc.Close() })
						io.Copy(io.Discard, nc)
					}
				})
				require.Equal(t, 200, r.StatusCode)
				require.Equal(t, c.want+errorEvent, body)
				require.Error(t, seen.Upstream)
				require.False(t, seen.Whole())
			})
		}
	}
}

func TestUpstreamsOwnErrorEventIsNotDoubled(t *testing.T) {
	const events = "data: {\"error\":{\"message\":\"x\"}}\n\n"
	_, body, seen := relayed(t, func(nc *net.TCPConn) { io.WriteString(nc, streamHead+chunked(events)) })
	require.Equal(t, events+"data: [DONE]\n\n", body)
	require.True(t, seen.Failed)
}

func TestLastEventWithoutItsBlankLineCounts(t *testing.T) {
	const events = "data: 1\n\ndata: [DONE]"
	_, body, seen := relayed(t, func(nc *net.TCPConn) { io.WriteString(nc, streamHead+chunked(events)+"0\r\n\r\n") })
	require.Equal(t, events, body)
	require.True(t, seen.Whole())
}

// Case B28: length, coding and bytes of a whole answer agree.
func TestWholeAnswersKeepStatusHeadersAndBytes(t *testing.T) {
	address := raw(t, func(nc *net.TCPConn) {
		io.WriteString(nc, "HTTP/1.1 429 Slow Down\r\nContent-Type: text/x\r\nContent-Encoding: gzip\r\nRetry-After: 7\r\nX-Secret: 1\r\nContent-Length: 3\r\nConnection: close\r\n\r\n\x1f\x8b\x00")
	})
	client := edge.NewClient(edge.ClientConfig{})
	defer client.Close()
	front := serve(t, func(c *edge.Call) {
		x, err := client.Open(c.Context(), edge.Request{Method: "POST", Address: address, Target: "/"})
		if err != nil {
			relay.ReplyError(c, err)
			return
		}
		defer x.Close()
		body, err := x.ReadAll(relay.MaxWhole)
		if err != nil {
			relay.ReplyError(c, err)
			return
		}
		relay.ReplyWhole(c, x, body, func(name string) bool { return name == "X-Secret" })
	})
	nc, err := net.Dial("tcp", front)
	require.NoError(t, err)
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(patience))
	io.WriteString(nc, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	r, err := http.ReadResponse(bufio.NewReader(nc), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Equal(t, 429, r.StatusCode)
	require.Equal(t, "\x1f\x8b\x00", string(body))
	require.Equal(t, "gzip", r.Header.Get("Content-Encoding"))
	require.Equal(t, "7", r.Header.Get("Retry-After"))
	require.Empty(t, r.Header.Get("X-Secret"))
	require.False(t, r.Close, "the upstream's Connection line is not the client's")
}

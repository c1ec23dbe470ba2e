package edge_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

func send(t *testing.T, nc net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(nc, text)
	require.NoError(t, err)
}

// readResponse reads one answer with the standard library's reader, so that the
// bytes are judged by somebody else.
func readResponse(t *testing.T, br *bufio.Reader, method string) (*http.Response, string) {
	t.Helper()
	r, err := http.ReadResponse(br, &http.Request{Method: method})
	require.NoError(t, err)
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r, string(body)
}

func echo(c *edge.Call) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s ? %s\n", c.Method(), c.Path(), c.Query())
	for n, v := range c.Headers() {
		fmt.Fprintf(&b, "%s=%s\n", n, v)
	}
	b.Write(c.Body())
	c.Reply(200, "text/plain", []byte(b.String()))
}

func TestCallsKeepTargetHeadersAndBodyAsSent(t *testing.T) {
	_, address := serve(t, edge.ServerConfig{}, echo)
	nc := dial(t, address)
	big := strings.Repeat("c", 9000)
	send(t, nc, "POST /v1//models/org%2Fname?x=%20+&x=2 HTTP/1.1\r\nHost: h\r\nx-CuStOm: 1\r\nx-CuStOm: 2\r\n"+
		"Cookie: "+big+"\r\nContent-Length: 5\r\n\r\nhello")
	r, body := readResponse(t, bufio.NewReader(nc), "POST")
	require.Equal(t, 200, r.StatusCode)
	require.Equal(t, "POST /v1//models/org%2Fname ? x=%20+&x=2\nHost=h\nx-CuStOm=1\nx-CuStOm=2\nCookie="+big+"\nContent-Length=5\nhello", body)
	require.NotEmpty(t, r.Header.Get("Date"))
}

func TestAbsoluteTargetIsServedByItsPath(t *testing.T) {
	_, address := serve(t, edge.ServerConfig{}, echo)
	nc := dial(t, address)
	send(t, nc, "GET http://elsewhere/health?a HTTP/1.1\r\nHost: h\r\n\r\n")
	_, body := readResponse(t, bufio.NewReader(nc), "GET")
	require.Equal(t, "GET /health ? a\nHost=h\n", body)
}

func TestConnectionServesPipelinedAndChunkedRequests(t *testing.T) {
	_, address := serve(t, edge.ServerConfig{}, echo)
	nc := dial(t, address)
	send(t, nc, "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;x=1\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n"+
		"GET /b HTTP/1.1\r\nHost: h\r\n\r\nHEAD /c HTTP/1.1\r\nHost: h\r\n\r\nGET /d HTTP/1.1\r\nHost: h\r\n\r\n")
	br := bufio.NewReader(nc)
	_, body := readResponse(t, br, "POST")
	require.Equal(t, "POST /a ? \nHost=h\nTransfer-Encoding=chunked\nabcde", body)
	_, body = readResponse(t, br, "GET")
	require.Equal(t, "GET /b ? \nHost=h\n", body)
	r, body := readResponse(t, br, "HEAD")
	require.Empty(t, body)
	require.EqualValues(t, len("HEAD /c ? \nHost=h\n"), r.ContentLength)
	_, body = readResponse(t, br, "GET")
	require.Equal(t, "GET /d ? \nHost=h\n", body)
}

func TestExpectContinueIsAnsweredBeforeTheBody(t *testing.T) {
	_, address := serve(t, edge.ServerConfig{}, echo)
	nc := dial(t, address)
	send(t, nc, "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
	br := bufio.NewReader(nc)
	line, err := br.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 100 Continue\r\n", line)
	br.ReadString('\n')
	send(t, nc, "ok")
	_, body := readResponse(t, br, "POST")
	require.True(t, strings.HasSuffix(body, "\nok"))
}

// Case B36.
func TestAmbiguousFramingIsRefusedAndHiddenRequestsAreNotServed(t *testing.T) {
	served := make(chan string, 64)
	_, address := serve(t, edge.ServerConfig{}, func(c *edge.Call) {
		served <- c.Path()
		c.Reply(200, "", nil)
	})
	hidden := "POST /hidden HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"
	for name, head := range map[string]string{
		"length then coding":       "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"coding then length":       "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
		"two lengths":              "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
		"two equal lengths":        "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
		"signed length":            "Content-Length: +5\r\n\r\nhello",
		"list of lengths":          "Content-Length: 5, 5\r\n\r\nhello",
		"coding list":              "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"unknown coding":           "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"identity":                 "Transfer-Encoding: identity\r\n\r\n",
		"space before the colon":   "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"repeated coding":          "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"hex prefix in chunk size": "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
		"huge chunk size":          "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n",
		"chunk without end":        "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
		"bare line feed":           "X: 1\nContent-Length: 0\r\n\r\n",
		"folded line":              "X: 1\r\n Content-Length: 5\r\n\r\n",
		"NUL in a header":          "X: a\x00b\r\n\r\n",
		"space in a header name":   "Content-Length x: 5\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			nc := dial(t, address)
			send(t, nc, "POST /outer HTTP/1.1\r\nHost: h\r\n"+head+hidden)
			all, err := io.ReadAll(nc)
			if err == nil {
				require.True(t, strings.HasPrefix(string(all), "HTTP/1.1 400 "), "%q", all)
				require.Equal(t, 1, strings.Count(string(all), "HTTP/1.1 "))
			}
		})
	}
	require.Empty(t, served)
}

func TestLimitsAnswerWithTheirStatus(t *testing.T) {
	_, address := serve(t, edge.ServerConfig{MaxBody: 10, MaxHeader: 8 << 10, Refuse: func(status int, message string) (string, []byte) {
		return "application/json", fmt.Appendf(nil, `{"status":%d,"message":%q}`, status, message)
	}}, echo)
	for name, c := range map[string]struct {
		request string
		want    string
	}{
		"body":         {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\n", `{"status":413,"message":"the request body exceeds 10 bytes"}`},
		"chunked body": {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n01234567890\r\n0\r\n\r\n", `{"status":413,"message":"the request body exceeds 10 bytes"}`},
		"head":         {"GET / HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("x", 9<<10) + "\r\n\r\n", `{"status":431,"message":"the request head exceeds 8192 bytes"}`},
		"no host":      {"GET / HTTP/1.1\r\n\r\n", `{"status":400,"message":"malformed HTTP request head"}`},
	} {
		t.Run(name, func(t *testing.T) {
			nc := dial(t, address)
			send(t, nc, c.request)
			r, body := readResponse(t, bufio.NewReader(nc), "GET")
			require.Equal(t, c.want, body)
			require.True(t, r.Close)
		})
	}
}

func TestTooManyConnectionsAreAnswered503(t *testing.T) {
	s, address := serve(t, edge.ServerConfig{MaxConnections: 1}, echo)
	first := dial(t, address)
	send(t, first, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	readResponse(t, bufio.NewReader(first), "GET")
	require.Equal(t, 1, s.Connections())
	r, _ := readResponse(t, bufio.NewReader(dial(t, address)), "GET")
	require.Equal(t, 503, r.StatusCode)
}

func TestTakenPortIsAnErrorOfListen(t *testing.T) {
	_, address := serve(t, edge.ServerConfig{}, echo)
	_, err := edge.Listen(edge.ServerConfig{Address: address})
	require.ErrorContains(t, err, "listen on "+address)
}

func TestHangUpIsNoticedBeforeTheFirstByte(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn){
		"fin":   func(nc *net.TCPConn) { nc.Close() },
		"reset": func(nc *net.TCPConn) { nc.SetLinger(0); nc.Close() },
		"half":  func(nc *net.TCPConn) { nc.CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			inside, left := make(chan struct{}), make(chan error, 1)
			_, address := serve(t, edge.ServerConfig{}, func(c *edge.Call) {
				close(inside)
				<-c.Context().Done()
				left <- context.Cause(c.Context())
			})
			nc := dial(t, address)
			send(t, nc, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
			await(t, inside)
			leave(nc)
			require.ErrorIs(t, await(t, left), edge.ErrClientGone)
		})
	}
}

func TestHangUpIsNoticedInASilentStream(t *testing.T) {
	left := make(chan error, 1)
	_, address := serve(t, edge.ServerConfig{}, func(c *edge.Call) {
		c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
			w.WriteEvent([]byte("1"))
			<-c.Context().Done()
			left <- context.Cause(c.Context())
			return context.Cause(c.Context())
		})
	})
	nc := dial(t, address)
	send(t, nc, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	br := bufio.NewReader(nc)
	for line := ""; line != "data: 1\n"; {
		var err error
		line, err = br.ReadString('\n')
		require.NoError(t, err)
	}
	nc.Close()
	require.ErrorIs(t, await(t, left), edge.ErrClientGone)
}

func TestPipelinedRequestIsNoHangUp(t *testing.T) {
	release := make(chan struct{})
	inside := make(chan struct{}, 2)
	_, address := serve(t, edge.ServerConfig{}, func(c *edge.Call) {
		inside <- struct{}{}
		<-release
		if c.Context().Err() != nil {
			c.Reply(500, "", nil)
			return
		}
		echo(c)
	})
	nc := dial(t, address)
	send(t, nc, "GET /1 HTTP/1.1\r\nHost: h\r\n\r\n")
	await(t, inside)
	send(t, nc, "GET /2 HTTP/1.1\r\nHost: h\r\n\r\n")
	close(release)
	br := bufio.NewReader(nc)
	_, body := readResponse(t, br, "GET")
	require.Equal(t, "GET /1 ? \nHost=h\n", body)
	_, body = readResponse(t, br, "GET")
	require.Equal(t, "GET /2 ? \nHost=h\n", body)
}

func TestBrokenStreamIsNotEndedProperly(t *testing.T) {
	_, address := serve(t, edge.ServerConfig{}, func(c *edge.Call) {
		c.Stream(200, "text/plain", func(w *edge.StreamWriter) error {
			w.WriteString("half")
			w.Flush()
			return errors.New("upstream broke")
		})
	})
	nc := dial(t, address)
	send(t, nc, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	r, err := http.ReadResponse(bufio.NewReader(nc), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(r.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, "half", string(body))
}

func TestStreamKeepsTheConnectionAndOldClientsGetPlainBytes(t *testing.T) {
	_, address := serve(t, edge.ServerConfig{}, func(c *edge.Call) {
		c.SetHeader("X-Id", "7")
		c.SetHeader("Content-Length", "99")
		require.NoError(t, c.Stream(200, "text/plain", func(w *edge.StreamWriter) error {
			w.WriteString("one")
			w.Flush()
			w.WriteString(strings.Repeat("2", 100<<10))
			return nil
		}))
	})
	want := "one" + strings.Repeat("2", 100<<10)
	nc := dial(t, address)
	br := bufio.NewReader(nc)
	for range 2 {
		send(t, nc, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		r, body := readResponse(t, br, "GET")
		require.Equal(t, want, body)
		require.Equal(t, "7", r.Header.Get("X-Id"))
		require.Equal(t, []string{"chunked"}, r.TransferEncoding)
	}
	old := dial(t, address)
	send(t, old, "GET / HTTP/1.0\r\n\r\n")
	r, body := readResponse(t, bufio.NewReader(old), "GET")
	require.Equal(t, want, body)
	require.Empty(t, r.TransferEncoding)
	require.True(t, r.Close)
}

func TestPanickingHandlerEndsOnlyItsOwnCall(t *testing.T) {
	_, address := serve(t, edge.ServerConfig{}, func(c *edge.Call) {
		if c.Path() == "/bad" {
			panic("bug")
		}
		echo(c)
	})
	nc := dial(t, address)
	send(t, nc, "GET /bad HTTP/1.1\r\nHost: h\r\n\r\n")
	r, _ := readResponse(t, bufio.NewReader(nc), "GET")
	require.Equal(t, 500, r.StatusCode)
	nc = dial(t, address)
	send(t, nc, "GET /good HTTP/1.1\r\nHost: h\r\n\r\n")
	r, _ = readResponse(t, bufio.NewReader(nc), "GET")
	require.Equal(t, 200, r.StatusCode)
}

func TestShutdownLetsRunningCallsFinishAndClosesIdleConnections(t *testing.T) {
	inside, release := make(chan struct{}), make(chan struct{})
	s, address := serve(t, edge.ServerConfig{}, func(c *edge.Call) {
		if c.Path() == "/slow" {
			close(inside)
			<-release
		}
		c.Reply(200, "", []byte("done"))
	})
	idle := dial(t, address)
	idleReader := bufio.NewReader(idle)
	send(t, idle, "GET /quick HTTP/1.1\r\nHost: h\r\n\r\n")
	readResponse(t, idleReader, "GET")
	busy := dial(t, address)
	send(t, busy, "GET /slow HTTP/1.1\r\nHost: h\r\n\r\n")
	await(t, inside)

	down := make(chan error, 1)
	go func() { down <- s.Shutdown(within(t)) }()
	_, err := idleReader.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	_, err = net.Dial("tcp", address)
	require.Error(t, err)
	close(release)
	r, body := readResponse(t, bufio.NewReader(busy), "GET")
	require.Equal(t, "done", body)
	require.True(t, r.Close)
	require.NoError(t, await(t, down))
}

func TestShutdownCutsWhatOutlastsItsContext(t *testing.T) {
	inside, cause := make(chan struct{}), make(chan error, 1)
	s, address := serve(t, edge.ServerConfig{}, func(c *edge.Call) {
		close(inside)
		<-c.Context().Done()
		cause <- context.Cause(c.Context())
	})
	send(t, dial(t, address), "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	await(t, inside)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, s.Shutdown(ctx), context.Canceled)
	require.ErrorIs(t, await(t, cause), edge.ErrStopping)
}

// A call that is cut still tells its client so, and ends its answer as answers
// end; one that does not loses its connection.
func TestShutdownLetsCallsThatItCutsSayTheirLastWords(t *testing.T) {
	inside, release := make(chan struct{}, 3), make(chan struct{})
	s, address := serve(t, edge.ServerConfig{}, func(c *edge.Call) {
		switch c.Path() {
		case "/whole":
			inside <- struct{}{}
			<-c.Context().Done()
			c.Reply(503, "", []byte("stopping"))
		case "/stream":
			c.Stream(200, "", func(w *edge.StreamWriter) error {
				inside <- struct{}{}
				<-c.Context().Done()
				_, err := w.WriteString("stopping")
				return err
			})
		default:
			inside <- struct{}{}
			<-release
		}
	})
	var readers []*bufio.Reader
	for _, path := range []string{"/whole", "/stream", "/deaf"} {
		nc := dial(t, address)
		send(t, nc, "GET "+path+" HTTP/1.1\r\nHost: h\r\n\r\n")
		readers = append(readers, bufio.NewReader(nc))
		await(t, inside)
	}
	defer close(release)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorContains(t, s.Shutdown(ctx), "3 connections open")
	for i, status := range []int{503, 200} {
		r, body := readResponse(t, readers[i], "GET")
		require.Equal(t, status, r.StatusCode)
		require.Equal(t, "stopping", body)
	}
	_, err := readers[2].ReadByte()
	require.Error(t, err)
}

package edge_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// upstream is a raw server: each connection goes to handle, which owns it.
func upstream(t *testing.T, handle func(nc *net.TCPConn, br *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer nc.Close()
				nc.SetDeadline(time.Now().Add(patience))
				handle(nc.(*net.TCPConn), bufio.NewReader(nc))
			})
		}
	})
	return l.Addr().String()
}

// readHead takes one request head from the wire, "" at the connection's end.
func readHead(br *bufio.Reader) string {
	var b strings.Builder
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			return ""
		}
		b.WriteString(line)
		if line == "\r\n" {
			return b.String()
		}
	}
}

func TestDoSendsWhatItIsGivenAndReadsTheAnswer(t *testing.T) {
	heads := make(chan string, 1)
	address := upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
		heads <- readHead(br)
		body := make([]byte, 5)
		io.ReadFull(br, body)
		fmt.Fprintf(nc, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nx-Case: 1\r\nX-Big: %s\r\nContent-Length: 5\r\n\r\n%s",
			strings.Repeat("x", 20<<10), body)
	})
	r, err := client(t, edge.ClientConfig{}).Do(within(t), edge.Request{
		Method: "POST", Address: address, Target: "/v1//x?y=%20",
		Header: []edge.Field{{"X-One", "1"}, {"Content-Length", "77"}, {"transfer-encoding", "chunked"}},
		Body:   []byte("hello"),
	})
	require.NoError(t, err)
	require.Equal(t, "POST /v1//x?y=%20 HTTP/1.1\r\nHost: "+address+"\r\nX-One: 1\r\nContent-Length: 5\r\n\r\n", await(t, heads))
	require.Equal(t, 201, r.Status)
	require.Equal(t, "hello", string(r.Body))
	require.Equal(t, "1", r.Get("X-Case"))
	var cookies []string
	for _, f := range r.Header {
		if f.Name == "Set-Cookie" {
			cookies = append(cookies, f.Value)
		}
	}
	require.Equal(t, []string{"a=1", "b=2"}, cookies)
}

func TestDoRefusesAnAnswerAboveItsLimit(t *testing.T) {
	for name, head := range map[string]string{
		"announced": "Content-Length: 11\r\n\r\n01234567890",
		"chunked":   "Transfer-Encoding: chunked\r\n\r\nb\r\n01234567890\r\n0\r\n\r\n",
		"to close":  "\r\n01234567890",
	} {
		t.Run(name, func(t *testing.T) {
			address := upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
				readHead(br)
				io.WriteString(nc, "HTTP/1.1 200 OK\r\n"+head)
			})
			_, err := client(t, edge.ClientConfig{MaxResponse: 10}).Do(within(t), edge.Request{Method: "GET", Address: address, Target: "/"})
			require.ErrorIs(t, err, edge.ErrTooLarge)
			require.ErrorContains(t, err, "more than 10 bytes")
		})
	}
}

func TestCancelClosesAnExchangeThatWaitsForHeaders(t *testing.T) {
	asked, closed := make(chan struct{}), make(chan error, 1)
	address := upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
		readHead(br)
		close(asked)
		_, err := br.ReadByte()
		closed <- err
	})
	reason := errors.New("the client left")
	ctx, cancel := context.WithCancelCause(within(t))
	failed := make(chan error, 1)
	c := client(t, edge.ClientConfig{})
	go func() {
		_, err := c.Open(ctx, edge.Request{Method: "POST", Address: address, Target: "/"})
		failed <- err
	}()
	await(t, asked)
	cancel(reason)
	err := await(t, failed)
	require.ErrorIs(t, err, reason)
	failure, ok := errors.AsType[*edge.ExchangeError](err)
	require.True(t, ok)
	require.Equal(t, edge.PhaseHead, failure.Phase)
	require.Error(t, await(t, closed))
}

func TestHeadTimeoutAndReadTimeoutNameWhatStalled(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		want   error
	}{
		"head": {"", edge.ErrHeadTimeout},
		"body": {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", edge.ErrReadTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			address := upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
				readHead(br)
				io.WriteString(nc, c.answer)
				br.ReadByte() // until the client gives up
			})
			_, err := client(t, edge.ClientConfig{}).Do(within(t), edge.Request{
				Method: "GET", Address: address, Target: "/", HeadTimeout: 200 * time.Millisecond, ReadTimeout: 200 * time.Millisecond,
			})
			require.ErrorIs(t, err, c.want)
		})
	}
}

func TestDialFailureIsTold(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	l.Close()
	_, err = client(t, edge.ClientConfig{}).Do(within(t), edge.Request{Method: "POST", Address: address, Target: "/"})
	require.True(t, edge.DialFailed(err))
	require.ErrorContains(t, err, "dial "+address)

	address = upstream(t, func(nc *net.TCPConn, br *bufio.Reader) { readHead(br) })
	_, err = client(t, edge.ClientConfig{}).Do(within(t), edge.Request{Method: "POST", Address: address, Target: "/"})
	require.ErrorIs(t, err, edge.ErrEarlyEnd)
	require.False(t, edge.DialFailed(err))
}

func TestAnswerThatEndsEarlyIsNeverComplete(t *testing.T) {
	for name, answer := range map[string]string{
		"length":        "Content-Length: 10\r\n\r\nhalf",
		"chunk":         "Transfer-Encoding: chunked\r\n\r\n10\r\nhalf",
		"no last chunk": "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"no trailer":    "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n0\r\n",
	} {
		for _, reset := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s reset=%t", name, reset), func(t *testing.T) {
				got := make(chan struct{})
				address := upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
					readHead(br)
					io.WriteString(nc, "HTTP/1.1 200 OK\r\n"+answer)
					<-got
					if reset {
						nc.SetLinger(0)
					}
				})
				x, err := client(t, edge.ClientConfig{}).Open(within(t), edge.Request{Method: "GET", Address: address, Target: "/"})
				require.NoError(t, err)
				defer x.Close()
				half := make([]byte, 4)
				_, err = io.ReadFull(x, half)
				close(got)
				require.NoError(t, err)
				_, err = x.Read(half)
				require.ErrorIs(t, err, edge.ErrEarlyEnd)
				require.False(t, x.Complete())
			})
		}
	}
}

// Case B01: an abandoned answer must not reach the next caller.
func TestConnectionIsReusedOnlyAfterItsAnswerWasReadToTheEnd(t *testing.T) {
	var connections atomic.Int64
	gone := make(chan struct{}, 8)
	address := upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
		connections.Add(1)
		defer func() { gone <- struct{}{} }()
		for {
			head := readHead(br)
			if head == "" {
				return
			}
			target := strings.Fields(head)[1]
			fmt.Fprintf(nc, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(target), target)
		}
	})
	c := client(t, edge.ClientConfig{})
	get := func(target string) *edge.Exchange {
		x, err := c.Open(within(t), edge.Request{Method: "GET", Address: address, Target: target})
		require.NoError(t, err)
		return x
	}
	for i := range 3 {
		x := get(fmt.Sprintf("/read/%d", i))
		body, err := x.ReadAll(100)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("/read/%d", i), string(body))
		x.Close()
		x.Abort(errors.New("too late to matter"))
	}
	require.EqualValues(t, 1, connections.Load())
	get("/abandoned").Close()
	await(t, gone)
	x := get("/next")
	body, err := x.ReadAll(100)
	require.NoError(t, err)
	require.Equal(t, "/next", string(body))
	x.Close()
	require.EqualValues(t, 2, connections.Load())
}

// Case B13: a server that closes right after each answer without saying so.
func TestIdleConnectionThatTheServerClosedIsNoError(t *testing.T) {
	var requests atomic.Int64
	address := upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
		if readHead(br) != "" {
			requests.Add(1)
			io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	c := client(t, edge.ClientConfig{})
	for _, method := range []string{"POST", "GET"} {
		for range 50 {
			r, err := c.Do(within(t), edge.Request{Method: method, Address: address, Target: "/"})
			require.NoError(t, err)
			require.Equal(t, "ok", string(r.Body))
		}
	}
	require.EqualValues(t, 100, requests.Load(), "no request may arrive twice")
}

func TestServerThatAnswersBeforeItReadTheBodyIsHeard(t *testing.T) {
	address := upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
		readHead(br)
		io.WriteString(nc, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
		nc.CloseWrite()
		io.CopyN(io.Discard, br, 1<<20)
	})
	r, err := client(t, edge.ClientConfig{}).Do(within(t), edge.Request{
		Method: "POST", Address: address, Target: "/", Body: make([]byte, 1<<20),
	})
	require.NoError(t, err)
	require.Equal(t, 413, r.Status)
	require.Equal(t, "big", string(r.Body))
}

func TestProxyEnvironmentIsIgnored(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://192.0.2.1:1")
	t.Setenv("http_proxy", "http://192.0.2.1:1")
	_, address := serve(t, edge.ServerConfig{}, echo)
	r, err := client(t, edge.ClientConfig{}).Do(within(t), edge.Request{Method: "GET", Address: address, Target: "/x"})
	require.NoError(t, err)
	require.Equal(t, 200, r.Status)
}

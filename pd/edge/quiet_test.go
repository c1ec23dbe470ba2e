package edge_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// pumpFrom relays one answer of an upstream to a client and gives what the client
// got and how the pump ended.
func pumpFrom(t *testing.T, request edge.Request, opened func(x *edge.Exchange)) (body string, err error) {
	t.Helper()
	up := client(t, edge.ClientConfig{})
	result := make(chan error, 1)
	_, address := serve(t, edge.ServerConfig{}, func(c *edge.Call) {
		x, err := up.Open(c.Context(), request)
		if err != nil {
			result <- err
			return
		}
		defer x.Close()
		if opened != nil {
			opened(x)
		}
		c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
			x.Forget()
			c.Forget()
			var pump edge.EventPump
			result <- pump.Run(w, x)
			return nil
		})
	})
	nc := dial(t, address)
	_, err = io.WriteString(nc, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody")
	require.NoError(t, err)
	_, body = readResponse(t, bufio.NewReader(nc), "POST")
	return body, await(t, result)
}

// A stream that waits has no buffer; what comes then is read as if it had one,
// however it is cut into packets.
func TestStreamThatWaitsWithoutABufferLosesNothing(t *testing.T) {
	const stream = "data: one\n\ndata: two\n\n: a comment\n\ndata: [DONE]\n\n"
	framed, rest := "", stream
	for _, size := range []int{1, 10, 12, len(stream) - 23} {
		framed += fmt.Sprintf("%x\r\n%s\r\n", size, rest[:size])
		rest = rest[size:]
	}
	for name, wire := range map[string]string{
		"chunked":  "Transfer-Encoding: chunked\r\n\r\n" + framed + "0\r\n\r\n",
		"length":   fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(stream), stream),
		"to close": "Connection: close\r\n\r\n" + stream,
	} {
		for _, cut := range []int{1, 2, 7} {
			t.Run(fmt.Sprintf("%s cut=%d", name, cut), func(t *testing.T) {
				address := upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
					readHead(br)
					nc.SetNoDelay(true)
					io.WriteString(nc, "HTTP/1.1 200 OK\r\n")
					for rest := wire; rest != ""; rest = rest[min(cut, len(rest)):] {
						io.WriteString(nc, rest[:min(cut, len(rest))])
					}
				})
				got, err := pumpFrom(t, edge.Request{Method: "GET", Address: address, Target: "/"}, nil)
				require.NoError(t, err)
				require.Equal(t, stream, got)
			})
		}
	}
}

// How a wait ends is told as a read tells it; a reset that is seen while nothing is
// read must not become the proper end of an answer that has no length.
func TestStreamThatWaitsWithoutABufferTellsHowItEnds(t *testing.T) {
	because := errors.New("because")
	const event = "data: one\n\n"
	for name, c := range map[string]struct {
		timeout time.Duration
		end     func(nc *net.TCPConn, x *edge.Exchange)
		want    error
	}{
		"proper end": {end: func(nc *net.TCPConn, _ *edge.Exchange) { nc.CloseWrite() }},
		"reset":      {end: func(nc *net.TCPConn, _ *edge.Exchange) { nc.SetLinger(0); nc.Close() }, want: edge.ErrEarlyEnd},
		"abort":      {end: func(_ *net.TCPConn, x *edge.Exchange) { x.Abort(because) }, want: because},
		"stall":      {timeout: 50 * time.Millisecond, end: func(*net.TCPConn, *edge.Exchange) {}, want: edge.ErrReadTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			exchange, over := make(chan *edge.Exchange, 1), make(chan struct{})
			address := upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
				readHead(br)
				io.WriteString(nc, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"+event)
				c.end(nc, await(t, exchange))
				<-over
			})
			got, err := pumpFrom(t, edge.Request{Method: "GET", Address: address, Target: "/", ReadTimeout: c.timeout},
				func(x *edge.Exchange) { exchange <- x })
			close(over)
			if c.want == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, c.want)
			}
			if name != "reset" { // a reset may take with it what was not read
				require.Equal(t, event, got)
			}
		})
	}
}

// A client may send its next request while its stream runs; the connection has let
// go of everything else by then.
func TestConnectionServesOnAfterAStream(t *testing.T) {
	_, address := serve(t, edge.ServerConfig{}, func(c *edge.Call) {
		body := string(c.Body())
		c.Stream(200, "text/plain", func(w *edge.StreamWriter) error {
			c.Forget()
			if len(c.Body()) > 0 || c.Header("X-Name") != "" {
				return errors.New("not forgotten")
			}
			_, err := w.WriteString(c.Method() + " " + body)
			return err
		})
	})
	nc := dial(t, address)
	request := func(body string) string {
		return fmt.Sprintf("POST /%s HTTP/1.1\r\nHost: h\r\nX-Name: x\r\nContent-Length: %d\r\n\r\n%s", body, len(body), body)
	}
	br := bufio.NewReader(nc)
	io.WriteString(nc, request("first")+request("second"))
	for _, want := range []string{"first", "second", "third"} {
		if want == "third" {
			io.WriteString(nc, request("third"))
		}
		_, body := readResponse(t, br, "POST")
		require.Equal(t, "POST "+want, body)
	}
}

// The last event comes whole also where its blank line comes later, and the stream
// ends soon where that never comes.
func TestLastEventIsWaitedForToItsEnd(t *testing.T) {
	for name, c := range map[string]struct{ late, want string }{
		"late":  {"\n: behind it\n\n", "data: [DONE]\n\n"},
		"never": {"", "data: [DONE]\n"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan struct{})
			address := upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
				readHead(br)
				io.WriteString(nc, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: [DONE]\n")
				<-seen
				io.WriteString(nc, c.late)
				io.Copy(io.Discard, br)
			})
			up := client(t, edge.ClientConfig{})
			_, front := serve(t, edge.ServerConfig{}, func(call *edge.Call) {
				x, err := up.Open(call.Context(), edge.Request{Method: "GET", Address: address, Target: "/"})
				if err != nil {
					return
				}
				defer x.Close()
				call.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
					var pump edge.EventPump
					pump.Data = func([]byte) { pump.End = true; close(seen) }
					return pump.Run(w, x)
				})
			})
			nc := dial(t, front)
			send(t, nc, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
			_, body := readResponse(t, bufio.NewReader(nc), "GET")
			require.True(t, strings.HasPrefix(body, c.want), body)
		})
	}
}

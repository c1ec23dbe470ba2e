package edge_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// Case B15: slow uploads are cut long before anybody's patience ends.
func TestSlowRequestsAreCutWith408(t *testing.T) {
	served := make(chan struct{}, 1)
	_, address := serve(t, edge.ServerConfig{HeaderTimeout: 100 * time.Millisecond, BodyTimeout: 100 * time.Millisecond}, func(c *edge.Call) {
		served <- struct{}{}
		c.Reply(200, "", nil)
	})
	for name, request := range map[string]string{
		"head": "GET / HTTP/1.1\r\nHost: h\r\n",
		"body": "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nslow",
	} {
		t.Run(name, func(t *testing.T) {
			nc := dial(t, address)
			send(t, nc, request)
			r, _ := readResponse(t, bufio.NewReader(nc), "GET")
			require.Equal(t, 408, r.StatusCode)
			require.True(t, r.Close)
		})
	}
	nc := dial(t, address) // says nothing at all
	all, err := io.ReadAll(nc)
	require.NoError(t, err)
	require.Empty(t, all)
	require.Empty(t, served)
}

// Case B15: who takes nothing holds up nobody.
func TestClientThatTakesNothingEndsItsStreamAndNoOther(t *testing.T) {
	ended := make(chan error, 1)
	_, address := serve(t, edge.ServerConfig{WriteStall: 200 * time.Millisecond}, func(c *edge.Call) {
		if c.Path() == "/quick" {
			c.Reply(200, "", []byte("ok"))
			return
		}
		ended <- c.Stream(200, "text/plain", func(w *edge.StreamWriter) error {
			for {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return err
				}
			}
		})
	})
	stuck := dial(t, address)
	send(t, stuck, "GET /endless HTTP/1.1\r\nHost: h\r\n\r\n")
	other := dial(t, address)
	send(t, other, "GET /quick HTTP/1.1\r\nHost: h\r\n\r\n")
	_, body := readResponse(t, bufio.NewReader(other), "GET")
	require.Equal(t, "ok", body)
	require.ErrorIs(t, await(t, ended), edge.ErrClientGone)
}

// Case B15: slow is not dead.
func TestSlowReaderIsNotCut(t *testing.T) {
	const size = 4 << 20
	_, address := serve(t, edge.ServerConfig{WriteStall: 300 * time.Millisecond}, func(c *edge.Call) {
		c.Reply(200, "text/plain", make([]byte, size))
	})
	nc := dial(t, address)
	nc.SetReadBuffer(16 << 10)
	send(t, nc, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	// The whole takes several stalls' time; each piece comes in time.
	br := bufio.NewReader(nc)
	for line := ""; line != "\r\n"; {
		var err error
		line, err = br.ReadString('\n')
		require.NoError(t, err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	got := 0
	buf := make([]byte, 64<<10)
	for got < size {
		<-tick.C
		n, err := br.Read(buf)
		require.NoError(t, err)
		got += n
	}
}

// Case B14: nothing is left behind by clients that leave.
func TestHundredsOfHangUpsLeaveNothingBehind(t *testing.T) {
	descriptors := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(list)
	}
	var inside atomic.Int64
	silent := upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
		readHead(br)
		br.ReadByte() // until the relay closes
	})
	client := client(t, edge.ClientConfig{})
	s, address := serve(t, edge.ServerConfig{}, func(c *edge.Call) {
		inside.Add(1)
		defer inside.Add(-1)
		if c.Path() == "/relay" {
			x, err := client.Open(c.Context(), edge.Request{Method: "POST", Address: silent, Target: "/"})
			require.ErrorIs(t, err, edge.ErrClientGone)
			require.Nil(t, x)
			return
		}
		if c.Path() == "/wait" {
			<-c.Context().Done()
		}
		c.Reply(200, "", nil)
	})
	quiet := func() bool { return inside.Load() == 0 && s.Connections() == 0 }
	warm := dial(t, address) // so that everything that always runs is there
	send(t, warm, "GET /warm HTTP/1.1\r\nHost: h\r\n\r\n")
	readResponse(t, bufio.NewReader(warm), "GET")
	warm.Close()
	require.Eventually(t, quiet, patience, time.Millisecond)
	before, goroutines := descriptors(), runtime.NumGoroutine()
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			for range 50 {
				nc, err := net.Dial("tcp", address)
				if err != nil {
					t.Error(err)
					return
				}
				io.WriteString(nc, "GET "+[]string{"/wait", "/relay"}[i%2]+" HTTP/1.1\r\nHost: h\r\n\r\n")
				nc.Close()
			}
		})
	}
	wg.Wait()
	require.Eventually(t, quiet, patience, time.Millisecond)
	require.Eventually(t, func() bool {
		// One goroutine more: Eventually asks from its own.
		return descriptors() <= before && runtime.NumGoroutine() <= goroutines+1
	}, patience, 5*time.Millisecond)
}

func TestIdleConnectionsOfAClientAreBoundedAndAge(t *testing.T) {
	var open atomic.Int64
	address := upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
		open.Add(1)
		defer open.Add(-1)
		for readHead(br) != "" {
			io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	c := client(t, edge.ClientConfig{MaxIdle: 2, IdleTimeout: time.Nanosecond})
	get := func() *edge.Exchange {
		x, err := c.Open(within(t), edge.Request{Method: "GET", Address: address, Target: "/"})
		require.NoError(t, err)
		require.Empty(t, must(x.ReadAll(10)))
		return x
	}
	a, b := get(), get()
	a.Close()
	b.Close()
	require.Eventually(t, func() bool { return open.Load() == 1 }, patience, time.Millisecond, "the older one has aged")
	get().Close()
	require.Eventually(t, func() bool { return open.Load() == 1 }, patience, time.Millisecond)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestCancelledBeforeItBeginsSendsNothing(t *testing.T) {
	asked := make(chan struct{}, 1)
	address := upstream(t, func(*net.TCPConn, *bufio.Reader) { asked <- struct{}{} })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := client(t, edge.ClientConfig{}).Open(ctx, edge.Request{Method: "POST", Address: address, Target: "/"})
	require.True(t, edge.DialFailed(err))
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, asked)
	require.False(t, strings.Contains(err.Error(), "refused"))
}

// What is refused as the second request of a connection is answered, too, and the
// owner of the server may put headers on what is refused for its body.
func TestRefusalsOfLaterRequestsAreAnsweredWithTheOwnersHeaders(t *testing.T) {
	config := edge.ServerConfig{MaxBody: 10, Refusing: func(c *edge.Call, status int) {
		c.SetHeader("X-Of", c.Method()+" "+c.Path()+" "+c.Header("X-Given")+" "+itoa(status))
	}}
	_, address := serve(t, config, func(c *edge.Call) {
		c.SetHeader("X-Of", "the handler")
		c.Reply(200, "", c.Body())
	})
	const good = "POST /good HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok"
	for name, c := range map[string]struct {
		request string
		status  int
		of      string
	}{
		"announced":  {"POST /x HTTP/1.1\r\nHost: h\r\nX-Given: 1\r\nContent-Length: 11\r\n\r\n", 413, "POST /x 1 413"},
		"grown":      {"PUT /y HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n01234567890\r\n0\r\n\r\n", 413, "PUT /y  413"},
		"no chunks":  {"POST /z?q HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "POST /z  400"},
		"bad head":   {"nonsense\r\n\r\n", 400, ""},
		"two bodies": {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", 400, ""},
	} {
		for _, before := range []string{"", good} {
			nc := dial(t, address)
			br := bufio.NewReader(nc)
			if before != "" {
				send(t, nc, before)
				r, body := readResponse(t, br, "POST")
				require.Equal(t, 200, r.StatusCode)
				require.Equal(t, "ok", body)
			}
			send(t, nc, c.request)
			r, _ := readResponse(t, br, "POST")
			require.Equal(t, c.status, r.StatusCode, name)
			require.Equal(t, c.of, r.Header.Get("X-Of"), name)
			require.True(t, r.Close, name)
		}
	}
}

package edge_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// serveAdmitting is serve with something that looks at heads first.
func serveAdmitting(t *testing.T, admit, h edge.Handler) string {
	t.Helper()
	s, err := edge.Listen(edge.ServerConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	s.Admit(admit)
	done := make(chan error, 1)
	go func() { done <- s.Serve(h) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s.Shutdown(ctx)
		require.NoError(t, await(t, done))
	})
	return s.Addr().String()
}

// A client that is refused by its head is answered by its head: nobody waits for a
// body, nobody asks for one, and what was refused is not served.
func TestRefusalByTheHeadWaitsForNoBody(t *testing.T) {
	var served atomic.Int64
	address := serveAdmitting(t,
		func(c *edge.Call) {
			if c.Header("X-Key") == "" {
				c.Reply(401, "text/plain", []byte("no"))
			}
		},
		func(c *edge.Call) { served.Add(1); c.Reply(200, "text/plain", c.Body()) })
	for name, c := range map[string]struct {
		request string
		keeps   bool
	}{
		"no body":         {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", true},
		"all of the body": {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody", true},
		"a large body":    {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 30000000\r\n\r\n", false},
		"some of a body":  {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nbody", false},
		"chunks":          {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbo", false},
		"asks first":      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n", false},
		"beyond a limit":  {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 300000000\r\n\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			nc := dial(t, address)
			br := bufio.NewReader(nc)
			send(t, nc, c.request)
			r, body := readResponse(t, br, "POST")
			require.Equal(t, 401, r.StatusCode)
			require.Equal(t, "no", body)
			require.Equal(t, !c.keeps, r.Close)
			if !c.keeps {
				require.NoError(t, nc.CloseWrite())
				rest, err := io.ReadAll(br)
				require.NoError(t, err)
				require.Empty(t, rest)
				return
			}
			send(t, nc, "POST / HTTP/1.1\r\nHost: h\r\nX-Key: k\r\nContent-Length: 4\r\n\r\nnext")
			r, body = readResponse(t, br, "POST")
			require.Equal(t, 200, r.StatusCode)
			require.Equal(t, "next", body)
		})
	}
	require.EqualValues(t, 2, served.Load())
}

// A client that sends on after its refusal still gets to read it.
func TestRefusalByTheHeadReachesAClientThatIsSending(t *testing.T) {
	address := serveAdmitting(t, func(c *edge.Call) { c.Reply(401, "text/plain", []byte("no")) }, echo)
	nc := dial(t, address)
	const size = 600 << 10 // less than what is read and dropped
	send(t, nc, fmt.Sprintf("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n", size))
	send(t, nc, strings.Repeat("x", size))
	r, body := readResponse(t, bufio.NewReader(nc), "POST")
	require.Equal(t, 401, r.StatusCode)
	require.Equal(t, "no", body)
}

// A check that panics lets nobody in.
func TestPanickingCheckLetsNobodyIn(t *testing.T) {
	var served atomic.Int64
	address := serveAdmitting(t, func(*edge.Call) { panic("a bug") }, func(c *edge.Call) { served.Add(1); echo(c) })
	nc := dial(t, address)
	send(t, nc, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody")
	r, err := http.ReadResponse(bufio.NewReader(nc), nil)
	require.NoError(t, err)
	require.Equal(t, 500, r.StatusCode)
	require.Zero(t, served.Load())
}

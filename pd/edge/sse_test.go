package edge

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// pumped runs a pump into a real server stream and returns what the client got.
func pumped(t *testing.T, p *EventPump, r io.Reader) (string, error) {
	t.Helper()
	s, err := Listen(ServerConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	served := make(chan error, 1)
	result := make(chan error, 1)
	go func() {
		served <- s.Serve(func(c *Call) {
			c.Stream(200, "text/event-stream", func(w *StreamWriter) error {
				result <- p.Run(w, r)
				return nil
			})
		})
	}()
	nc, err := net.Dial("tcp", s.Addr().String())
	require.NoError(t, err)
	io.WriteString(nc, "GET / HTTP/1.0\r\n\r\n")
	all, err := io.ReadAll(bufio.NewReader(nc))
	require.NoError(t, err)
	nc.Close()
	require.NoError(t, s.Shutdown(context.Background()))
	require.NoError(t, <-served)
	_, body, ok := strings.Cut(string(all), "\r\n\r\n")
	require.True(t, ok)
	return body, <-result
}

// Case B48: every spelling passes unchanged and is understood.
func TestPumpKeepsEveryByteAndSeesEveryDataLine(t *testing.T) {
	stream := ": ping\n\nevent: x\nid: 1\nretry: 5\ndata:{\"a\":\"\U0001F600\"}\n\n" +
		"data: one\r\ndata: two\r\n\r\ndata: mac\r\rdata: [DONE]\n\n: bye"
	for name, r := range map[string]io.Reader{
		"at once":      strings.NewReader(stream),
		"byte by byte": iotest.OneByteReader(strings.NewReader(stream)),
	} {
		t.Run(name, func(t *testing.T) {
			var seen []string
			first := 0
			p := &EventPump{First: func() { first++ }, Data: func(prefix []byte) { seen = append(seen, string(prefix)) }}
			got, err := pumped(t, p, r)
			require.NoError(t, err)
			require.Equal(t, stream, got)
			require.Equal(t, []string{"{\"a\":\"\U0001F600\"}", "one", "two", "mac", "[DONE]"}, seen)
			require.Equal(t, 4, p.Events)
			require.Equal(t, 1, first)
			require.EqualValues(t, len(stream), p.Bytes)
			require.False(t, p.MidEvent)
		})
	}
}

// Case B06: half an event must not reach the client as if it were one.
func TestPumpDropsTheUnfinishedEndOfABrokenStream(t *testing.T) {
	broken := errors.New("reset")
	p := &EventPump{}
	got, err := pumped(t, p, io.MultiReader(strings.NewReader("data: 1\n\ndata: {\"half"), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)
	require.Equal(t, "data: 1\n\n", got)
	require.False(t, p.MidEvent)
}

// Case B23: long lines pass in bounded memory.
func TestPumpPassesLongEventsAsTheyCome(t *testing.T) {
	for _, size := range []int{70 << 10, 1 << 20, 8 << 20} {
		stream := "data: 1\n\ndata: " + strings.Repeat("x", size) + "\n\ndata: 2\n\n"
		p := &EventPump{}
		got, err := pumped(t, p, strings.NewReader(stream))
		require.NoError(t, err)
		require.True(t, stream == got, "%d of %d bytes", len(got), len(stream))
		require.Equal(t, 3, p.Events)
	}
	broken := errors.New("reset")
	p := &EventPump{}
	_, err := pumped(t, p, io.MultiReader(strings.NewReader("data: "+strings.Repeat("x", 100<<10)), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)
	require.True(t, p.MidEvent)
}

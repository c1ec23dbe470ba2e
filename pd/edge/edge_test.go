package edge_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests; nothing waits that long when the
// code is right.
const patience = 10 * time.Second

// serve runs a server for the test and returns its address.
func serve(t *testing.T, config edge.ServerConfig, h edge.Handler) (*edge.Server, string) {
	t.Helper()
	config.Address = "127.0.0.1:0"
	s, err := edge.Listen(config)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve(h) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s.Shutdown(ctx)
		require.NoError(t, await(t, done))
	})
	return s, s.Addr().String()
}

func client(t *testing.T, config edge.ClientConfig) *edge.Client {
	t.Helper()
	c := edge.NewClient(config)
	t.Cleanup(c.Close)
	return c
}

// await takes one value or fails the test.
func await[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		require.FailNow(t, "nothing came")
		panic("unreachable")
	}
}

// within gives a context that bounds a step of a test.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// dial opens a raw connection that the test closes.
func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	nc, err := net.Dial("tcp", address)
	require.NoError(t, err)
	nc.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { nc.Close() })
	return nc.(*net.TCPConn)
}

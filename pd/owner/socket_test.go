package owner_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// socketsEnv makes the test binary run its tests with every owner behind a
// socket.
const socketsEnv = "OWNER_TEST_SOCKETS"

var overSockets = os.Getenv(socketsEnv) != ""

// TestAllOverSockets runs all other tests once more, with owners that are driven
// through the local protocol.
func TestAllOverSockets(t *testing.T) {
	if overSockets {
		t.Skip("this is that run")
	}
	t.Parallel()
	c := exec.Command(os.Args[0], "-test.timeout=5m")
	c.Env = append(os.Environ(), socketsEnv+"=1")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// behindSockets moves the owners of a config to the other end of a socket. They
// are served by goroutines of this process.
func behindSockets(c *owner.Config) {
	provider, arena := c.Provider, c.NewArena
	if provider == nil {
		return // the test is about that
	}
	c.Provider, c.NewArena = nil, nil
	c.Remote = owner.Remote{Provider: provider.Name(), Options: "{}"}
	c.Launch = func(_ context.Context, rank pd.Rank) (*owner.Process, error) {
		return launchHere(rank, owner.ServeConfig{
			Provider: func(name, options string) (transfer.Provider, error) {
				if name != provider.Name() || options != "{}" {
					return nil, fmt.Errorf("provider %q with options %q", name, options)
				}
				return provider, nil
			},
			NewArena: func(_ transfer.Provider, rank pd.Rank) (transfer.Arena, error) {
				if arena == nil {
					return nil, nil
				}
				return arena(rank)
			},
		})
	}
}

// launchHere serves an owner on a goroutine of this process.
func launchHere(rank pd.Rank, c owner.ServeConfig) (*owner.Process, error) {
	near, far, err := pipe()
	if err != nil {
		return nil, err
	}
	memory, theirs, err := owner.MemoryFiles(fmt.Sprint("rank ", rank))
	if err != nil {
		return nil, err
	}
	c.Conn, c.Memory = far, theirs
	ended := make(chan struct{})
	var how error
	ctx, kill := context.WithCancel(context.Background())
	go func() {
		defer close(ended)
		how = owner.Serve(ctx, c)
		kill()
		theirs.Close()
	}()
	return &owner.Process{
		Conn: near, Memory: memory, PID: os.Getpid(), Ended: ended, Kill: kill,
		How: func() error { return fmt.Errorf("the goroutine returned: %w", orEnd(how)) },
	}, nil
}

func orEnd(err error) error {
	if err == nil {
		return io.EOF
	}
	return err
}

func pipe() (a, b *net.UnixConn, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var out [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return nil, nil, err
		}
		out[i] = c.(*net.UnixConn)
	}
	return out[0], out[1], nil
}

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
	"time"

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

// device hides host memory, as an accelerator does: it can only be copied.
type device struct{ transfer.Memory }

func (device) Bytes() []byte { return nil }

func (d device) CopyIn(offset int64, from []byte) error {
	copy(d.Memory.Bytes()[offset:], from)
	return nil
}

func (d device) CopyOut(offset int64, to []byte) error {
	copy(to, d.Memory.Bytes()[offset:])
	return nil
}

type deviceArena struct{ transfer.Arena }

func (a deviceArena) Allocate(c pd.ComponentID, bytes int64) (transfer.Memory, error) {
	m, err := a.Arena.Allocate(c, bytes)
	return device{m}, err
}

// deviceProvider writes into devices.
type deviceProvider struct{ transfer.Provider }

type deviceEngine struct{ transfer.Engine }

func (p deviceProvider) Open(ctx context.Context, o transfer.Options) (transfer.Engine, error) {
	e, err := p.Provider.Open(ctx, o)
	return deviceEngine{e}, err
}

func (e deviceEngine) Register(c pd.ComponentID, m transfer.Memory) (string, error) {
	return e.Engine.Register(c, m.(device).Memory)
}

// Memory that only its owner can reach is copied, in and out, in parts.
func TestDeviceMemoryIsCopied(t *testing.T) {
	o := sideOptions{pages: map[pd.GroupName]int{"kv": 900, "win": 2}}.withDefaults(t)
	for name, far := range map[string]bool{"of an owner process": true, "of this process": false} {
		t.Run(name, func(t *testing.T) {
			c := o.config(newRecorder())
			c.Provider = deviceProvider{simulated(t)}
			c.NewArena = func(pd.Rank) (transfer.Arena, error) { return deviceArena{owner.NewHostArena()}, nil }
			if far {
				behindSockets(&c)
			}
			g, err := owner.Open(t.Context(), c)
			require.NoError(t, err)
			require.Nil(t, g.Memory(0, "kv_cmp"))
			require.Nil(t, g.Copier(0, "nobody"))
			require.Nil(t, g.Copier(1, "kv_cmp"))
			m := g.Copier(0, "kv_cmp")
			in := make([]byte, 900*3*512-64) // more than two parts
			for i := range in {
				in[i] = byte(i * 7)
			}
			require.NoError(t, m.CopyIn(64, in))
			out := make([]byte, len(in))
			require.NoError(t, m.CopyOut(64, out))
			require.Equal(t, in, out)
			require.NoError(t, m.CopyOut(0, out[:128]))
			require.Equal(t, append(make([]byte, 64), in[:64]...), out[:128])
			if far {
				require.ErrorIs(t, m.CopyOut(128, out), pd.CodeInvalidLength)
				require.ErrorIs(t, m.CopyIn(-1, out), pd.CodeInvalidLength)
			}
			require.NoError(t, g.Close(t.Context()))
			if far {
				require.ErrorIs(t, m.CopyOut(0, out), pd.CodeOwnerLost)
			}
		})
	}
}

// A job that is longer than a frame arrives whole.
func TestLongJobTakesSeveralFrames(t *testing.T) {
	const pages = 40_000
	o := sideOptions{pages: map[pd.GroupName]int{"kv": pages, "win": 1}}.withDefaults(t)
	c := o.config(nil)
	behindSockets(&c)
	from := startSide(t, o, c)
	o.name = "d0"
	to := startSide(t, o, o.config(nil))
	from.knows(to)
	want := to.snapshot()
	w := longChunk(pd.NewHandoffID(), to, pages)
	apply(want, from, w)
	require.NoError(t, from.Submit(w))
	requireAll(t, pd.Done, from.settled(w))
	to.requireMemory(want)
}

// An owner process whose engine says nothing more is given up, although the
// process answers.
func TestOwnerWhoseEngineHangsIsLost(t *testing.T) {
	o := sideOptions{timeout: 400 * time.Millisecond}.withDefaults(t)
	c := o.config(nil)
	c.ConnectTimeout = 200 * time.Millisecond
	c.Provider = tongue{simulated(t), func(transfer.Verdict) []transfer.Verdict { return nil }}
	behindSockets(&c)
	from, to := startSide(t, o, c), newSide(t, sideOptions{name: "d0"})
	from.knows(to)
	w := simple(pd.NewHandoffID(), 0, from, to)
	require.NoError(t, from.Submit(w))
	e := from.settled(w)
	requireAll(t, pd.Uncertain, e)
	require.False(t, e.SourceFree)
	require.ErrorContains(t, from.lost(0).Err, "has said nothing of 1 open jobs")
	require.Equal(t, pd.Unknown, from.stopped(w.Handoff))
}

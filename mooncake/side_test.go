package mooncake

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// side is one engine with one region of host memory, "kv".
type side struct {
	transfer.Engine
	native *engine
	peer   pd.Peer
	rank   pd.Rank
	memory transfer.Memory
	region pd.Region
}

type sideOptions struct {
	rank    pd.Rank
	host    string
	bytes   int64
	timeout time.Duration

	portUsed func(int) bool
}

// openSide opens an engine without a region.
func openSide(t testing.TB, p *Provider, o sideOptions) (*side, error) {
	s := &side{peer: pd.Peer{Node: "n", Boot: pd.NewBootID()}, rank: o.rank}
	if o.host == "" {
		o.host = "127.0.0.1"
	}
	if o.bytes == 0 {
		o.bytes = 64 << 10
	}
	if o.timeout == 0 {
		o.timeout = time.Minute
	}
	arena, err := p.NewArena(o.rank)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, arena.Close()) })
	s.memory, err = arena.Allocate("kv", o.bytes)
	require.NoError(t, err)
	s.Engine, err = p.Open(t.Context(), transfer.Options{
		Identity: transfer.Identity{Boot: s.peer.Boot, Rank: o.rank}, Hostname: o.host, AttemptTimeout: o.timeout, PortUsed: o.portUsed,
	})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { require.NoError(t, s.Engine.Close()) })
	s.native = s.Engine.(*engine)
	return s, nil
}

// newSide is an engine that is ready.
func newSide(t testing.TB, p *Provider, o sideOptions) *side {
	s, err := openSide(t, p, o)
	require.NoError(t, err)
	require.NoError(t, s.register())
	require.NoError(t, s.Freeze())
	return s
}

func (s *side) register() error {
	envelope, err := s.Register("kv", s.memory)
	s.region = pd.Region{Component: "kv", Bytes: s.memory.Len(), Envelope: envelope}
	return err
}

func (s *side) target() transfer.Target {
	return transfer.Target{
		Peer: s.peer, Identity: transfer.Identity{Boot: s.peer.Boot, Rank: s.rank, Epoch: s.Epoch()},
		Endpoint: s.Endpoint(), Regions: []pd.Region{s.region},
	}
}

func (s *side) connect(t testing.TB, to transfer.Target) transfer.Session {
	session, err := s.Connect(t.Context(), to)
	require.NoError(t, err)
	return session
}

// noise fills the memory.
func (s *side) noise(seed byte) {
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(s.memory.Bytes()) // never fails
}

// pieces cuts n bytes into segments that do not continue each other.
func pieces(n, count int64) []pd.Segment {
	size := n / count / transfer.Alignment * transfer.Alignment
	segments := make([]pd.Segment, count)
	for i := range segments {
		at := (count - 1 - int64(i)) * size
		segments[i] = pd.Segment{Component: "kv", SourceOffset: at, TargetOffset: at, Bytes: size}
	}
	return segments
}

// next waits for n verdicts.
func (s *side) next(t testing.TB, n int) []transfer.Verdict {
	var got []transfer.Verdict
	for got = s.Poll(nil); len(got) < n; got = s.Poll(got) {
		select {
		case <-s.Wake():
		case <-t.Context().Done():
			t.Fatal("no verdict")
		}
	}
	require.Len(t, got, n)
	return got
}

// write submits segments and waits for their verdict.
func (s *side) write(t testing.TB, session transfer.Session, segments []pd.Segment) transfer.Verdict {
	ticket, err := session.Submit(segments)
	require.NoError(t, err)
	v := s.next(t, 1)[0]
	require.Equal(t, ticket, v.Ticket)
	return v
}

// await waits until something holds that no channel tells of.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, 30*time.Second, time.Millisecond, what)
}

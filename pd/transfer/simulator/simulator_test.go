package simulator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/transfertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ transfer.Provider = (*simulator.Provider)(nil)

// deafTargets neither apply nor answer while a test runs.
var deafTargets = []simulator.Fault{{Kind: simulator.TargetPausedBuffered, Times: 1 << 30, DelayMillis: 3600_000}}

func provider(t testing.TB, c simulator.Config) *simulator.Provider {
	p, err := simulator.New(c)
	require.NoError(t, err)
	return p
}

func TestConformance(t *testing.T) {
	transfertest.Run(t, func(t *testing.T) transfertest.Harness {
		return transfertest.Harness{
			Provider: provider(t, simulator.Config{}),
			Stalled:  provider(t, simulator.Config{Faults: deafTargets}),
			Hostname: "127.0.0.1",
		}
	})
}

// memory is aligned host memory.
type memory []byte

func newMemory(size int) memory {
	room := make([]byte, size+transfer.Alignment)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(room))) % transfer.Alignment
	return memory(room[skip : skip+uintptr(size)])
}

func (m memory) Base() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(m))) }
func (m memory) Len() int64    { return int64(len(m)) }
func (m memory) Bytes() []byte { return m }

// side is one engine with one region, "kv".
type side struct {
	transfer.Engine
	peer   pd.Peer
	rank   pd.Rank
	memory memory
	region pd.Region
}

type sideOptions struct {
	host    string
	rank    pd.Rank
	size    int
	timeout time.Duration
}

func newSide(t testing.TB, p transfer.Provider, o sideOptions) *side {
	if o.host == "" {
		o.host = "127.0.0.1"
	}
	if o.size == 0 {
		o.size = 64 << 10
	}
	if o.timeout == 0 {
		o.timeout = time.Minute
	}
	s := &side{peer: pd.Peer{Node: "n", Boot: pd.NewBootID()}, rank: o.rank, memory: newMemory(o.size)}
	engine, err := p.Open(t.Context(), transfer.Options{
		Identity: transfer.Identity{Boot: s.peer.Boot, Rank: o.rank}, Hostname: o.host, AttemptTimeout: o.timeout,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	s.Engine = engine
	envelope, err := engine.Register("kv", s.memory)
	require.NoError(t, err)
	s.region = pd.Region{Component: "kv", Bytes: s.memory.Len(), Envelope: envelope}
	require.NoError(t, engine.Freeze())
	return s
}

func (s *side) target() transfer.Target {
	return transfer.Target{
		Peer: s.peer, Identity: transfer.Identity{Boot: s.peer.Boot, Rank: s.rank, Epoch: s.Epoch()},
		Endpoint: s.Endpoint(), Regions: []pd.Region{s.region},
	}
}

func (s *side) connect(t testing.TB, to *side) transfer.Session {
	session, err := s.Connect(t.Context(), to.target())
	require.NoError(t, err)
	return session
}

// next waits for one verdict.
func (s *side) next(t testing.TB) transfer.Verdict {
	var got []transfer.Verdict
	for len(got) == 0 {
		select {
		case <-s.Wake():
			got = s.Poll(nil)
		case <-t.Context().Done():
			t.Fatal("no verdict")
		}
	}
	require.Len(t, got, 1)
	return got[0]
}

func noise(m memory) {
	_, _ = rand.NewChaCha8([32]byte{1}).Read(m) // never fails
}

// write submits the whole region and waits for its verdict.
func (s *side) write(t testing.TB, session transfer.Session) transfer.Verdict {
	ticket, err := session.Submit([]pd.Segment{{Component: "kv", Bytes: s.memory.Len()}})
	require.NoError(t, err)
	v := s.next(t)
	require.Equal(t, ticket, v.Ticket)
	require.True(t, v.SourceFree)
	return v
}

func TestIPv6Endpoint(t *testing.T) {
	probe, err := net.Listen("tcp", "[::1]:0")
	if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
		t.Skip("this machine has no IPv6 loopback")
	}
	require.NoError(t, err)
	require.NoError(t, probe.Close())
	p := provider(t, simulator.Config{})
	source, target := newSide(t, p, sideOptions{host: "::1"}), newSide(t, p, sideOptions{host: "::1", rank: 1})
	noise(source.memory)
	require.Equal(t, pd.Done, source.write(t, source.connect(t, target)).Settlement)
	require.Equal(t, source.memory, target.memory)
}

func TestConnectRefusesForeignEnvelopes(t *testing.T) {
	p := provider(t, simulator.Config{})
	source, target := newSide(t, p, sideOptions{}), newSide(t, p, sideOptions{rank: 1})
	for name, spoil := range map[string]func(r *pd.Region){
		"other provider":  func(r *pd.Region) { r.Envelope = "0x7f00:65536" },
		"trailing text":   func(r *pd.Region) { r.Envelope += " " },
		"negative region": func(r *pd.Region) { r.Envelope = "sim1/-1/65536" },
		"other extent":    func(r *pd.Region) { r.Bytes += 64 },
	} {
		to := target.target()
		spoil(&to.Regions[0])
		_, err := source.Connect(t.Context(), to)
		require.ErrorIs(t, err, pd.CodeRegistryMismatch, name)
	}
	to := target.target()
	to.Regions = append(to.Regions, to.Regions[0])
	_, err := source.Connect(t.Context(), to)
	require.ErrorIs(t, err, pd.CodeRegistryMismatch, "a component twice")
}

// TestConnectGivesUpOnSilence: somebody listens there and says nothing.
func TestConnectGivesUpOnSilence(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	source := newSide(t, provider(t, simulator.Config{}), sideOptions{})
	to := source.target()
	to.Endpoint = silent.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := silent.Accept()
		if err != nil {
			close(accepted)
			return
		}
		accepted <- conn
		cancel()
	}()
	_, err = source.Connect(ctx, to)
	require.ErrorIs(t, err, pd.CodePeerUnreachable)
	conn, ok := <-accepted
	require.True(t, ok)
	require.NoError(t, conn.Close())
}

func TestLinkDelaysButDelivers(t *testing.T) {
	p := provider(t, simulator.Config{Link: simulator.Link{BytesPerSecond: 1 << 24, Latency: 2 * time.Millisecond}, Seed: 7})
	source, target := newSide(t, p, sideOptions{}), newSide(t, p, sideOptions{rank: 1})
	noise(source.memory)
	session := source.connect(t, target)
	for range 8 {
		require.Equal(t, pd.Done, source.write(t, session).Settlement)
	}
	require.Equal(t, source.memory, target.memory)
}

// TestSlowLinkTimesOutAsFailed: the batch never left, so nothing is uncertain,
// and the session goes on.
func TestSlowLinkTimesOutAsFailed(t *testing.T) {
	slow := provider(t, simulator.Config{Link: simulator.Link{BytesPerSecond: 1 << 10}})
	source := newSide(t, slow, sideOptions{timeout: 50 * time.Millisecond})
	target := newSide(t, slow, sideOptions{rank: 1})
	session := source.connect(t, target)
	for range 2 {
		v := source.write(t, session)
		require.Equal(t, pd.Failed, v.Settlement, v.Detail)
	}
	require.Same(t, session, source.connect(t, target))
	require.Equal(t, newMemory(len(target.memory)), target.memory)
}

// TestDeathFailsWhatHadNotBegun: the first batch is larger than any socket
// buffer and its target reads nothing, so the second never leaves. When the
// target dies, the first may have written anything and the second nothing.
func TestDeathFailsWhatHadNotBegun(t *testing.T) {
	p := provider(t, simulator.Config{Faults: deafTargets})
	source, target := newSide(t, p, sideOptions{size: 64 << 20}), newSide(t, p, sideOptions{rank: 1, size: 64 << 20})
	session := source.connect(t, target)
	_, err := session.Submit([]pd.Segment{{Component: "kv", Bytes: source.memory.Len()}})
	require.NoError(t, err)
	second, err := session.Submit([]pd.Segment{{Component: "kv", Bytes: 64}})
	require.NoError(t, err)
	require.NoError(t, target.Close())
	settled := map[transfer.Ticket]pd.Settlement{}
	for len(settled) < 2 {
		<-source.Wake()
		for _, v := range source.Poll(nil) {
			settled[v.Ticket] = v.Settlement
		}
	}
	require.Equal(t, pd.Failed, settled[second])
}

func TestConfigIsChecked(t *testing.T) {
	for name, c := range map[string]simulator.Config{
		"negative rate":    {Link: simulator.Link{BytesPerSecond: -1}},
		"negative latency": {Link: simulator.Link{Latency: -1}},
		"unknown fault":    {Faults: []simulator.Fault{{Kind: "gremlin"}}},
	} {
		_, err := simulator.New(c)
		require.ErrorIs(t, err, pd.CodeInvalidConfig, name)
	}
}

// Decision 17: a port that an earlier life has used is never taken again, nor is
// one of this life.
func TestUsedPortsAreNotTakenAgain(t *testing.T) {
	p := provider(t, simulator.Config{})
	var mu sync.Mutex
	used := map[int]bool{}
	asked := 0
	open := func() transfer.Engine {
		e, err := p.Open(t.Context(), transfer.Options{
			Identity: transfer.Identity{Boot: pd.NewBootID()}, Hostname: "127.0.0.1", AttemptTimeout: time.Second,
			PortUsed: func(port int) bool {
				mu.Lock()
				defer mu.Unlock()
				// The first two that are offered count as used.
				if asked++; asked <= 2 {
					used[port] = true
				}
				return used[port]
			},
		})
		require.NoError(t, err)
		return e
	}
	e := open()
	ports := e.(transfer.Ported).Ports()
	require.Len(t, ports, 1)
	require.Len(t, used, 2)
	require.False(t, used[ports[0]])
	require.True(t, strings.HasSuffix(e.Endpoint(), fmt.Sprint(":", ports[0])))
	require.NoError(t, e.Close())

	none, err := p.Open(t.Context(), transfer.Options{
		Identity: transfer.Identity{Boot: pd.NewBootID()}, Hostname: "127.0.0.1", AttemptTimeout: time.Second,
		PortUsed: func(int) bool { return true },
	})
	require.ErrorContains(t, err, "were used by an earlier life")
	require.Nil(t, none)
}

package owner_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

// Behaviour 102.
func TestOpenRegistersEveryRegionOfEveryRank(t *testing.T) {
	s := newSide(t, sideOptions{topology: pd.Topology{Ranks: 4, TP: 2}})
	r := s.Registry()
	require.Equal(t, pd.Topology{Ranks: 4, TP: 2}, r.Topology)
	require.Equal(t, s.pages, r.PagesPerLayer)
	require.Equal(t, map[pd.GroupName]int{"win": 9}, r.RingPeriods)
	require.Equal(t, 2, r.BootstrapSlots)
	require.Equal(t, "simulator/1", r.Build)
	require.Len(t, r.Ranks, 4)
	want := map[pd.ComponentID]int{"kv_cmp": 3 * 12 * 512, "kv_scale": 12 * 64, "ori": 2 * 20 * 1024, "hidden": 2 * 512}
	for i, rank := range r.Ranks {
		require.Equal(t, pd.Rank(i), rank.Rank)
		require.Equal(t, pd.Epoch(1), rank.Epoch)
		require.Len(t, rank.Regions, len(want))
		for _, region := range rank.Regions {
			require.Equal(t, int64(want[region.Component]), region.Bytes, region.Component)
			require.Len(t, s.Memory(rank.Rank, region.Component), want[region.Component])
		}
	}
	require.Nil(t, s.Memory(4, "ori"))
	require.Nil(t, s.Memory(-1, "ori"))
	require.Nil(t, s.Memory(0, "nobody"))
	// The answer is a copy.
	r.Ranks[0].Epoch, r.PagesPerLayer["kv"], r.Ranks[0].Regions[0].Bytes = 9, 9, 9
	require.NotEqual(t, r, s.Registry())
	require.True(t, s.Facts().FenceProves)
}

// silent is a provider that does not acknowledge writes.
type silent struct{ transfer.Provider }

func (silent) Facts() transfer.Facts { return transfer.Facts{Build: "x"} }

func TestOpenRefusesBadConfig(t *testing.T) {
	for want, spoil := range map[string]func(c *owner.Config){
		"node is empty":               func(c *owner.Config) { c.Peer.Node = "" },
		"boot must be":                func(c *owner.Config) { c.Peer.Boot = "x" },
		"ranks 0":                     func(c *owner.Config) { c.Topology.Ranks = 0 },
		"contract is missing":         func(c *owner.Config) { c.Contract = nil },
		"provider is missing":         func(c *owner.Config) { c.Provider = nil },
		"does not acknowledge writes": func(c *owner.Config) { c.Provider = silent{c.Provider} },
		"hostname is empty":           func(c *owner.Config) { c.Hostname = "" },
		"attempt timeout":             func(c *owner.Config) { c.AttemptTimeout = 0 },
		"connect timeout":             func(c *owner.Config) { c.ConnectTimeout = -1 },
		"bootstrap slots 0":           func(c *owner.Config) { c.BootstrapSlots = 0 },
		`group "win" has 0`:           func(c *owner.Config) { delete(c.PagesPerLayer, "win") },
		`group "zzz" is not in`:       func(c *owner.Config) { c.PagesPerLayer["zzz"] = 3 },
		"events are missing":          func(c *owner.Config) { c.Events = nil },
		"component ori: a page has 32 bytes": func(c *owner.Config) {
			c.Contract.Components[2].RowElements = 0
			c.Contract.Components[2].RowsPerPage, c.Contract.Components[2].RowElements = 1, 16
		},
		"component hidden: a slot has 16": func(c *owner.Config) { c.Contract.Bootstrap.Rows, c.Contract.Bootstrap.RowElements = 1, 8 },
	} {
		c := sideOptions{}.withDefaults(t).config(newRecorder())
		spoil(&c)
		_, err := open(t.Context(), c)
		require.ErrorIs(t, err, pd.CodeInvalidConfig)
		require.ErrorContains(t, err, want)
	}
}

// shortOfMemory is an arena that has room for three regions.
type shortOfMemory struct {
	owner.HostArena
	left   int
	closed *bool
}

func (a *shortOfMemory) Allocate(c pd.ComponentID, n int64) (transfer.Memory, error) {
	if a.left--; a.left < 0 {
		return nil, errors.New("out of memory")
	}
	return a.HostArena.Allocate(c, n)
}

func (a *shortOfMemory) Close() error { *a.closed = true; return a.HostArena.Close() }

func TestOpenLeavesNothingBehind(t *testing.T) {
	c := sideOptions{topology: pd.Topology{Ranks: 2, TP: 1}}.withDefaults(t).config(newRecorder())
	made, closed := [2]bool{}, [2]bool{}
	c.NewArena = func(rank pd.Rank) (transfer.Arena, error) {
		made[rank] = true
		return &shortOfMemory{left: 4 - int(rank), closed: &closed[rank]}, nil
	}
	_, err := open(t.Context(), c)
	require.ErrorContains(t, err, "out of memory")
	require.True(t, made[1])
	require.True(t, made[0] || overSockets, "owner processes start together; the first may not have got so far")
	require.Equal(t, made, closed)
}

func TestHostArena(t *testing.T) {
	a := owner.NewHostArena()
	for _, n := range []int64{1, 63, 64, 65, 4096, 1 << 20} {
		m, err := a.Allocate("x", n)
		require.NoError(t, err)
		require.Zero(t, m.Base()%transfer.Alignment)
		require.Equal(t, n, m.Len())
		require.Equal(t, make([]byte, n), m.Bytes())
		require.Equal(t, int(n), cap(m.Bytes()), "appending must not reach what lies behind")
	}
	for _, n := range []int64{0, -1, 1<<63 - 1} {
		_, err := a.Allocate("x", n)
		require.ErrorIs(t, err, pd.CodeInvalidConfig)
	}
	require.NoError(t, a.Close())
	_, err := a.Allocate("x", 64)
	require.ErrorIs(t, err, pd.CodeOwnerLost)
}

// mod is the rank mapping of pd-domain §5.8.
func mod(source pd.Topology, from pd.Partition, target pd.Topology, to pd.Partition) (pairs []pd.RankPair) {
	for _, g := range target.RanksOf(to) {
		pairs = append(pairs, pd.RankPair{Source: pd.Rank(int(from)*source.TP + int(g)%source.TP), Target: g})
	}
	return pairs
}

// TestWritesAreExactBetweenTopologies writes random pages of several handoffs
// at once and compares every byte of every target rank.
//
// Behaviours 61 and 62.
func TestWritesAreExactBetweenTopologies(t *testing.T) {
	for _, c := range []struct {
		name           string
		source, target pd.Topology
	}{
		{"TP4 to TP4", pd.Topology{Ranks: 4, TP: 4}, pd.Topology{Ranks: 4, TP: 4}},
		{"TP1 to TP4 fans out", pd.Topology{Ranks: 1, TP: 1}, pd.Topology{Ranks: 4, TP: 4}},
		{"DP4TP4 to DP16TP1", pd.Topology{Ranks: 16, TP: 4}, pd.Topology{Ranks: 16, TP: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			from := newSide(t, sideOptions{name: "p0", topology: c.source})
			to := newSide(t, sideOptions{name: "d0", topology: c.target, pages: map[pd.GroupName]int{"kv": 7, "win": 31}})
			from.knows(to)
			want, before := to.snapshot(), from.snapshot()
			var writes []owner.Write
			for to0 := range c.target.Partitions() {
				from0 := pd.Partition(rng.IntN(c.source.Partitions()))
				pairs := mod(c.source, from0, c.target, pd.Partition(to0))
				h := pd.NewHandoffID()
				free := map[pd.GroupName][]int{"kv": rng.Perm(7), "win": rng.Perm(31)}
				for chunk := range pd.ChunkID(3) {
					var copies []copyPages
					for group, n := range map[pd.GroupName]int{"kv": 2, "win": 9} {
						for range n {
							target := free[group][0]
							free[group] = free[group][1:]
							copies = append(copies, copyPages{group, rng.IntN(from.pages[group]), target})
						}
					}
					slot := -1
					if chunk == 2 {
						slot = rng.IntN(2)
					}
					segments, sums := chunkOf(from, to, slot, copies...)
					w := write(h, chunk, to, pairs, segments, sums)
					require.NoError(t, from.Submit(w))
					apply(want, from, w)
					writes = append(writes, w)
				}
			}
			for _, w := range writes {
				e := from.settled(w)
				requireAll(t, pd.Done, e)
				require.True(t, e.SourceFree)
				var bytes int64
				for i, u := range w.Units {
					bytes += u.Bytes
					require.Equal(t, w.Writes[i*len(w.Writes)/len(w.Units)].Pair.Source, e.Results[i].Source)
				}
				require.Equal(t, bytes, e.Bytes)
			}
			to.requireMemory(want)
			from.requireMemory(before)
			for _, w := range writes {
				require.Equal(t, pd.AllDone, from.stopped(w.Handoff))
			}
		})
	}
}

// TestLongChunkPassesTheWindow: ten times the window, on each of two pairs that
// share one segment list.
func TestLongChunkPassesTheWindow(t *testing.T) {
	const pages = 10 * pd.MaxOutstandingTasks
	o := sideOptions{pages: map[pd.GroupName]int{"kv": pages, "win": 1}}
	o.name, o.topology = "p0", pd.Topology{Ranks: 1, TP: 1}
	from := newSide(t, o)
	o.name, o.topology = "d0", pd.Topology{Ranks: 2, TP: 2}
	to := newSide(t, o)
	from.knows(to)
	var segments []pd.Segment
	for i := range int64(pages) {
		segments = append(segments, pd.Segment{Component: "kv_scale", SourceOffset: i * 64, TargetOffset: (pages - 1 - i) * 64, Bytes: 64})
	}
	w := write(pd.NewHandoffID(), 0, to, []pd.RankPair{{Target: 0}, {Target: 1}}, segments, map[pd.ComponentID]int64{"kv_scale": pages * 64})
	want := to.snapshot()
	apply(want, from, w)
	require.NoError(t, from.Submit(w))
	requireAll(t, pd.Done, from.settled(w))
	to.requireMemory(want)
}

func TestFenceSilencesWritersAndKeepsMemory(t *testing.T) {
	from := newSide(t, sideOptions{provider: simulated(t, deaf())})
	to := newSide(t, sideOptions{name: "d0"})
	from.knows(to)
	old := to.Registry()
	w := simple(pd.NewHandoffID(), 0, from, to)
	require.NoError(t, from.Submit(w))
	want := to.snapshot()
	require.NoError(t, to.Fence(t.Context()))
	to.requireMemory(want)
	for _, r := range from.settled(w).Results {
		require.NotEqual(t, pd.Done, r.Settlement)
	}
	now := to.Registry()
	require.Equal(t, old.Epoch()+1, now.Epoch())
	require.NotEqual(t, old.Ranks[0].Endpoint, now.Ranks[0].Endpoint)
	require.Equal(t, old.Ranks[0].Regions, now.Ranks[0].Regions)

	fresh := newSide(t, sideOptions{name: "p1"})
	fresh.knows(to)
	v := simple(pd.NewHandoffID(), 0, fresh, to)
	require.NoError(t, fresh.Submit(v))
	requireAll(t, pd.Done, fresh.settled(v))
	apply(want, fresh, v)
	to.requireMemory(want)
}

// TestFenceOfTheSourceEndsWhatItBegan: the chunk that was on its way is over,
// the one behind it goes on over a new session.
func TestFenceOfTheSourceEndsWhatItBegan(t *testing.T) {
	const pages = 4 * pd.MaxOutstandingTasks
	window := deaf()
	window.Times = pd.MaxOutstandingTasks / pd.MaxSegmentTasks
	p := simulated(t, window)
	o := sideOptions{pages: map[pd.GroupName]int{"kv": pages, "win": 1}, provider: p}
	from := newSide(t, o)
	o.name, o.provider = "d0", nil
	to := newSide(t, o)
	from.knows(to)
	begun, behind := longChunk(pd.NewHandoffID(), to, pages), longChunk(pd.NewHandoffID(), to, 8)
	require.NoError(t, from.Submit(begun))
	require.NoError(t, from.Submit(behind))
	// The fence must meet the first chunk on its way: wait until the whole window
	// is out.
	for p.AppliedFaults()[simulator.TargetPausedBuffered] < int64(window.Times) {
		runtime.Gosched()
	}
	require.NoError(t, from.Fence(t.Context()))
	e := from.settled(begun)
	require.Equal(t, pd.Uncertain, e.Results[0].Settlement)
	require.Zero(t, e.Bytes)
	requireAll(t, pd.Done, from.settled(behind))
	require.Equal(t, int64(window.Times), p.AppliedFaults()[simulator.TargetPausedBuffered])
}

func TestCloseSettlesEverythingAndFreesMemory(t *testing.T) {
	from := newSide(t, sideOptions{provider: simulated(t, deaf())})
	to := newSide(t, sideOptions{name: "d0"})
	from.knows(to)
	h := pd.NewHandoffID()
	w := simple(h, 0, from, to)
	require.NoError(t, from.Submit(w))
	require.NoError(t, from.Seal(h))
	require.NoError(t, from.Close(t.Context()))
	e := from.settled(w)
	for _, r := range e.Results {
		require.NotEqual(t, pd.Done, r.Settlement)
	}
	require.True(t, e.SourceFree)
	require.Contains(t, []pd.StopFact{pd.DefiniteFailed, pd.Unknown}, from.fact(h))
	require.Nil(t, from.Memory(0, "ori"))
	require.NoError(t, from.Close(t.Context()), "Close is idempotent")

	require.ErrorIs(t, from.Submit(simple(pd.NewHandoffID(), 0, from, to)), pd.CodeOwnerLost)
	require.ErrorIs(t, from.Seal(h), pd.CodeOwnerLost)
	require.ErrorIs(t, from.Install(to.peer, to.Registry()), pd.CodeOwnerLost)
	require.ErrorIs(t, from.Fence(t.Context()), pd.CodeOwnerLost)
}

// hangingEngine does not return from Close or Fence before it is released.
type hangingEngine struct {
	transfer.Engine
	release <-chan struct{}
}

func (e hangingEngine) Close() error {
	<-e.release
	return e.Engine.Close()
}

func (e hangingEngine) Fence(ctx context.Context) error {
	select {
	case <-e.release:
		return e.Engine.Fence(ctx)
	case <-ctx.Done():
		return &pd.Error{Op: "fence", Code: pd.CodeDeadline, Err: ctx.Err()}
	}
}

type hangingProvider struct {
	*simulator.Provider
	release <-chan struct{}
}

func (p hangingProvider) Open(ctx context.Context, o transfer.Options) (transfer.Engine, error) {
	e, err := p.Provider.Open(ctx, o)
	return hangingEngine{e, p.release}, err
}

func TestEngineThatHangsKeepsItsMemory(t *testing.T) {
	release := make(chan struct{})
	s := newSide(t, sideOptions{provider: hangingProvider{simulated(t), release}})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Fence(gone), pd.CodeDeadline)
	require.Equal(t, pd.Epoch(1), epochOf(s.Registry()), "a fence that did not return proves nothing")
	require.ErrorIs(t, s.Close(gone), pd.CodeDeadline)
	require.NotNil(t, s.Memory(0, "ori"))
	close(release)
	require.NoError(t, s.Close(t.Context()))
	require.Nil(t, s.Memory(0, "ori"))
}

func epochOf(r pd.Registry) pd.Epoch { return r.Epoch() }

// strayProvider's engines say that they listen where nobody does.
type strayProvider struct{ transfer.Provider }

type strayEngine struct {
	transfer.Engine
	port int
}

func (p strayProvider) Open(ctx context.Context, o transfer.Options) (transfer.Engine, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	e, err := p.Provider.Open(ctx, o)
	return strayEngine{e, l.Addr().(*net.TCPAddr).Port}, err
}

func (e strayEngine) Ports() []int { return []int{e.port} }

// lockingProvider needs its memory locked.
type lockingProvider struct{ transfer.Provider }

func (p lockingProvider) Facts() transfer.Facts {
	f := p.Provider.Facts()
	f.LocksMemory = true
	return f
}

// What an engine announces is really there, and memory that has
// to be locked can be, before any peer is told.
func TestOpenChecksWhatTheDataPlaneNeeds(t *testing.T) {
	c := sideOptions{}.withDefaults(t).config(newRecorder())
	c.Provider = strayProvider{c.Provider}
	_, err := open(t.Context(), c)
	require.ErrorIs(t, err, pd.CodeInvalidConfig)
	require.ErrorContains(t, err, "which the engine of rank 0 announces")

	const memlock = 8 // RLIMIT_MEMLOCK
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(memlock, &before))
	require.NoError(t, syscall.Setrlimit(memlock, &syscall.Rlimit{Cur: 4096, Max: before.Max}))
	defer func() { require.NoError(t, syscall.Setrlimit(memlock, &before)) }()
	c = sideOptions{}.withDefaults(t).config(newRecorder())
	c.Provider = lockingProvider{c.Provider}
	_, err = open(t.Context(), c)
	require.ErrorIs(t, err, pd.CodeInvalidConfig)
	require.ErrorContains(t, err, "the limit (RLIMIT_MEMLOCK) is 4096: raise it with ulimit -l unlimited")
}

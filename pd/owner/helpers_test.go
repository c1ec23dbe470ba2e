package owner_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(decodeProcess) != "":
		os.Exit(runDecodeProcess())
	case os.Getenv(foreignProcess) != "":
		os.Exit(runForeignProcess())
	case os.Getenv(nodeProcess) != "":
		os.Exit(runNodeProcess())
	case os.Getenv(ownerProcess) != "":
		os.Exit(runOwnerProcess())
	}
	goleak.VerifyTestMain(m)
}

// contract is a small model: three layers, three components, one bootstrap.
func contract() *pd.Contract {
	return &pd.Contract{
		Groups: []pd.CacheGroup{
			{Name: "kv", Kind: pd.Full, PageTokens: 128},
			{Name: "win", Kind: pd.Rolling, PageTokens: 32, WindowTokens: 128},
		},
		Components: []pd.Component{
			{ID: "kv_cmp", Group: "kv", ElementBytes: 2, RowsPerPage: 32, RowTokens: 4, RowElements: 8, Layers: []int{0, 1, 2}},
			{ID: "kv_scale", Group: "kv", ElementBytes: 4, RowsPerPage: 16, RowTokens: 8, RowElements: 1, Layers: []int{1}},
			{ID: "ori", Group: "win", ElementBytes: 2, RowsPerPage: 32, RowTokens: 1, RowElements: 16, Layers: []int{0, 2}},
		},
		Bootstrap: pd.Bootstrap{Component: "hidden", Rows: 8, RowElements: 32, ElementBytes: 2},
	}
}

// recorder keeps the events of one group.
type recorder struct {
	mu      sync.Mutex
	changed chan struct{}
	units   []owner.UnitSettled
	chunks  []owner.ChunkSettled
	stops   []owner.HandoffStopped
	losses  []owner.OwnerLost
	freed   []owner.SourceFreed
}

func newRecorder() *recorder { return &recorder{changed: make(chan struct{}, 1)} }

func (r *recorder) record(add func()) {
	r.mu.Lock()
	add()
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *recorder) UnitSettled(e owner.UnitSettled) {
	r.record(func() { r.units = append(r.units, e) })
}

func (r *recorder) ChunkSettled(e owner.ChunkSettled) {
	r.record(func() { r.chunks = append(r.chunks, e) })
}

func (r *recorder) SourceFreed(e owner.SourceFreed) {
	r.record(func() { r.freed = append(r.freed, e) })
}

func (r *recorder) HandoffStopped(e owner.HandoffStopped) {
	r.record(func() { r.stops = append(r.stops, e) })
}

func (r *recorder) OwnerLost(e owner.OwnerLost) {
	r.record(func() { r.losses = append(r.losses, e) })
}

// await waits until find answers ok. It is called with the recorder locked.
func await[E any](t testing.TB, r *recorder, what string, find func() (E, bool)) E {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		r.mu.Lock()
		e, ok := find()
		r.mu.Unlock()
		if ok {
			return e
		}
		select {
		case <-r.changed:
		case <-ctx.Done():
			require.FailNow(t, what+" does not come")
		}
	}
}

// side is one node's owners under test.
type side struct {
	*owner.Group
	*recorder
	t     testing.TB
	peer  pd.Peer
	pages map[pd.GroupName]int
	slots int
}

type sideOptions struct {
	name     pd.NodeID
	topology pd.Topology
	provider transfer.Provider
	timeout  time.Duration
	pages    map[pd.GroupName]int
}

func (o sideOptions) config(r *recorder) owner.Config {
	return owner.Config{
		Peer: pd.Peer{Node: o.name, Boot: pd.NewBootID()}, Topology: o.topology, Contract: contract(),
		PagesPerLayer: o.pages, RingPeriods: map[pd.GroupName]int{"win": 9}, BootstrapSlots: 2,
		Provider: o.provider, Hostname: "127.0.0.1", AttemptTimeout: o.timeout, Events: r,
	}
}

// open opens a group, over sockets in that run.
func open(ctx context.Context, c owner.Config) (*owner.Group, error) {
	if overSockets {
		behindSockets(&c)
	}
	return owner.Open(ctx, c)
}

func (o sideOptions) withDefaults(t testing.TB) sideOptions {
	if o.name == "" {
		o.name = "p0"
	}
	if o.topology == (pd.Topology{}) {
		o.topology = pd.Topology{Ranks: 1, TP: 1}
	}
	if o.provider == nil {
		o.provider = simulated(t)
	}
	if o.timeout == 0 {
		o.timeout = 50 * time.Second
	}
	if o.pages == nil {
		o.pages = map[pd.GroupName]int{"kv": 12, "win": 20}
	}
	return o
}

func simulated(t testing.TB, faults ...simulator.Fault) *simulator.Provider {
	p, err := simulator.New(simulator.Config{Faults: faults})
	require.NoError(t, err)
	return p
}

// deaf makes targets that take batches in and never answer.
func deaf() simulator.Fault {
	return simulator.Fault{Kind: simulator.TargetPausedBuffered, Times: 1 << 30, DelayMillis: 3600_000}
}

func newSide(t testing.TB, o sideOptions) *side {
	o = o.withDefaults(t)
	return startSide(t, o, o.config(nil))
}

// startSide opens a node and fills its memory with bytes of its own.
func startSide(t testing.TB, o sideOptions, config owner.Config) *side {
	s := &side{recorder: newRecorder(), t: t, pages: o.pages, slots: 2}
	config.Events = s.recorder
	s.peer = config.Peer
	g, err := open(t.Context(), config)
	require.NoError(t, err)
	s.Group = g
	t.Cleanup(func() { require.NoError(t, g.Close(context.Background())) })
	for rank := range pd.Rank(o.topology.Ranks) {
		for _, c := range regionNames() {
			seed := [32]byte{byte(rank), byte(len(o.name)), o.name[0], c[0], c[len(c)-1]}
			_, _ = rand.NewChaCha8(seed).Read(g.Memory(rank, c)) // never fails
		}
	}
	return s
}

func regionNames() []pd.ComponentID { return []pd.ComponentID{"kv_cmp", "kv_scale", "ori", "hidden"} }

// snapshot copies the whole memory of a node.
func (s *side) snapshot() map[pd.Rank]map[pd.ComponentID][]byte {
	all := map[pd.Rank]map[pd.ComponentID][]byte{}
	for rank := range pd.Rank(s.Registry().Topology.Ranks) {
		all[rank] = map[pd.ComponentID][]byte{}
		for _, c := range regionNames() {
			all[rank][c] = bytes.Clone(s.Memory(rank, c))
		}
	}
	return all
}

// requireMemory compares the whole memory of a node.
func (s *side) requireMemory(want map[pd.Rank]map[pd.ComponentID][]byte) {
	s.t.Helper()
	for rank, regions := range want {
		for c, b := range regions {
			require.True(s.t, bytes.Equal(b, s.Memory(rank, c)), "rank %d: %s differs", rank, c)
		}
	}
}

// knows installs the other node's registry.
func (s *side) knows(o *side) {
	s.t.Helper()
	require.NoError(s.t, s.Install(o.peer, o.Registry()))
}

// copyPages moves one page of a group for every component and layer.
type copyPages struct {
	group          pd.GroupName
	source, target int
}

// chunkOf lowers page copies, and a bootstrap slot if slot >= 0, as the planner
// does: each side's offsets use its own arena length.
func chunkOf(from, to *side, slot int, copies ...copyPages) (segments []pd.Segment, perTarget map[pd.ComponentID]int64) {
	perTarget = map[pd.ComponentID]int64{}
	for _, c := range contract().Components {
		perTarget[c.ID] = 0
		for _, cp := range copies {
			if cp.group != c.Group {
				continue
			}
			size := int64(c.PageBytes())
			for layer := range c.Layers {
				segments = append(segments, pd.Segment{
					Component:    c.ID,
					SourceOffset: (int64(layer*from.pages[c.Group]) + int64(cp.source)) * size,
					TargetOffset: (int64(layer*to.pages[c.Group]) + int64(cp.target)) * size,
					Bytes:        size,
				})
				perTarget[c.ID] += size
			}
		}
	}
	if slot >= 0 {
		size := int64(contract().Bootstrap.SlotBytes())
		segments = append(segments, pd.Segment{Component: "hidden", TargetOffset: int64(slot) * size, Bytes: size})
		perTarget["hidden"] = size
	}
	return segments, perTarget
}

// write makes the submission of one chunk over the given pairs.
func write(h pd.HandoffID, chunk pd.ChunkID, to *side, pairs []pd.RankPair, segments []pd.Segment, perTarget map[pd.ComponentID]int64) owner.Write {
	w := owner.Write{Handoff: h, Chunk: chunk, Peer: to.peer}
	for _, pair := range pairs {
		w.Writes = append(w.Writes, pd.RankWrite{Pair: pair, Segments: segments})
		for _, c := range regionNames() {
			if n, ok := perTarget[c]; ok {
				w.Units = append(w.Units, pd.Unit{Target: pair.Target, Component: c, Bytes: n})
			}
		}
	}
	return w
}

// simple is a chunk of two pages and the bootstrap over one pair.
func simple(h pd.HandoffID, chunk pd.ChunkID, from, to *side) owner.Write {
	segments, sums := chunkOf(from, to, 1, copyPages{"kv", 1, 2}, copyPages{"win", 3, 4})
	return write(h, chunk, to, []pd.RankPair{{}}, segments, sums)
}

// apply is what a write does, done by hand.
func apply(memory map[pd.Rank]map[pd.ComponentID][]byte, from *side, w owner.Write) {
	for _, r := range w.Writes {
		for _, s := range r.Segments {
			copy(memory[r.Pair.Target][s.Component][s.TargetOffset:s.TargetOffset+s.Bytes],
				from.Memory(r.Pair.Source, s.Component)[s.SourceOffset:])
		}
	}
}

// settled waits for a chunk and checks what every ChunkSettled promises.
func (s *side) settled(w owner.Write) owner.ChunkSettled {
	s.t.Helper()
	e := await(s.t, s.recorder, fmt.Sprintf("ChunkSettled %d", w.Chunk), func() (owner.ChunkSettled, bool) {
		i := slices.IndexFunc(s.chunks, func(e owner.ChunkSettled) bool { return e.Handoff == w.Handoff && e.Chunk == w.Chunk })
		if i < 0 {
			return owner.ChunkSettled{}, false
		}
		return s.chunks[i], true
	})
	require.Len(s.t, e.Results, len(w.Units))
	require.LessOrEqual(s.t, e.Began, e.Ended)
	for i, r := range e.Results {
		require.Equal(s.t, w.Units[i].Target, r.Target)
		require.Equal(s.t, w.Units[i].Component, r.Component)
		require.Equal(s.t, w.Chunk, r.Chunk)
	}
	// Every unit was reported once, before.
	s.mu.Lock()
	defer s.mu.Unlock()
	var before []pd.UnitResult
	for _, u := range s.units {
		if u.Handoff == w.Handoff && u.Chunk == w.Chunk {
			before = append(before, u.Results...)
		}
	}
	require.ElementsMatch(s.t, e.Results, before)
	return e
}

// requireAll demands one settlement of every unit.
func requireAll(t testing.TB, want pd.Settlement, e owner.ChunkSettled) {
	t.Helper()
	for _, r := range e.Results {
		require.Equal(t, want, r.Settlement, "%s on rank %d: %s", r.Component, r.Target, r.Detail)
	}
}

// stopped seals a handoff and waits for its fact.
func (s *side) stopped(h pd.HandoffID) pd.StopFact {
	s.t.Helper()
	require.NoError(s.t, s.Seal(h))
	return s.fact(h)
}

func (s *side) fact(h pd.HandoffID) pd.StopFact {
	s.t.Helper()
	return await(s.t, s.recorder, "HandoffStopped", func() (pd.StopFact, bool) {
		for _, e := range s.stops {
			if e.Handoff == h {
				return e.Fact, true
			}
		}
		return 0, false
	})
}

package shell_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/control"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/pages"
	"github.com/hw-native-sys/pypto-pd/pd/shell"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quietOwners have nothing to write: these tests drive a decode node.
type quietOwners struct{ owner.Service }

// idleEngine takes requests and never computes.
type idleEngine struct {
	mu      sync.Mutex
	adopted []engine.Adoption
	stopped []pd.HandoffID
}

func (e *idleEngine) Prefill(pd.HandoffID, engine.Request) {}
func (e *idleEngine) Resume(pd.HandoffID)                  {}
func (e *idleEngine) StopPrefill(pd.HandoffID)             {}
func (e *idleEngine) Adopt(a engine.Adoption) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.adopted = append(e.adopted, a)
}

func (e *idleEngine) StopDecode(h pd.HandoffID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = append(e.stopped, h)
}

// brokenPages break an invariant on demand.
type brokenPages struct {
	lease.Allocator
	broken bool
	// wrong is what Check finds, if it finds something.
	wrong atomic.Pointer[error]
}

func (b *brokenPages) Check() error {
	if err := b.wrong.Load(); err != nil {
		return *err
	}
	return b.Allocator.Check()
}

func (b *brokenPages) Open(d lease.Demand) (lease.Grant, error) {
	if b.broken {
		panic("invariant I-05: a page is held twice")
	}
	return b.Allocator.Open(d)
}

// decodeNode is a running decode node with a session to a prefill node that the
// test plays.
type decodeNode struct {
	t       *testing.T
	shell   *shell.Shell
	engine  *idleEngine
	pages   *brokenPages
	records *sync.Map
	digest  string
	self    pd.Peer
	peer    pd.Peer
	stop    func()
}

func newDecodeNode(t *testing.T) *decodeNode {
	contract := dsv4.Tiny().Contract("revision", "simulator")
	digest, err := wire.ContractDigest(&contract)
	require.NoError(t, err)
	layout := adapter.LayoutFor(&contract, adapter.Sizing{Topology: pd.Topology{Ranks: 1, TP: 1}, PoolTokens: 1024, StepTokens: 128, Sequences: 4})
	pool := map[pd.GroupName]int{}
	for _, g := range contract.Groups {
		pool[g.Name] = layout.PoolPages(g.Name)
	}
	registry := pd.Registry{
		Topology: layout.Topology, PagesPerLayer: layout.PagesPerLayer, RingPeriods: layout.RingPeriods, BootstrapSlots: layout.BootstrapSlots, Build: "test",
		Ranks: []pd.RankRegistration{{Rank: 0, Epoch: 1, Endpoint: "e"}},
	}
	for _, c := range contract.Components {
		registry.Ranks[0].Regions = append(registry.Ranks[0].Regions, pd.Region{Component: c.ID, Bytes: contract.RegionBytes(c, layout.PagesPerLayer[c.Group]), Envelope: "e"})
	}
	registry.Ranks[0].Regions = append(registry.Ranks[0].Regions, pd.Region{Component: dsv4.Hidden, Bytes: int64(layout.BootstrapSlots * contract.Bootstrap.SlotBytes()), Envelope: "e"})
	n := &decodeNode{
		t: t, engine: &idleEngine{}, digest: digest, records: &sync.Map{},
		self: pd.Peer{Node: "d", Boot: pd.BootID(strings.Repeat("d", 32))}, peer: pd.Peer{Node: "p", Boot: pd.BootID(strings.Repeat("a", 32))},
		pages: &brokenPages{Allocator: pages.New(pages.Config{
			Groups: contract.Groups, Partitions: 1, PoolPages: pool, RingPeriods: layout.RingPeriods, AlignmentTokens: contract.AlignmentTokens, Slots: layout.BootstrapSlots,
		})},
	}
	n.shell = shell.New(shell.Config{
		Node: node.Config{
			Role: pd.Decode, Self: n.self, Run: "run", Contract: &contract, ContractDigest: digest, Registry: registry,
			Peers: map[pd.NodeID]struct{}{"p": {}}, Capacity: 4, HandoffTimeout: 60 * time.Second, RequestTimeout: time.Hour,
			MaxModelTokens: 8192, Adapter: dsv4.Tiny(), Allocator: n.pages,
		},
		Owners: quietOwners{}, OwnerEvents: shell.NewOwnerEvents(), Engine: n.engine, Control: control.NewClient(control.ClientConfig{}),
		Addresses: map[pd.NodeID]string{"p": "127.0.0.1:1"}, Descriptor: wire.Node{Node: "d"},
		Record: func(l shell.Line) { n.records.Store(l.Event, true) }, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { n.shell.Run(ctx) })
	n.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(n.stop)
	answer, err := n.shell.Session(t.Context(), wire.Session{
		ProtocolVersion: 2, Role: pd.Prefill, Peer: n.peer, Run: "run", Contract: contract, ContractDigest: digest, Registry: registry,
	})
	require.NoError(t, err)
	require.Equal(t, n.self, answer.Peer)
	return n
}

func (n *decodeNode) fence(i int) *pd.Fence {
	return &pd.Fence{Request: pd.RequestID(fmt.Sprintf("cmpl-%d", i)), Handoff: pd.HandoffID(fmt.Sprintf("%032d", i)), Run: "run", Prefill: n.peer, Decode: n.self}
}

func (n *decodeNode) reserve(ctx context.Context, i int) (wire.Reserved, error) {
	hash, prepared := n.digests()
	return n.shell.Reserve(ctx, wire.Reserve{
		Fence: *n.fence(i), ContractDigest: n.digest, PromptTokenCount: 40, Continuation: prompt, MetadataHash: hash, PreparedDigest: prepared,
	})
}

// prompt is what every reservation is for.
var prompt = pd.Continuation{PromptTokens: make([]pd.Token, 40), MaxNewTokens: 4, Temperature: "0", TopP: "1", Stop: []string{}}

func (n *decodeNode) digests() (metadata, prepared string) {
	metadata, err := wire.MetadataHash(&prompt)
	require.NoError(n.t, err)
	prepared, err = wire.PreparedDigest(metadata)
	require.NoError(n.t, err)
	return metadata, prepared
}

// Behaviours 71 and 169.
func TestPostWaitsForItsReservation(t *testing.T) {
	n := newDecodeNode(t)
	accepted := make(chan engine.Stream, 1)
	go func() {
		s, err := n.shell.Generate(t.Context(), engine.Request{Fence: n.fence(1)})
		if err == nil {
			accepted <- s
		}
		close(accepted)
	}()
	r, err := n.reserve(t.Context(), 1)
	require.NoError(t, err)
	require.NotEmpty(t, r.Tables)
	s := <-accepted
	require.NotNil(t, s)
	require.Equal(t, 1, n.shell.Snapshot().Capacity.Active)
	s.Close()
	o, err := s.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, pd.FinishFailed, o.Finish)
	require.ErrorIs(t, o.Err, pd.CodeClientGone)
	// The end is told first, the memory given back last, both in one step.
	require.Eventually(t, func() bool { return n.shell.Snapshot().Capacity.Reservations == 0 }, 10*time.Second, time.Millisecond)
}

// A caller that leaves ends its own waiting; what it started is retired by the
// loop.
//
// Behaviour 135.
func TestLeavingCallerOwnsNothing(t *testing.T) {
	n := newDecodeNode(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	left := errors.New("left")
	cancel(left)
	_, err := n.shell.Generate(ctx, engine.Request{Fence: n.fence(1)})
	require.ErrorIs(t, err, left)
	_, err = n.reserve(ctx, 2)
	require.ErrorIs(t, err, left)
	_, err = n.reserve(t.Context(), 1)
	require.ErrorIs(t, err, pd.CodeHandoffTerminal, "the POST's end left a tombstone")
}

func TestStopFailsWhatWaits(t *testing.T) {
	n := newDecodeNode(t)
	posted := make(chan error, 1)
	go func() {
		_, err := n.shell.Generate(t.Context(), engine.Request{Fence: n.fence(1)})
		posted <- err
	}()
	require.Eventually(t, func() bool { return n.shell.Snapshot().Capacity.Active == 1 }, 10*time.Second, time.Millisecond)
	n.stop()
	require.ErrorIs(t, <-posted, pd.CodeDraining)
	_, err := n.reserve(t.Context(), 2)
	require.ErrorIs(t, err, pd.CodeDraining)
	_, err = n.shell.Generate(t.Context(), engine.Request{Fence: n.fence(3)})
	require.ErrorIs(t, err, pd.CodeDraining)
}

// Between steps the loop looks at all invariants; what it finds stops the node.
func TestBrokenInvariantIsFoundBetweenSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newDecodeNode(t)
		defer n.stop()
		synctest.Wait()
		require.Equal(t, pd.Ready, n.shell.Snapshot().Health)
		wrong := errors.New("invariant I-05: a page is held twice")
		n.pages.wrong.Store(&wrong)
		require.Eventually(t, func() bool { return n.shell.Snapshot().Health == pd.RecoveryRequired }, 10*time.Second, time.Second)
		require.Contains(t, n.shell.Snapshot().Reason, "I-05")
		_, err := n.shell.Generate(t.Context(), engine.Request{Fence: n.fence(1)})
		require.ErrorIs(t, err, pd.CodeNodeGated)
	})
}

// A broken invariant stops the node, not the process; the node says which one
// and takes nothing more in.
func TestBrokenInvariantQuarantinesTheNode(t *testing.T) {
	n := newDecodeNode(t)
	n.pages.broken = true
	posted := make(chan error, 1)
	go func() {
		_, err := n.shell.Generate(t.Context(), engine.Request{Fence: n.fence(1)})
		posted <- err
	}()
	require.Eventually(t, func() bool { return n.shell.Snapshot().Capacity.Active == 1 }, 10*time.Second, time.Millisecond)
	_, err := n.reserve(t.Context(), 1)
	require.ErrorIs(t, err, pd.CodeNodeGated)
	require.ErrorContains(t, err, "I-05")
	v := n.shell.Snapshot()
	require.Equal(t, pd.RecoveryRequired, v.Health)
	require.Contains(t, v.Reason, "a page is held twice")
	_, err = n.shell.Generate(t.Context(), engine.Request{Fence: n.fence(2)})
	require.ErrorIs(t, err, pd.CodeNodeGated)
	n.stop()
	require.ErrorIs(t, <-posted, pd.CodeDraining, "what was open is ended with the process")
}

func TestDrainWaitsForWhatRuns(t *testing.T) {
	n := newDecodeNode(t)
	posted := make(chan engine.Stream, 1)
	go func() {
		s, _ := n.shell.Generate(t.Context(), engine.Request{Fence: n.fence(1)})
		posted <- s
	}()
	_, err := n.reserve(t.Context(), 1)
	require.NoError(t, err)
	s := <-posted
	short, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, n.shell.Drain(short), "1 requests are active, 1 reservations")
	_, err = n.shell.Generate(t.Context(), engine.Request{Fence: n.fence(2)})
	require.ErrorIs(t, err, pd.CodeDraining)
	s.Close()
	require.NoError(t, n.shell.Drain(t.Context()))
}

// In a bubble time passes only when everything waits: deadlines are exact.
func TestOrphansEndAtTheHandoffTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newDecodeNode(t)
		defer n.stop()
		began := time.Now()
		_, err := n.shell.Generate(t.Context(), engine.Request{Fence: n.fence(1)})
		require.ErrorIs(t, err, pd.CodeDeadline)
		require.Equal(t, 60*time.Second, time.Since(began))
		_, err = n.reserve(t.Context(), 2)
		require.ErrorIs(t, err, pd.CodeDeadline)
		require.Equal(t, 120*time.Second, time.Since(began))
	})
}

// acknowledge offers the whole prompt of a reservation as one chunk; from the
// acknowledgement on, its pages may be written.
func (n *decodeNode) acknowledge(i int, r wire.Reserved) {
	contract := dsv4.Tiny().Contract("revision", "simulator")
	tables := adapter.Tables{}
	for g, runs := range r.Tables {
		table, err := pd.TableOf(runs, pd.MaxTablePages)
		require.NoError(n.t, err)
		tables[g] = table
	}
	layout := adapter.LayoutFor(&contract, adapter.Sizing{Topology: pd.Topology{Ranks: 1, TP: 1}, PoolTokens: 1024, StepTokens: 128, Sequences: 4})
	hash, prepared := n.digests()
	m, err := adapter.Build(adapter.Input{
		Contract: &contract, Fence: *n.fence(i), PromptTokens: 40, Span: pd.Span{End: 40}, Final: true,
		Source: layout.Topology, SourceTables: tables, SourcePeriods: layout.RingPeriods,
		Target: layout.Topology, TargetTables: tables, TargetPeriods: layout.RingPeriods,
		TargetPartition: r.Partition, TargetHit: r.HitTokens, TargetSlot: r.BootstrapSlot, TargetGeneration: r.Generation,
		FirstToken: 42, MetadataHash: hash, PreparedDigest: prepared,
	})
	require.NoError(n.t, err)
	sum, err := wire.ManifestHash(&m)
	require.NoError(n.t, err)
	_, err = n.shell.Chunk(n.t.Context(), wire.Chunk{Manifest: m, ManifestHash: sum})
	require.NoError(n.t, err)
}

// A node that is left with memory that may still be written waits for a proof
// as long as for any confirmation, then its drain fails and says why.
func TestDrainGivesUpOnUnprovenMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newDecodeNode(t)
		defer n.stop()
		posted := make(chan engine.Stream, 1)
		go func() {
			s, _ := n.shell.Generate(t.Context(), engine.Request{Fence: n.fence(1)})
			posted <- s
		}()
		r, err := n.reserve(t.Context(), 1)
		require.NoError(t, err)
		require.NotNil(t, <-posted)
		n.acknowledge(1, r)
		_, err = n.shell.Abort(t.Context(), wire.Abort{Fence: *n.fence(1), From: "prefill", Fact: pd.Unknown, Reason: "it may still land"})
		require.NoError(t, err)
		require.Equal(t, 1, n.shell.Snapshot().Capacity.Quarantined)
		began := time.Now()
		require.ErrorContains(t, n.shell.Drain(t.Context()), "writes may still land in the memory of 1 leases")
		require.InDelta(t, 60, time.Since(began).Seconds(), 1)
	})
}

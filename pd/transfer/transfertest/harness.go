package transfertest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// Harness is one provider under test.
type Harness struct {
	// Provider is the data plane without faults and limits.
	Provider transfer.Provider
	// Stalled is the same data plane on a day on which every target takes
	// batches in and neither applies nor answers any. Nil if the provider cannot
	// be brought to that; the tests of uncertain ends then accept a batch that
	// was faster.
	Stalled transfer.Provider
	// NewMemory allocates zeroed memory that the provider can register and that
	// the test can read and write through Bytes. Nil means the Go heap.
	NewMemory func(t testing.TB, size int64) transfer.Memory
	// TimeoutHoldsSource: the provider cannot end a batch whose time is over and
	// may go on reading its source, so that its verdict does not free it.
	TimeoutHoldsSource bool
	// Hostname is where engines listen.
	Hostname string
}

// patience is how long the suite waits for something that must happen; it is
// never waited out by a provider that conforms.
const patience = 60 * time.Second

// attemptTimeout is long enough that only the test of time-outs meets one.
const attemptTimeout = 50 * time.Second

// heap is host memory from the Go heap, aligned by hand.
type heap []byte

func newHeap(size int64) heap {
	room := make([]byte, size+transfer.Alignment)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(room))) % transfer.Alignment
	return heap(room[skip : skip+uintptr(size)])
}

func (h heap) Base() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(h))) }
func (h heap) Len() int64    { return int64(len(h)) }
func (h heap) Bytes() []byte { return h }

// Extents of the two components that every engine of the suite registers.
var extents = transfer.Extents{"kv": 1 << 20, "scale": 64 << 10}

var components = []pd.ComponentID{"kv", "scale"}

// node is one engine with its memory, as an owner holds it.
type node struct {
	engine   transfer.Engine
	peer     pd.Peer
	identity transfer.Identity
	memory   map[pd.ComponentID]transfer.Memory
	regions  []pd.Region
	seen     map[transfer.Ticket]transfer.Verdict
}

// fill writes noise over a node's memory.
func (n *node) fill(seed uint64) {
	rng := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	for _, c := range components {
		_, _ = rng.Read(n.memory[c].Bytes()) // never fails
	}
}

// snapshot copies a node's memory.
func (n *node) snapshot() map[pd.ComponentID][]byte {
	copies := map[pd.ComponentID][]byte{}
	for _, c := range components {
		copies[c] = append([]byte(nil), n.memory[c].Bytes()...)
	}
	return copies
}

// requireMemory compares a node's whole memory and names the first difference.
func requireMemory(t require.TestingT, want map[pd.ComponentID][]byte, n *node) {
	for _, c := range components {
		got := n.memory[c].Bytes()
		if bytes.Equal(got, want[c]) {
			continue
		}
		require.Len(t, got, len(want[c]))
		for i := range got {
			if got[i] != want[c][i] {
				require.FailNow(t, fmt.Sprintf("%s differs at byte %d: got %#x, want %#x", c, i, got[i], want[c][i]))
			}
		}
	}
}

// open makes an engine and registers its memory, without freezing it.
func open(t testing.TB, h Harness, p transfer.Provider, rank pd.Rank, timeout time.Duration) *node {
	n := &node{
		peer:     pd.Peer{Node: pd.NodeID(fmt.Sprintf("node-%d", rank)), Boot: pd.NewBootID()},
		memory:   map[pd.ComponentID]transfer.Memory{},
		seen:     map[transfer.Ticket]transfer.Verdict{},
		identity: transfer.Identity{Rank: rank, Epoch: 1},
	}
	n.identity.Boot = n.peer.Boot
	engine, err := p.Open(t.Context(), transfer.Options{
		Identity: transfer.Identity{Boot: n.peer.Boot, Rank: rank}, Hostname: h.Hostname, AttemptTimeout: timeout,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	n.engine = engine
	for _, c := range components {
		n.memory[c] = h.memory(t, extents[c])
		envelope, err := engine.Register(c, n.memory[c])
		require.NoError(t, err)
		require.NotEmpty(t, envelope)
		n.regions = append(n.regions, pd.Region{Component: c, Bytes: extents[c], Envelope: envelope})
	}
	return n
}

func (h Harness) memory(t testing.TB, size int64) transfer.Memory {
	if h.NewMemory == nil {
		return newHeap(size)
	}
	return h.NewMemory(t, size)
}

// frozen is open followed by Freeze, with noise in its memory.
func frozen(t testing.TB, h Harness, p transfer.Provider, rank pd.Rank) *node {
	n := open(t, h, p, rank, attemptTimeout)
	n.fill(uint64(rank))
	require.NoError(t, n.engine.Freeze())
	return n
}

// target is what a peer knows of the node.
func (n *node) target() transfer.Target {
	identity := n.identity
	identity.Epoch = n.engine.Epoch()
	return transfer.Target{Peer: n.peer, Identity: identity, Endpoint: n.engine.Endpoint(), Regions: n.regions}
}

// connect opens a session that must succeed.
func (n *node) connect(t testing.TB, to *node) transfer.Session {
	s, err := n.engine.Connect(t.Context(), to.target())
	require.NoError(t, err)
	return s
}

// await polls until every ticket has its verdict. It fails on a ticket that
// gets two.
func (n *node) await(t require.TestingT, tickets ...transfer.Ticket) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		n.poll(t)
		missing := 0
		for _, k := range tickets {
			if _, ok := n.seen[k]; !ok {
				missing++
			}
		}
		if missing == 0 {
			return
		}
		select {
		case <-n.engine.Wake():
		case <-ctx.Done():
			require.FailNow(t, fmt.Sprintf("%d of %d batches have no verdict", missing, len(tickets)))
		}
	}
}

func (n *node) poll(t require.TestingT) {
	for _, v := range n.engine.Poll(nil) {
		_, twice := n.seen[v.Ticket]
		require.False(t, twice, "ticket %d settles twice", v.Ticket)
		require.Contains(t, []pd.Settlement{pd.Done, pd.Failed, pd.Uncertain}, v.Settlement)
		n.seen[v.Ticket] = v
	}
}

// requireAll awaits tickets and demands one settlement of each.
func (n *node) requireAll(t require.TestingT, want pd.Settlement, tickets ...transfer.Ticket) {
	n.await(t, tickets...)
	for _, k := range tickets {
		require.Equal(t, want, n.seen[k].Settlement, "ticket %d: %s", k, n.seen[k].Detail)
	}
}

// apply is what a batch does, done by hand.
func apply(memory map[pd.ComponentID][]byte, from *node, segments []pd.Segment) {
	for _, s := range segments {
		copy(memory[s.Component][s.TargetOffset:s.TargetOffset+s.Bytes], from.memory[s.Component].Bytes()[s.SourceOffset:])
	}
}

// whole is one segment that covers a component.
func whole(c pd.ComponentID) []pd.Segment {
	return []pd.Segment{{Component: c, Bytes: extents[c]}}
}

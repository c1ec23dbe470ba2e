package owner

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// Bounds of one group.
const (
	// DefaultConnectTimeout is how long one rank waits for one peer rank.
	DefaultConnectTimeout = 5 * time.Second
	// maxHandoffs bounds the handoffs on record: those of a full node, and as
	// many again that ended and are not forgotten.
	maxHandoffs = 2 * pd.MaxCapacity
	// maxChunks bounds the chunks of one handoff that are submitted; the longest
	// prompt in chunks of one alignment unit has this many.
	maxChunks = pd.MaxModelTokens / 128
	// maxOpenChunks bounds the chunks of all handoffs that are unsettled.
	maxOpenChunks = 2 * pd.MaxCapacity
	// maxPastBoots is how many ended boots of a node are remembered, so that a
	// delayed Install of one of them is refused.
	maxPastBoots = 64
	// maxEnvelopeBytes bounds an envelope or endpoint of a peer.
	maxEnvelopeBytes = 4096
)

// Config describes the owners of one node.
type Config struct {
	// Peer is this node's own life.
	Peer     pd.Peer
	Topology pd.Topology
	// Contract is kept and never changed.
	Contract *pd.Contract
	// PagesPerLayer is the physical arena length of each group, and RingPeriods
	// each ring's length; both are announced to peers.
	PagesPerLayer map[pd.GroupName]int
	RingPeriods   map[pd.GroupName]int
	// BootstrapSlots is how many bootstrap slots each rank has.
	BootstrapSlots int
	Provider       transfer.Provider
	// Hostname is the data-plane address of this node.
	Hostname string
	// AttemptTimeout bounds one batch from submit to verdict.
	AttemptTimeout time.Duration
	// ConnectTimeout bounds one connection; 0 means DefaultConnectTimeout.
	ConnectTimeout time.Duration
	// NewArena makes the arena of one rank; nil means host memory. The group
	// closes it.
	NewArena func(pd.Rank) (transfer.Arena, error)
	Events   Events
	// Log gets what an operator should see; nil means nothing.
	Log *slog.Logger
}

// check reports everything that is wrong with a config.
func (c *Config) check() error {
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if err := pd.CheckID("node", string(c.Peer.Node)); err != nil {
		all = append(all, err)
	}
	if err := pd.CheckHexID("boot", string(c.Peer.Boot)); err != nil {
		all = append(all, err)
	}
	if err := c.Topology.Check(); err != nil {
		all = append(all, err)
	}
	if c.Provider == nil {
		bad("provider is missing")
	} else if !c.Provider.Facts().Acknowledged {
		// safety.md 1.2: without it, Done means only that bytes left the source.
		bad("provider %s does not acknowledge writes", c.Provider.Name())
	}
	if c.Events == nil {
		bad("events are missing")
	}
	if c.Hostname == "" {
		bad("hostname is empty")
	}
	if c.AttemptTimeout <= 0 {
		bad("attempt timeout %s: want more than 0", c.AttemptTimeout)
	}
	if c.ConnectTimeout < 0 {
		bad("connect timeout %s: want 0 or more", c.ConnectTimeout)
	}
	if c.BootstrapSlots < 1 {
		bad("bootstrap slots %d: want 1 or more", c.BootstrapSlots)
	}
	if c.Contract == nil {
		bad("contract is missing")
		return errors.Join(all...)
	}
	for _, g := range slices.Sorted(maps.Keys(c.PagesPerLayer)) {
		if _, ok := c.Contract.Group(g); !ok {
			bad("pages per layer: group %q is not in the contract", g)
		}
	}
	for _, g := range c.Contract.Groups {
		if c.PagesPerLayer[g.Name] < 1 {
			bad("pages per layer: group %q has %d: want 1 or more", g.Name, c.PagesPerLayer[g.Name])
		}
	}
	for _, x := range c.Contract.Components {
		if x.PageBytes() < 1 || x.PageBytes()%transfer.Alignment != 0 {
			bad("component %s: a page has %d bytes: want a multiple of %d", x.ID, x.PageBytes(), transfer.Alignment)
		}
	}
	if b := c.Contract.Bootstrap; b.SlotBytes() < 1 || b.SlotBytes()%transfer.Alignment != 0 {
		bad("component %s: a slot has %d bytes: want a multiple of %d", b.Component, b.SlotBytes(), transfer.Alignment)
	}
	return errors.Join(all...)
}

// extentsOf lists the regions of one rank in the contract's order, the
// bootstrap region last.
func extentsOf(c *pd.Contract, pagesPerLayer map[pd.GroupName]int, slots int) []pd.Region {
	regions := make([]pd.Region, 0, len(c.Components)+1)
	for _, x := range c.Components {
		regions = append(regions, pd.Region{Component: x.ID, Bytes: c.RegionBytes(x, pagesPerLayer[x.Group])})
	}
	return append(regions, pd.Region{Component: c.Bootstrap.Component, Bytes: int64(slots) * int64(c.Bootstrap.SlotBytes())})
}

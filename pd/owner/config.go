package owner

import (
	"context"
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
	// maxSegments bounds the writes of one chunk between one pair of ranks: a chunk
	// of 8,192 tokens in single pages of every layer has less than a tenth.
	maxSegments = 1 << 20
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
	// Provider makes the engines of this process. It is nil with Launch.
	Provider transfer.Provider
	// Launch, if set, starts the owner process of one rank; the group ends it. The
	// call returns before the process has said anything.
	Launch func(ctx context.Context, rank pd.Rank) (*Process, error)
	// Remote is what the owner processes are told to run; only with Launch.
	Remote Remote
	// Ports knows which data-plane ports were used before, and is told of new ones
	// before any peer is; nil means that every port may be taken.
	Ports Ports
	// Hostname is the data-plane address of this node.
	Hostname string
	// AttemptTimeout bounds one batch from submit to verdict.
	AttemptTimeout time.Duration
	// ConnectTimeout bounds one connection; 0 means DefaultConnectTimeout.
	ConnectTimeout time.Duration
	// NewArena makes the arena of one rank of this process; nil means host memory.
	// The group closes it.
	NewArena func(pd.Rank) (transfer.Arena, error)
	Events   Events
	// Log gets what an operator should see; nil means nothing.
	Log *slog.Logger
}

// Ports is the memory of a node's data-plane ports over its boots. It is safe
// for concurrent use.
type Ports interface {
	// Used says that an earlier engine of this node had the port.
	Used(port int) bool
	// List gives every port that is Used.
	List() []int
	// Take notes the ports of new engines for good. It refuses all of them if one is
	// Used.
	Take(ports []int) error
}

// Remote is what an owner process runs.
type Remote struct {
	// Provider is the data plane's name and Options what its maker needs, in the
	// provider's own form; both travel in the start message.
	Provider string
	Options  string
}

func (c *Config) portUsed() func(int) bool {
	if c.Ports == nil {
		return nil
	}
	return c.Ports.Used
}

func (c *Config) providerName() string {
	if c.Provider != nil {
		return c.Provider.Name()
	}
	return c.Remote.Provider
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
	switch {
	case c.Launch == nil && c.Provider == nil:
		bad("provider is missing")
	case c.Launch != nil && c.Provider != nil:
		bad("provider: owner processes make their own")
	case c.Launch != nil && c.Remote.Provider == "":
		bad("the owner processes' provider is missing")
	case len(c.Remote.Options) > maxOptionBytes:
		bad("the provider's options have %d bytes: want at most %d", len(c.Remote.Options), maxOptionBytes)
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

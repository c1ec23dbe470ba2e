package owner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// Group is the owners of one node, one per rank: it checks and splits chunks,
// and joins what the ranks report. The ranks' owners are agents of this process
// or, with Config.Launch, processes of their own.
type Group struct {
	// constant
	config  Config
	facts   transfer.Facts
	log     *slog.Logger
	opened  time.Time
	ranks   []*opened        // by rank
	extents transfer.Extents // of every rank of this node
	running atomic.Int64     // ranks that have not ended
	note    chan struct{}    // events are queued
	idle    chan struct{}    // closed when every rank has ended
	done    chan struct{}    // closed when everything has ended
	left    error            // what freeing memory said; set before done is closed

	mu       sync.Mutex
	closing  bool
	registry pd.Registry
	peers    map[pd.NodeID]*life
	handoffs map[pd.HandoffID]*handoff
	// forgotten are the last handoffs that Forget dropped, as a ring.
	forgotten     map[pd.HandoffID]struct{}
	forgottenRing []pd.HandoffID
	forgottenNext int
	openChunks    int
	lastID        uint64 // of jobs and targets
	// gone says of each rank that nobody answers for it any more, and why.
	gone  map[pd.Rank]error
	queue []any // events in order
}

var (
	_ Service     = (*Group)(nil)
	_ rankReports = (*Group)(nil)
)

// Open allocates and registers every region of every rank, freezes them and
// starts the owners. Errors have CodeInvalidConfig or the provider's code;
// after one nothing is left behind.
func Open(ctx context.Context, c Config) (*Group, error) {
	const op = "open owners"
	if err := c.check(); err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeInvalidConfig, Err: err}
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = DefaultConnectTimeout
	}
	if c.NewArena == nil {
		c.NewArena = func(pd.Rank) (transfer.Arena, error) { return NewHostArena(), nil }
	}
	g := &Group{
		config:    c,
		log:       c.Log,
		opened:    time.Now(),
		extents:   transfer.Extents{},
		note:      make(chan struct{}, 1),
		idle:      make(chan struct{}),
		done:      make(chan struct{}),
		peers:     map[pd.NodeID]*life{},
		handoffs:  map[pd.HandoffID]*handoff{},
		forgotten: map[pd.HandoffID]struct{}{},
		gone:      map[pd.Rank]error{},
		registry: pd.Registry{
			Topology: c.Topology, PagesPerLayer: maps.Clone(c.PagesPerLayer), RingPeriods: maps.Clone(c.RingPeriods),
			BootstrapSlots: c.BootstrapSlots,
		},
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	for _, r := range extentsOf(c.Contract, c.PagesPerLayer, c.BootstrapSlots) {
		g.extents[r.Component] = r.Bytes
	}
	err := g.openRanks(ctx)
	if err == nil {
		err = g.register(ctx)
	}
	if err != nil {
		for _, r := range g.ranks {
			if r != nil {
				err = errors.Join(err, r.abandon())
			}
		}
		return nil, &pd.Error{Op: op, Code: pd.CodeOf(err), Err: err}
	}
	g.running.Store(int64(len(g.ranks)))
	for _, r := range g.ranks {
		r.begin(g)
	}
	go g.deliver()
	return g, nil
}

// openRanks opens every rank: processes of their own at once, agents of this one
// in turn. What was opened before an error is in g.
func (g *Group) openRanks(ctx context.Context) error {
	g.ranks = make([]*opened, g.config.Topology.Ranks)
	if g.config.Launch == nil {
		if err := checkProvider(ctx, g.config.Provider, g.config.Hostname); err != nil {
			return err
		}
		for rank := range g.ranks {
			var err error
			if g.ranks[rank], err = g.openAgent(ctx, pd.Rank(rank)); err != nil {
				return err
			}
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	all := make([]error, len(g.ranks))
	var opening sync.WaitGroup
	for rank := range g.ranks {
		opening.Go(func() {
			if g.ranks[rank], all[rank] = openRemote(ctx, g.log, &g.config, pd.Rank(rank)); all[rank] != nil {
				cancel() // nobody needs the others any more
			}
		})
	}
	opening.Wait()
	// The first that failed by itself says why; the others were only cut short.
	for _, err := range all {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return errors.Join(all...)
}

func (g *Group) openAgent(ctx context.Context, rank pd.Rank) (*opened, error) {
	c := &g.config
	facts := c.Provider.Facts()
	if err := checkLocked(facts, rank, g.extents); err != nil {
		return nil, err
	}
	a, err := openAgent(ctx, agentConfig{
		rank: rank, provider: c.Provider, newArena: c.NewArena, connectTimeout: c.ConnectTimeout, log: g.log,
		options: transfer.Options{
			Identity: transfer.Identity{Boot: c.Peer.Boot, Rank: rank},
			Hostname: c.Hostname, AttemptTimeout: c.AttemptTimeout, PortUsed: c.portUsed(),
		},
		regions: extentsOf(c.Contract, c.PagesPerLayer, c.BootstrapSlots),
	})
	if err != nil {
		return nil, err
	}
	return &opened{
		rankOwner: a, life: a.current(), regions: a.config.regions, facts: facts, memory: a.memory, pid: os.Getpid(),
		begin: a.begin, abandon: a.abandon, free: a.arena.Close,
	}, nil
}

// register checks what the ranks say of themselves and makes the registry.
func (g *Group) register(ctx context.Context) error {
	g.facts = g.ranks[0].facts
	if !g.facts.Acknowledged {
		// safety.md 1.2: without it, Done means only that bytes left the source.
		return pd.Errorf(pd.CodeInvalidConfig, "", "provider %s does not acknowledge writes", g.config.providerName())
	}
	g.registry.Build = g.facts.Build
	var ports []int
	for rank, r := range g.ranks {
		if r.facts != g.facts {
			return pd.Errorf(pd.CodeInvalidConfig, "", "the data plane of rank %d is another than that of rank 0: %+v, %+v", rank, r.facts, g.facts)
		}
		g.registry.Ranks = append(g.registry.Ranks, pd.RankRegistration{
			Rank: pd.Rank(rank), Epoch: r.life.epoch, Endpoint: r.life.endpoint, Regions: r.regions,
		})
		if err := checkBound(ctx, g.config.Hostname, pd.Rank(rank), r.life.ports); err != nil {
			return err
		}
		ports = append(ports, r.life.ports...)
	}
	return g.takePorts(ports)
}

// takePorts notes the ports of engines before any peer is told of them.
func (g *Group) takePorts(ports []int) error {
	if g.config.Ports == nil || len(ports) == 0 {
		return nil
	}
	return g.config.Ports.Take(ports)
}

// now is the time for events, in nanoseconds since Open.
func (g *Group) now() int64 { return time.Since(g.opened).Nanoseconds() }

// Facts are the provider's.
func (g *Group) Facts() transfer.Facts { return g.facts }

// ProcessIDs are the ids of the ranks' processes, by rank; this one's where
// owners are in it.
func (g *Group) ProcessIDs() []int {
	out := make([]int, len(g.ranks))
	for i, r := range g.ranks {
		out[i] = r.pid
	}
	return out
}

// Memory is one region for the engine of this process; nil if the component or
// rank is unknown, or the memory is not the host's. It is valid until Close
// returned nil.
func (g *Group) Memory(rank pd.Rank, component pd.ComponentID) []byte {
	m := g.memory(rank, component)
	if m == nil {
		return nil
	}
	return m.Bytes()
}

// Copier is the way to a region that Memory does not give, for an engine that
// brings a machine up; nil if there is none.
func (g *Group) Copier(rank pd.Rank, component pd.ComponentID) transfer.Copier {
	c, _ := g.memory(rank, component).(transfer.Copier)
	return c
}

func (g *Group) memory(rank pd.Rank, component pd.ComponentID) transfer.Memory {
	if rank < 0 || int(rank) >= len(g.ranks) {
		return nil
	}
	return g.ranks[rank].memory[component]
}

// Registry implements Service. The answer is the caller's.
func (g *Group) Registry() pd.Registry {
	g.mu.Lock()
	defer g.mu.Unlock()
	return cloneRegistry(g.registry)
}

func cloneRegistry(r pd.Registry) pd.Registry {
	r.PagesPerLayer, r.RingPeriods = maps.Clone(r.PagesPerLayer), maps.Clone(r.RingPeriods)
	r.Ranks = slices.Clone(r.Ranks)
	for i := range r.Ranks {
		r.Ranks[i].Regions = slices.Clone(r.Ranks[i].Regions)
	}
	return r
}

// fenced announces a rank's new engine.
func (g *Group) fenced(rank pd.Rank, l engineLife) error {
	if err := g.takePorts(l.ports); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.registry.Ranks[rank].Epoch, g.registry.Ranks[rank].Endpoint = l.epoch, l.endpoint
	return nil
}

// Fence implements Service.
//
// Invariant FenceThenSilence: nil means that every rank's engine has returned
// nil from its own Fence. One rank that did not answer makes it an error.
func (g *Group) Fence(ctx context.Context) error {
	const op = "fence owners"
	answers := make([]chan error, len(g.ranks))
	g.mu.Lock()
	err := g.admitOrderLocked()
	for i, r := range g.ranks {
		if err == nil {
			answer := make(chan error, 1)
			answers[i] = answer
			r.fence(fenceOrder{ctx: ctx, answer: func(err error) { answer <- err }})
		}
	}
	g.mu.Unlock()
	if err != nil {
		err.Op = op
		return err
	}
	var all []error
	for _, answer := range answers {
		select {
		case err := <-answer:
			all = append(all, err)
		case <-ctx.Done():
			// The rank may still get there; then its registration says so.
			all = append(all, &pd.Error{Op: op, Code: pd.CodeDeadline, Err: ctx.Err()})
		}
	}
	if err := errors.Join(all...); err != nil {
		return &pd.Error{Op: op, Code: pd.CodeOf(err), Err: err}
	}
	return nil
}

// admitOrderLocked says why no rank may be given an order, or nil.
func (g *Group) admitOrderLocked() *pd.Error {
	if g.closing {
		return pd.Errorf(pd.CodeOwnerLost, "", "the owners are closing")
	}
	for rank := range pd.Rank(len(g.ranks)) {
		if why := g.gone[rank]; why != nil {
			return goneError(rank, why)
		}
	}
	return nil
}

func goneError(rank pd.Rank, why error) *pd.Error {
	return &pd.Error{Code: pd.CodeOwnerLost, Text: fmt.Sprintf("the owner of rank %d is gone", rank), Err: why}
}

// Close implements Service.
func (g *Group) Close(ctx context.Context) error {
	g.mu.Lock()
	first := !g.closing
	g.closing = true
	g.mu.Unlock()
	if first {
		for _, r := range g.ranks {
			r.shut()
		}
	}
	select {
	case <-g.done:
		return g.left
	case <-ctx.Done():
		return &pd.Error{Op: "close owners", Code: pd.CodeDeadline, Text: "engines are still closing; their memory stays", Err: ctx.Err()}
	}
}

// ended is the last thing that the owner of a rank reports.
func (g *Group) ended(pd.Rank) {
	if g.running.Add(-1) == 0 {
		close(g.idle)
	}
}

// emitLocked queues an event for deliver.
func (g *Group) emitLocked(event any) {
	g.queue = append(g.queue, event)
	select {
	case g.note <- struct{}{}:
	default: // a note is pending already
	}
}

// deliver calls Events in order, and ends the group once its ranks have.
func (g *Group) deliver() {
	defer close(g.done)
	for ended := false; !ended; {
		select {
		case <-g.note:
		case <-g.idle:
			ended = true
		}
		g.mu.Lock()
		queue := g.queue
		g.queue = nil
		g.mu.Unlock()
		for _, e := range queue {
			switch e := e.(type) {
			case UnitSettled:
				g.config.Events.UnitSettled(e)
			case ChunkSettled:
				g.config.Events.ChunkSettled(e)
			case SourceFreed:
				g.config.Events.SourceFreed(e)
			case HandoffStopped:
				g.config.Events.HandoffStopped(e)
			case OwnerLost:
				g.config.Events.OwnerLost(e)
			}
		}
	}
	// No engine has this memory any more.
	for _, r := range g.ranks {
		g.left = errors.Join(g.left, r.free())
	}
}

package owner

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// Group is the owners of one node, one per rank, in this process.
type Group struct {
	// constant
	config  Config
	log     *slog.Logger
	opened  time.Time
	agents  []*agent         // by rank
	extents transfer.Extents // of every rank of this node
	life    context.Context  // ends what blocks in agents when Close begins
	end     func()           // ends life
	running atomic.Int64     // agents that have not returned
	note    chan struct{}    // events are queued
	idle    chan struct{}    // closed when every agent has returned
	done    chan struct{}    // closed when everything has ended
	arenas  []transfer.Arena // closed by the deliverer, after the agents
	left    error            // what closing arenas said; set before done is closed

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
	queue         []any // events in order
}

var _ Service = (*Group)(nil)

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
		registry: pd.Registry{
			Topology: c.Topology, PagesPerLayer: maps.Clone(c.PagesPerLayer), RingPeriods: maps.Clone(c.RingPeriods),
			BootstrapSlots: c.BootstrapSlots, Build: c.Provider.Facts().Build,
		},
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	for _, r := range extentsOf(c.Contract, c.PagesPerLayer, c.BootstrapSlots) {
		g.extents[r.Component] = r.Bytes
	}
	for rank := range pd.Rank(c.Topology.Ranks) {
		if err := g.openRank(ctx, rank); err != nil {
			return nil, errors.Join(&pd.Error{Op: op, Code: pd.CodeOf(err), Err: err}, g.abandon())
		}
	}
	g.life, g.end = context.WithCancel(context.Background())
	g.running.Store(int64(len(g.agents)))
	for _, a := range g.agents {
		go a.run()
	}
	go g.deliver()
	return g, nil
}

// openRank makes engine, arena and regions of one rank. What it made before an
// error is in g, for abandon.
func (g *Group) openRank(ctx context.Context, rank pd.Rank) error {
	c := &g.config
	engine, err := c.Provider.Open(ctx, transfer.Options{
		Identity: transfer.Identity{Boot: c.Peer.Boot, Rank: rank},
		Hostname: c.Hostname, AttemptTimeout: c.AttemptTimeout,
	})
	if err != nil {
		return err
	}
	a := &agent{
		group: g, rank: rank, engine: engine, kick: make(chan struct{}, 1),
		memory: map[pd.ComponentID]transfer.Memory{}, lanes: map[laneKey]*lane{}, posted: map[transfer.Ticket]posted{},
	}
	g.agents = append(g.agents, a)
	arena, err := c.NewArena(rank)
	if err != nil {
		return err
	}
	g.arenas = append(g.arenas, arena)
	regions := extentsOf(c.Contract, c.PagesPerLayer, c.BootstrapSlots)
	for i := range regions {
		r := &regions[i]
		m, err := arena.Allocate(r.Component, r.Bytes)
		if err != nil {
			return err
		}
		if r.Envelope, err = engine.Register(r.Component, m); err != nil {
			return err
		}
		a.memory[r.Component] = m
	}
	if err := engine.Freeze(); err != nil {
		return err
	}
	g.registry.Ranks = append(g.registry.Ranks, pd.RankRegistration{
		Rank: rank, Epoch: engine.Epoch(), Endpoint: engine.Endpoint(), Regions: regions,
	})
	return nil
}

// abandon takes back a group that did not open.
func (g *Group) abandon() error {
	var all []error
	for _, a := range g.agents {
		all = append(all, a.engine.Close())
	}
	return errors.Join(append(all, closeAll(g.arenas))...)
}

func closeAll[C io.Closer](list []C) error {
	var all []error
	for _, c := range list {
		all = append(all, c.Close())
	}
	return errors.Join(all...)
}

// now is the time for events, in nanoseconds since Open.
func (g *Group) now() int64 { return time.Since(g.opened).Nanoseconds() }

// Facts are the provider's.
func (g *Group) Facts() transfer.Facts { return g.config.Provider.Facts() }

// Memory is one region for the engine of this process; nil if the component or
// rank is unknown, or the memory is not the host's. It is valid until Close
// returned nil.
func (g *Group) Memory(rank pd.Rank, component pd.ComponentID) []byte {
	if rank < 0 || int(rank) >= len(g.agents) {
		return nil
	}
	m := g.agents[rank].memory[component]
	if m == nil {
		return nil
	}
	return m.Bytes()
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
func (g *Group) fenced(rank pd.Rank, epoch pd.Epoch, endpoint string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.registry.Ranks[rank].Epoch, g.registry.Ranks[rank].Endpoint = epoch, endpoint
}

// Fence implements Service.
//
// Invariant FenceThenSilence: nil means that every rank's engine has returned
// nil from its own Fence. One rank that did not answer makes it an error.
func (g *Group) Fence(ctx context.Context) error {
	const op = "fence owners"
	answers := make([]chan error, len(g.agents))
	g.mu.Lock()
	if g.closing {
		g.mu.Unlock()
		return pd.Errorf(pd.CodeOwnerLost, op, "the owners are closing")
	}
	for i, a := range g.agents {
		answers[i] = make(chan error, 1)
		a.orderFence(fenceOrder{ctx: ctx, answer: answers[i]})
	}
	g.mu.Unlock()
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

// Close implements Service.
func (g *Group) Close(ctx context.Context) error {
	g.mu.Lock()
	first := !g.closing
	g.closing = true
	g.mu.Unlock()
	if first {
		g.end()
		for _, a := range g.agents {
			a.orderClose()
		}
	}
	select {
	case <-g.done:
		return g.left
	case <-ctx.Done():
		return &pd.Error{Op: "close owners", Code: pd.CodeDeadline, Text: "engines are still closing; their memory stays", Err: ctx.Err()}
	}
}

// agentEnded is the last thing an agent does.
func (g *Group) agentEnded() {
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

// deliver calls Events in order, and ends the group once its agents have.
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
			case HandoffStopped:
				g.config.Events.HandoffStopped(e)
			}
		}
	}
	// No agent can have an engine with this memory any more.
	g.left = closeAll(g.arenas)
}

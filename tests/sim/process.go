package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/engine/reference"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// process is one boot of a node: the production node, engine and page pool,
// with the owners of its memory.
type process struct {
	// constant
	host    *host
	peer    pd.Peer
	node    *node.Node
	engine  *reference.Engine
	pool    *watchedPool
	owners  *owners
	started time.Duration
	config  node.Config

	dead bool
	// paused holds what would have happened meanwhile; nil while it runs.
	paused   *pause
	posts    map[node.PostID]*leg
	byID     map[pd.HandoffID]*leg
	lasts    map[pd.HandoffID]engine.Output
	calls    map[node.CallID]*inbound
	outgoing map[outgoing]*outcall
	serial   uint64
	timer    time.Duration
	// crashIn counts effects down to a crash between two of them.
	crashIn   int
	computing bool
	draining  bool
	gatedAt   time.Duration
	steps     int
	prompts   map[pd.HandoffID]bool
}

type pause struct {
	since  time.Duration
	inbox  []func()
	length time.Duration
}

type outgoing struct {
	handoff pd.HandoffID
	op      node.Op
}

// inbound is a control call that waits for this process's answer.
type inbound struct {
	reply   func(message any, err error)
	lost    func()
	message any
}

// boot begins a new life of a host.
func (h *host) boot() {
	w := h.world
	h.boots++
	w.tally.Boots++
	boot := pd.BootID(w.hexID("boot"))
	p := &process{
		host: h, peer: pd.Peer{Node: h.id, Boot: boot}, started: w.now - time.Millisecond, crashIn: -1,
		posts: map[node.PostID]*leg{}, byID: map[pd.HandoffID]*leg{}, lasts: map[pd.HandoffID]engine.Output{},
		calls: map[node.CallID]*inbound{}, outgoing: map[outgoing]*outcall{}, prompts: map[pd.HandoffID]bool{},
	}
	p.engine = reference.New(reference.Config{
		Contract: &w.kind.contract, Adapter: w.kind.adapter, ContractDigest: w.kind.digest, PrefixCaching: h.cache, Layout: h.layout,
		Memory:    func(r pd.Rank, c pd.ComponentID) []byte { return h.memory[r][c] },
		MaxTokens: 1024, BatchTokens: w.set.batchTokens, ChunkTokens: w.set.chunkTokens,
		Sequences: w.set.sequences, PrefillRate: w.set.prefillRate, DecodeRate: w.set.decodeRate,
	})
	p.engine.Attach(p)
	p.owners = w.newOwners(p)
	p.pool = &watchedPool{Pool: p.engine.Pool(), process: p}
	p.config = node.Config{
		Role: h.role, Self: p.peer, Run: runID, Contract: &w.kind.contract, ContractDigest: w.kind.digest,
		Registry: p.owners.registry(), Peers: map[pd.NodeID]struct{}{}, Capacity: w.set.capacity,
		HandoffTimeout: w.set.handoffTimeout, RequestTimeout: w.set.requestTimeout, MaxModelTokens: 1024,
		Adapter: w.kind.adapter, PrefixCaching: h.cache, Allocator: p.pool,
		FenceProves: w.set.fenceProves, DeathSuffices: w.opt.Broken == DeathSuffices, AutoFence: w.set.autoFence,
	}
	for _, o := range w.hosts {
		if o.role != h.role {
			p.config.Peers[o.id] = struct{}{}
		}
	}
	p.node = node.New(p.config)
	h.proc = p
	w.check.booted(p)
	w.note(h.name, "boot", "", "%s number %d", boot[:8], h.boots)
}

const runID pd.RunID = "sim"

func (p *process) name() string { return p.host.name }
func (p *process) site() int    { return p.host.site }

// run does something in the process now, or when it runs again, or never.
func (p *process) run(do func()) {
	switch {
	case p.dead:
	case p.paused != nil:
		p.paused.inbox = append(p.paused.inbox, do)
	default:
		do()
	}
}

// soon queues something for the process's own loop.
func (p *process) soon(do func()) { p.host.world.after(0, func() { p.run(do) }) }

func (p *process) clock() time.Duration { return p.host.world.now - p.started }

// step gives one event to the node and carries out what it orders, in order.
// Nothing that an effect causes happens inside of it.
func (p *process) step(e node.Event) {
	w := p.host.world
	if p.dead {
		return
	}
	w.tally.Steps++
	p.steps++
	w.note(p.name(), strings.TrimPrefix(fmt.Sprintf("%T", e), "node."), handoffOf(e), "%s", describe(e))
	w.check.before(p, e)
	for _, effect := range p.nodeStep(e) {
		if p.crashIn == 0 {
			w.happened(NodeCrashBetweenEffects)
			p.crash(w.rand("crash").IntN(3) > 0)
			return
		}
		if p.crashIn > 0 {
			p.crashIn--
		}
		p.execute(effect)
		if p.dead {
			return
		}
	}
	w.check.after(p)
	p.arm()
	p.compute()
}

// nodeStep steps the production node; its own panics are violations.
func (p *process) nodeStep(e node.Event) []node.Effect {
	defer p.host.world.catch()
	return p.node.Step(e, p.clock())
}

// catch turns a broken invariant of production code into a violation.
func (w *World) catch() {
	switch v := recover().(type) {
	case nil:
	case *Violation:
		panic(v)
	case string:
		if number, ok := strings.CutPrefix(v, "invariant "); ok {
			number, rest, _ := strings.Cut(number, ":")
			w.broken(invariantName(number), "the node stopped itself: %s:%s", number, rest)
		}
		panic(v)
	default:
		panic(v)
	}
}

// arm makes the node's next deadline an event.
func (p *process) arm() {
	at, ok := p.node.NextDeadline()
	if !ok || at == p.timer {
		return
	}
	p.timer = at
	p.host.world.after(at-p.clock(), func() {
		if p.timer != at {
			return
		}
		p.run(func() {
			p.timer = 0
			if due, ok := p.node.NextDeadline(); ok && due <= p.clock() {
				p.step(node.TimeAdvanced{})
				return
			}
			p.arm()
		})
	})
}

// compute lets the engine begin a step unless it is at one.
func (p *process) compute() {
	if p.computing || p.dead {
		return
	}
	takes, ok := p.engine.Begin()
	if !ok {
		return
	}
	p.computing = true
	w := p.host.world
	w.after(takes, func() {
		p.run(func() {
			p.engine.End(time.Time{}, time.Time{})
			p.computing = false
			p.compute()
		})
	})
}

// ChunkComputed implements engine.Events.
func (p *process) ChunkComputed(c engine.ChunkComputed) {
	p.soon(func() {
		p.step(node.ChunkComputed{
			Handoff: c.Handoff, Partition: c.Partition, Chunk: c.Chunk, Span: c.Span, Final: c.Final,
			HitTokens: c.HitTokens, BootstrapSlot: c.BootstrapSlot, FirstToken: c.FirstToken,
		})
	})
}

// PrefillStopped implements engine.Events.
func (p *process) PrefillStopped(h pd.HandoffID, err error) {
	delete(p.prompts, h)
	p.soon(func() { p.step(node.PrefillStopped{Handoff: h, Err: err}) })
}

// DecodeStopped implements engine.Events.
func (p *process) DecodeStopped(h pd.HandoffID, last engine.Output) {
	if p.byID[h] != nil {
		p.lasts[h] = last
	}
	p.soon(func() { p.step(node.DecodeStopped{Handoff: h, Err: last.Err}) })
}

// DecodeOutput implements engine.Events.
func (p *process) DecodeOutput(h pd.HandoffID, o engine.Output) {
	if l := p.byID[h]; l != nil {
		l.output(o)
	}
}

// called takes a control message in.
func (p *process) called(message any, in *inbound) {
	p.serial++
	id := node.CallID(p.serial)
	in.message = message
	p.calls[id] = in
	e := node.Called{Call: id, Message: message}
	if r, ok := message.(wire.Reserve); ok {
		e.Prefix = p.node.Prefix(r.Continuation.PromptTokens)
	}
	p.step(e)
}

// crash ends the process. What its owners had posted is on its way; peers hear
// of it if the host still answers.
func (p *process) crash(audible bool) {
	w := p.host.world
	h := p.host
	w.note(p.name(), "crash", "", "audible=%t", audible)
	p.dead = true
	h.proc = nil
	w.check.died(p)
	if w.calm {
		h.start(time.Second) // it was on its way when the faults ended
	}
	for _, post := range sorted(p.posts) {
		p.posts[post].lost(audible)
	}
	for _, call := range sorted(p.calls) {
		if audible {
			p.calls[call].lost()
		}
	}
	if w.hit(PredecessorAliveAtStart, 0.6) {
		p.owners.linger()
		return
	}
	p.owners.die()
}

// pauseFor stops the process: nothing of it happens, what arrives waits.
func (p *process) pauseFor(d time.Duration) {
	w := p.host.world
	if p.dead || p.paused != nil {
		return
	}
	w.happened(NodePaused)
	w.note(p.name(), "pause", "", "%v", d)
	p.paused = &pause{since: w.now, length: d}
	w.after(d, p.resume)
}

func (p *process) resume() {
	w := p.host.world
	if p.dead || p.paused == nil {
		return
	}
	slept := p.paused
	p.paused = nil
	gap := w.now - slept.since
	w.note(p.name(), "resume", "", "after %v, %d events wait", gap, len(slept.inbox))
	if gap > pd.LoopPause {
		p.step(node.LoopPaused{For: gap})
	}
	for _, do := range slept.inbox {
		p.run(do)
	}
}

// drain orders a shutdown; the process ends when it is idle.
func (p *process) drain() {
	w := p.host.world
	if p.draining {
		return
	}
	p.draining = true
	p.step(node.DrainOrdered{})
	var look func()
	look = func() {
		if p.dead {
			return
		}
		if !p.node.Idle() {
			w.after(100*time.Millisecond, func() { p.run(look) })
			return
		}
		if p.host.role == pd.Prefill {
			for _, h := range w.hosts {
				if h.role == pd.Decode {
					w.call(p, h, wire.SourceStopped{Peer: p.peer, Fact: p.node.Snapshot().Stopped}, 2*time.Second, func(any, error) {})
				}
			}
		}
		w.after(2*time.Second, func() {
			p.run(func() {
				p.crash(true)
				p.host.start(between(w.rand("restart"), 100*time.Millisecond, 3*time.Second))
			})
		})
	}
	w.after(0, func() { p.run(look) })
}

// sorted lists the keys of a map in order: nothing may depend on Go's own.
func sorted[K ~string | ~uint64 | ~int, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

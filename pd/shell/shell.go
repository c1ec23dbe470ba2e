package shell

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/control"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// tick is the longest sleep of the loop; a longer gap means that the loop
// itself was not running.
const tick = 500 * time.Millisecond

// checkEvery is how often the loop looks at every invariant; what a step itself
// can see it asserts at once.
const checkEvery = time.Second

// Config is what a node is made of. Nothing in it is owned by the shell.
type Config struct {
	Node   node.Config
	Owners owner.Service
	// OwnerEvents is what the owners were opened with.
	OwnerEvents *OwnerEvents
	Engine      engine.PD
	Control     *control.Client
	// Addresses are the control addresses of the peers, from pd.json. AddPeers knows
	// more of them.
	Addresses map[pd.NodeID]string
	// Descriptor is the constant part of what the node says of itself.
	Descriptor wire.Node
	// Record takes what the journal should keep. It must not block.
	Record func(Line)
	Log    *slog.Logger
}

// Line is one record with its place in time.
type Line struct {
	node.Record
	At time.Time
	// Began and Ended bound what a record of a compute step or a transfer is
	// about; zero elsewhere.
	Began, Ended time.Time
}

// Shell is one running node.
type Shell struct {
	// constant
	cfg   Config
	node  *node.Node
	start time.Time
	wake  chan struct{}
	calls sync.WaitGroup

	// owned by the loop
	outgoing map[outgoing]context.CancelFunc
	broken   error
	checked  time.Time
	ctx      context.Context

	// atomic
	snapshot atomic.Pointer[state]
	// addresses is replaced, never written into.
	addresses atomic.Pointer[map[pd.NodeID]string]
	serial    atomic.Uint64

	// guarded by mu
	mu      sync.Mutex
	inbox   []any // node.Event, or func() for the loop
	posts   map[node.PostID]*post
	byID    map[pd.HandoffID]*post
	answers map[node.CallID]chan answer
	lasts   map[pd.HandoffID]engine.Output
	ended   bool
}

// state is what others may see of the loop.
type state struct {
	node.Snapshot
	idle bool
}

type outgoing struct {
	handoff pd.HandoffID
	op      node.Op
}

type answer struct {
	message any
	err     error
}

var (
	_ engine.Generator = (*Shell)(nil)
	_ engine.Events    = (*Shell)(nil)
	_ control.Service  = (*Shell)(nil)
	_ owner.Events     = (*OwnerEvents)(nil)
)

// New makes a node that takes nothing in before Run.
func New(cfg Config) *Shell {
	s := &Shell{
		cfg: cfg, node: node.New(cfg.Node), start: time.Now(), wake: make(chan struct{}, 1),
		outgoing: map[outgoing]context.CancelFunc{}, posts: map[node.PostID]*post{}, byID: map[pd.HandoffID]*post{},
		answers: map[node.CallID]chan answer{}, lasts: map[pd.HandoffID]engine.Output{},
	}
	s.addresses.Store(&cfg.Addresses)
	cfg.OwnerEvents.bind(s)
	s.publish()
	return s
}

// AddPeers makes nodes of the other role known, by their control addresses; a known
// one gets another address. It is not called from two goroutines at once.
func (s *Shell) AddPeers(addresses map[pd.NodeID]string) {
	next := maps.Clone(*s.addresses.Load())
	if next == nil {
		next = map[pd.NodeID]string{}
	}
	maps.Copy(next, addresses)
	s.addresses.Store(&next) // before anybody asks the node for one of them
	s.event(node.PeersAdded{Nodes: slices.Sorted(maps.Keys(addresses))})
}

// post gives an event to the loop. The inbox is bounded by what callers hold:
// open connections, calls in flight and running requests.
func (s *Shell) event(e any) {
	s.mu.Lock()
	ended := s.ended
	if !ended {
		s.inbox = append(s.inbox, e)
	}
	s.mu.Unlock()
	if ended {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run is the loop; it ends with the context. What still waits then gets
// CodeDraining.
func (s *Shell) Run(ctx context.Context) {
	s.ctx = ctx
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for ctx.Err() == nil {
		slept := time.Now()
		timer.Reset(s.untilDeadline())
		select {
		case <-s.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		// The judge slept: what seems late may only be unread. The inbox comes
		// before the timers, and every deadline moves by the pause.
		if gap := time.Since(slept) - tick; gap > pd.LoopPause {
			s.step(node.LoopPaused{For: gap})
		}
		s.drainInbox()
		if at, ok := s.node.NextDeadline(); ok && at <= time.Since(s.start) {
			s.step(node.TimeAdvanced{})
		}
		s.check()
	}
	s.end()
}

func (s *Shell) untilDeadline() time.Duration {
	if at, ok := s.node.NextDeadline(); ok {
		return min(tick, max(0, at-time.Since(s.start)))
	}
	return tick
}

func (s *Shell) drainInbox() {
	for {
		s.mu.Lock()
		events := s.inbox
		s.inbox = nil
		s.mu.Unlock()
		if len(events) == 0 {
			return
		}
		for _, e := range events {
			if f, ok := e.(func()); ok {
				f()
				continue
			}
			s.step(e.(node.Event))
		}
	}
}

// step runs the node for one event and executes what it orders.
func (s *Shell) step(e node.Event) {
	if s.broken != nil {
		s.refuse(e)
		return
	}
	defer func() {
		if p := recover(); p != nil {
			s.breaks(fmt.Errorf("%v", p), fmt.Sprintf("%T", e))
			s.publish()
			s.refuse(e)
		}
	}()
	effects := s.node.Step(e, time.Since(s.start))
	s.publish() // before anyone is told, so that who was told can see it
	for _, effect := range effects {
		s.execute(effect)
	}
	if n := len(effects); n > 0 && frees(effects[n-1]) {
		s.publish()
	}
}

// check looks at every invariant between two steps, at most once in checkEvery.
func (s *Shell) check() {
	if s.broken != nil || time.Since(s.checked) < checkEvery {
		return
	}
	s.checked = time.Now()
	if err := s.node.Check(); err != nil {
		s.breaks(err, "between two steps")
		s.publish()
	}
}

// breaks stops the node for good.
func (s *Shell) breaks(err error, at string) {
	s.broken = err
	s.cfg.Log.Error("a broken invariant has stopped this node; it keeps all memory until it is restarted",
		"invariant", err.Error(), "event", at, "stack", string(debug.Stack()))
}

// frees says whether an effect gives memory back. Such effects come last.
func frees(e node.Effect) bool {
	switch e.(type) {
	case node.FreeLease, node.FreePin:
		return true
	}
	return false
}

// refuse answers what a broken node can no longer decide.
func (s *Shell) refuse(e node.Event) {
	err := &pd.Error{Op: "node", Code: pd.CodeNodeGated, Node: s.cfg.Node.Self.Node, Err: s.broken}
	switch e := e.(type) {
	case node.PrefillPosted:
		s.endPost(node.EndPost{Post: e.Post, Handoff: e.Fence.Handoff, Err: err})
	case node.DecodePosted:
		s.endPost(node.EndPost{Post: e.Post, Handoff: e.Fence.Handoff, Err: err})
	case node.Called:
		s.reply(e.Call, answer{err: err})
	}
}

// publish shows the loop's state to others.
func (s *Shell) publish() {
	if s.broken != nil {
		last := *s.snapshot.Load()
		last.Health, last.Reason, last.idle = pd.RecoveryRequired, s.broken.Error(), true
		s.snapshot.Store(&last)
		return
	}
	s.snapshot.Store(&state{Snapshot: s.node.Snapshot(), idle: s.node.Idle()})
}

// Snapshot shows the node as of the last step.
func (s *Shell) Snapshot() node.Snapshot { return s.snapshot.Load().Snapshot }

// Drain stops admission and waits until every handoff has ended, or the
// context. What is left when no request is active is memory that may still be
// written; a proof is waited for as long as for any confirmation
// (handoff_timeout), and then the error says so. A prefill node tells its peers
// at the end that its writes are over.
func (s *Shell) Drain(ctx context.Context) error {
	s.event(node.DrainOrdered{})
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	var unproven time.Time // since when only unproven memory is left
	for {
		v := s.snapshot.Load()
		switch {
		case v.Health == pd.Ready || v.Capacity.Active > 0:
			unproven = time.Time{}
		case v.idle:
			return s.goodbye(ctx)
		case unproven.IsZero():
			unproven = time.Now()
		case time.Since(unproven) > s.cfg.Node.HandoffTimeout:
			return fmt.Errorf("drain: writes may still land in the memory of %d leases, %d chunks may still be read (%s)", v.Capacity.Quarantined, v.Pins, v.Reason)
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("drain: %d requests are active, %d reservations, %d pins: %w", v.Capacity.Active, v.Capacity.Reservations, v.Pins, context.Cause(ctx))
		}
	}
}

// goodbye is the last thing that a drained node does.
func (s *Shell) goodbye(ctx context.Context) error {
	if s.cfg.Node.Role == pd.Prefill {
		s.sourceStopped(ctx)
	}
	return nil
}

// sourceStopped says goodbye to every decode node, with what is known of all
// writes together. One that does not answer learns no more than it knew.
func (s *Shell) sourceStopped(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, goodbyeTime)
	defer cancel()
	var wg sync.WaitGroup
	for id, address := range *s.addresses.Load() {
		wg.Go(func() {
			_, err := s.cfg.Control.SourceStopped(ctx, control.Target{Node: id, Address: address}, wire.SourceStopped{Peer: s.cfg.Node.Self, Fact: s.Snapshot().Stopped})
			if err != nil {
				s.cfg.Log.Debug("decode node did not take the goodbye", "peer", id, "err", err)
			}
		})
	}
	wg.Wait()
}

// goodbyeTime bounds the farewell of a prefill node to all its peers.
const goodbyeTime = 2 * time.Second

// end fails what still waits and waits for the calls.
func (s *Shell) end() {
	for _, cancel := range s.outgoing {
		cancel()
	}
	s.calls.Wait()
	stopped := &pd.Error{Op: "node", Code: pd.CodeDraining, Node: s.cfg.Node.Self.Node, Text: "the node was stopped"}
	s.mu.Lock()
	s.ended = true
	posts, answers := s.posts, s.answers
	s.posts, s.answers = map[node.PostID]*post{}, map[node.CallID]chan answer{}
	s.mu.Unlock()
	for _, p := range posts {
		p.end(engine.Failure(stopped), stopped)
	}
	for _, ch := range answers {
		ch <- answer{err: stopped}
	}
}

package shell

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/control"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// execute carries one effect out. The node has put them in order.
func (s *Shell) execute(effect node.Effect) {
	switch e := effect.(type) {
	case node.Record:
		s.cfg.Record(Line{Record: e, At: time.Now()})
	case node.Call:
		s.call(e)
	case node.OpenSession:
		s.openSession(e)
	case node.CancelCall:
		if cancel := s.outgoing[outgoing{e.Handoff, e.Op}]; cancel != nil {
			cancel()
		}
	case node.Answer:
		s.reply(e.Call, answer{e.Message, e.Err})
	case node.AcceptPost:
		s.acceptPost(e)
	case node.EndPost:
		s.endPost(e)
	case node.InstallPeer:
		if err := s.cfg.Owners.Install(e.Peer, e.Registry); err != nil {
			s.event(node.InstallFailed{Peer: e.Peer, Err: err})
		}
	case node.Submit:
		err := s.cfg.Owners.Submit(owner.Write{Handoff: e.Handoff, Chunk: e.Chunk, Peer: e.Peer, RegistryEpoch: e.RegistryEpoch, Writes: e.Writes, Units: e.Units})
		if err != nil {
			s.event(node.SubmitRefused{Handoff: e.Handoff, Chunk: e.Chunk, Err: err})
		}
	case node.Seal:
		if err := s.cfg.Owners.Seal(e.Handoff); err != nil {
			// Without a sealed owner there is no fact: what may have been
			// submitted stays uncertain.
			s.cfg.Log.Warn("an owner could not be sealed", "handoff", e.Handoff, "err", err)
			s.event(node.Sealed{Handoff: e.Handoff, Fact: pd.Unknown})
		}
	case node.Fence:
		s.fence()
	case node.Forget:
		s.cfg.Owners.Forget(e.Handoff)
	case node.StartPrefill:
		s.cfg.Engine.Prefill(e.Handoff, engine.Request{ID: e.Request, Continuation: *e.Continuation})
	case node.ResumePrefill:
		s.cfg.Engine.Resume(e.Handoff)
	case node.StopPrefill:
		s.cfg.Engine.StopPrefill(e.Handoff)
	case node.Adopt:
		s.cfg.Engine.Adopt(engine.Adoption{
			Handoff: e.Handoff, Request: e.Request, Continuation: *e.Continuation, FirstToken: e.FirstToken,
			Partition: e.Partition, HitTokens: e.HitTokens, CachedTokens: e.CachedTokens, BootstrapSlot: e.BootstrapSlot,
		})
	case node.StopDecode:
		s.cfg.Engine.StopDecode(e.Handoff)
	case node.FreeLease, node.FreePin:
		s.node.Free(e)
	default:
		panic(fmt.Sprintf("shell: unknown effect %T", effect))
	}
}

// fence makes the owners' engines anew, off the loop: decoding goes on.
func (s *Shell) fence() {
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.Node.HandoffTimeout)
	s.calls.Go(func() {
		defer cancel()
		err := s.cfg.Owners.Fence(ctx)
		s.event(node.Fenced{Registry: s.cfg.Owners.Registry(), Err: err})
	})
}

// call makes one control call on a goroutine of its own.
func (s *Shell) call(e node.Call) {
	ctx, cancel := context.WithTimeout(s.ctx, e.Timeout)
	key := outgoing{e.Handoff, e.Op}
	s.outgoing[key] = cancel
	target := control.Target{Node: e.Peer.Node, Address: (*s.addresses.Load())[e.Peer.Node]}
	s.calls.Go(func() {
		message, err := s.send(ctx, target, e.Message)
		s.event(func() {
			cancel()
			delete(s.outgoing, key)
			r := node.Returned{Handoff: e.Handoff, Op: e.Op, Answer: message, Err: err}
			if err != nil {
				r.Answer = nil
			}
			s.step(r)
		})
	})
}

// send picks the client's method for a message.
func (s *Shell) send(ctx context.Context, t control.Target, message any) (any, error) {
	switch m := message.(type) {
	case wire.Reserve:
		return wrap(s.cfg.Control.Reserve(ctx, t, m))
	case wire.Chunk:
		return wrap(s.cfg.Control.Chunk(ctx, t, m))
	case wire.Results:
		return wrap(s.cfg.Control.Results(ctx, t, m))
	case wire.Commit:
		return wrap(s.cfg.Control.Commit(ctx, t, m))
	case wire.Abort:
		return wrap(s.cfg.Control.Abort(ctx, t, m))
	case wire.StatusQuery:
		return wrap(s.cfg.Control.Status(ctx, t, m))
	}
	panic(fmt.Sprintf("shell: unknown message %T", message))
}

func wrap[T any](m T, err error) (any, error) { return m, err }

func (s *Shell) openSession(e node.OpenSession) {
	ctx, cancel := context.WithTimeout(s.ctx, e.Timeout)
	target := control.Target{Node: e.Peer.Node, Address: (*s.addresses.Load())[e.Peer.Node]}
	hello := s.node.Hello()
	s.calls.Go(func() {
		defer cancel()
		answer, err := s.cfg.Control.Session(ctx, target, hello)
		if err != nil {
			s.event(node.SessionReturned{Peer: e.Peer, Err: err})
			return
		}
		s.event(node.SessionReturned{Peer: e.Peer, Answer: &answer})
	})
}

// OwnerEvents receives what the owners of a node report. Owners are opened
// before the shell that listens to them, because the node announces their
// registry; New binds the two. Until then only losses can be reported, since
// nothing was submitted; they wait.
type OwnerEvents struct {
	started time.Time

	mu    sync.Mutex
	shell *Shell
	early []owner.OwnerLost
}

func (o *OwnerEvents) bind(s *Shell) {
	o.mu.Lock()
	o.shell = s
	early := o.early
	o.mu.Unlock()
	for _, l := range early {
		o.OwnerLost(l)
	}
}

func (o *OwnerEvents) bound() *Shell {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.shell
}

// NewOwnerEvents is made right before the owners are opened: their nanoseconds
// count from there.
func NewOwnerEvents() *OwnerEvents { return &OwnerEvents{started: time.Now()} }

// UnitSettled implements owner.Events; the node acts on whole chunks.
func (o *OwnerEvents) UnitSettled(owner.UnitSettled) {}

// ChunkSettled implements owner.Events.
func (o *OwnerEvents) ChunkSettled(c owner.ChunkSettled) {
	shell := o.bound()
	shell.cfg.Record(Line{
		Record: node.Record{Event: "TRANSFER", Fence: pd.Fence{Handoff: c.Handoff}, Chunk: c.Chunk, Bytes: c.Bytes},
		At:     time.Now(), Began: o.started.Add(time.Duration(c.Began)), Ended: o.started.Add(time.Duration(c.Ended)),
	})
	shell.event(node.ChunkSettled{Handoff: c.Handoff, Chunk: c.Chunk, Results: c.Results, SourceFree: c.SourceFree})
}

// SourceFreed implements owner.Events.
func (o *OwnerEvents) SourceFreed(f owner.SourceFreed) {
	o.bound().event(node.SourceFreed{Handoff: f.Handoff, Chunk: f.Chunk})
}

// HandoffStopped implements owner.Events.
func (o *OwnerEvents) HandoffStopped(h owner.HandoffStopped) {
	o.bound().event(node.Sealed{Handoff: h.Handoff, Fact: h.Fact})
}

// OwnerLost implements owner.Events.
func (o *OwnerEvents) OwnerLost(l owner.OwnerLost) {
	o.mu.Lock()
	shell := o.shell
	if shell == nil {
		o.early = append(o.early, l) // one per rank at most
	}
	o.mu.Unlock()
	if shell == nil {
		return
	}
	shell.cfg.Log.Error("an owner is gone: the node is gated until it is restarted", "rank", int(l.Rank), "pid", l.PID, "why", l.Err)
	shell.event(node.OwnerLost{Rank: l.Rank, Why: l.Err.Error()})
}

// ChunkComputed implements engine.Events.
func (s *Shell) ChunkComputed(c engine.ChunkComputed) {
	s.cfg.Record(Line{
		Record: node.Record{Event: "COMPUTE", Fence: pd.Fence{Handoff: c.Handoff}, Chunk: c.Chunk, Span: c.Span},
		At:     c.Ended, Began: c.Began, Ended: c.Ended,
	})
	s.event(node.ChunkComputed{
		Handoff: c.Handoff, Partition: c.Partition, Chunk: c.Chunk, Span: c.Span, Final: c.Final,
		HitTokens: c.HitTokens, BootstrapSlot: c.BootstrapSlot, FirstToken: c.FirstToken,
	})
}

// GrantDecided says that the host of a lease.Deferred allocator has decided
// about a reservation's memory.
func (s *Shell) GrantDecided(h pd.HandoffID) { s.event(node.GrantDecided{Handoff: h}) }

// PrefillStopped implements engine.Events.
func (s *Shell) PrefillStopped(h pd.HandoffID, err error) {
	s.event(node.PrefillStopped{Handoff: h, Err: err})
}

// DecodeStopped implements engine.Events. The last output goes out once the
// node has retired the request.
func (s *Shell) DecodeStopped(h pd.HandoffID, last engine.Output) {
	s.mu.Lock()
	if s.byID[h] != nil {
		s.lasts[h] = last
	}
	s.mu.Unlock()
	s.event(node.DecodeStopped{Handoff: h, Err: last.Err})
}

// DecodeOutput implements engine.Events.
func (s *Shell) DecodeOutput(h pd.HandoffID, o engine.Output) {
	s.mu.Lock()
	p := s.byID[h]
	s.mu.Unlock()
	if p != nil {
		p.pipe.Send(o)
	}
}

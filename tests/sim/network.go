package sim

import (
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// caller is who makes control calls: a node's process or a router.
type caller interface {
	name() string
	site() int
	run(do func())
}

// outcall is one control call until its end is known to the caller.
type outcall struct {
	world *World
	from  caller
	done  bool
	after func(a any, err error)
}

// end ends a call after a while, unless something else does before.
func (c *outcall) end(d time.Duration, a any, err error) {
	c.world.after(d, func() {
		if c.done {
			return
		}
		c.done = true
		c.from.run(func() { c.after(a, err) })
	})
}

func (w *World) host(id pd.NodeID) *host {
	for _, h := range w.hosts {
		if h.id == id {
			return h
		}
	}
	return nil
}

// latency is the way of one message.
func (w *World) latency() time.Duration {
	return between(w.rand("latency"), 100*time.Microsecond, 3*time.Millisecond)
}

// cut says whether nothing passes between two sites now.
func (w *World) cut(a, b int) bool {
	return w.cuts[[2]int{min(a, b), max(a, b)}] > w.now
}

// healed is how long a cut between two sites lasts from now.
func (w *World) healed(a, b int) time.Duration {
	return max(0, w.cuts[[2]int{min(a, b), max(a, b)}]-w.now)
}

// call makes one control call. The message crosses the wire in its real form.
// after runs once, in the caller, if it still lives.
func (w *World) call(from caller, to *host, message any, timeout time.Duration, after func(a any, err error)) *outcall {
	w.tally.Calls++
	c := &outcall{world: w, from: from, after: after}
	name := wire.Name(message)
	c.end(timeout, nil, &pd.Error{Op: name, Code: pd.CodeDeadline, Node: to.id, Text: "no answer in time"})
	unreachable := gone(to, name)
	body, err := wire.Encode(message)
	if err != nil {
		c.end(0, nil, err)
		return c
	}
	if w.cut(from.site(), to.site) {
		return c
	}
	if w.hit(ControlLostRequest, 0.015) {
		w.happened(ControlLostRequest)
		w.broke(c, unreachable)
		return c
	}
	delay := w.latency()
	switch _, reserve := message.(wire.Reserve); {
	case reserve && w.hit(ReserveAfterAbort, 0.08):
		// It arrives when its handoff is long over.
		delay = between(w.rand("late reserve"), 10*time.Millisecond, 2*w.set.handoffTimeout)
		w.broke(c, unreachable)
		w.note(from.name(), "reserve delayed", fenceOf(message).Handoff, "by %v", delay)
	case w.hit(ControlReorder, 0.02):
		w.happened(ControlReorder)
		delay = w.slow()
	}
	// A message comes twice when its caller has sent it again over a new
	// connection: nobody reads the first answer.
	muted := w.hit(ControlDuplicate, 0.06)
	arrive := func() {
		p, mute := to.proc, muted
		muted = false
		if p == nil && mute {
			return
		}
		if p == nil {
			c.end(w.latency(), nil, &pd.Error{Op: name, Code: pd.CodePeerUnreachable, Node: to.id, Text: "no connection"})
			return
		}
		p.run(func() { w.arrived(c, p, body, message, mute) })
	}
	w.after(delay, arrive)
	if muted {
		w.happened(ControlDuplicate)
		w.after(delay+between(w.rand("duplicate"), 0, pick(w.rand("duplicate"), 5*time.Millisecond, time.Second, w.set.handoffTimeout)), arrive)
	}
	return c
}

// slow is the way of a message that others overtake.
func (w *World) slow() time.Duration {
	r := w.rand("reorder")
	return between(r, 10*time.Millisecond, pick(r, time.Second, w.set.handoffTimeout, 2*w.set.handoffTimeout))
}

func gone(to *host, op string) error {
	return &pd.Error{Op: op, Code: pd.CodePeerUnreachable, Node: to.id, Text: "the connection ended before the answer"}
}

// broke: the caller sees its connection end soon, or nothing until its timeout.
func (w *World) broke(c *outcall, err error) {
	if r := w.rand("broke"); r.IntN(2) == 0 {
		c.end(between(r, 0, 2*time.Second), nil, err)
	}
}

// arrived hands a message to a process and carries its answer back, unless
// nobody reads it.
func (w *World) arrived(c *outcall, p *process, body []byte, sent any, mute bool) {
	to := p.host
	unreachable := gone(to, wire.Name(sent))
	back := func(a any, err error) {
		if mute || w.cut(c.from.site(), to.site) {
			return
		}
		if w.hit(ControlLostReply, 0.015) {
			w.happened(ControlLostReply)
			w.broke(c, unreachable)
			return
		}
		delay := w.latency()
		if w.hit(ControlReorder, 0.02) {
			w.happened(ControlReorder)
			delay = w.slow()
		}
		if err != nil {
			_, failure := wire.FailureOf(err)
			c.end(delay, nil, failure.Err(wire.Name(sent), to.id))
			return
		}
		if s, ok := a.(wire.Session); ok {
			s.Nonce = sent.(wire.Session).Nonce
			a = s
		}
		a, err = recode(a)
		c.end(delay, a, err)
	}
	message, err := decode(sent, body)
	if err != nil {
		back(nil, err)
		return
	}
	if r, ok := message.(wire.Reserve); ok && p.host.role == pd.Decode {
		w.check.reserveArrived(p, &r)
	}
	p.called(message, &inbound{reply: back, lost: func() {
		if !mute {
			c.end(w.latency(), nil, unreachable)
		}
	}})
}

// decode reads a message in its wire form; like names its type.
func decode(like any, body []byte) (any, error) {
	switch like.(type) {
	case wire.Session:
		return boxed(wire.Decode[wire.Session](body))
	case wire.Reserve:
		return boxed(wire.Decode[wire.Reserve](body))
	case wire.Chunk:
		return boxed(wire.Decode[wire.Chunk](body))
	case wire.Results:
		return boxed(wire.Decode[wire.Results](body))
	case wire.Commit:
		return boxed(wire.Decode[wire.Commit](body))
	case wire.Abort:
		return boxed(wire.Decode[wire.Abort](body))
	case wire.StatusQuery:
		return boxed(wire.Decode[wire.StatusQuery](body))
	case wire.SourceStopped:
		return boxed(wire.Decode[wire.SourceStopped](body))
	case wire.Reserved:
		return boxed(wire.Decode[wire.Reserved](body))
	case wire.ChunkAck:
		return boxed(wire.Decode[wire.ChunkAck](body))
	case wire.Ack:
		return boxed(wire.Decode[wire.Ack](body))
	case wire.Committed:
		return boxed(wire.Decode[wire.Committed](body))
	case wire.Status:
		return boxed(wire.Decode[wire.Status](body))
	}
	panic("sim: a message of an unknown type")
}

func boxed[T any](m T, err error) (any, error) { return m, err }

// recode sends an answer through its wire form.
func recode(a any) (any, error) {
	body, err := wire.Encode(a)
	if err != nil {
		return nil, err
	}
	return decode(a, body)
}

// ask gives an operator's order to a process over its local socket.
func (p *process) ask(order any, after func(a any, err error)) {
	p.run(func() {
		p.called(order, &inbound{
			reply: func(a any, err error) { p.host.world.after(time.Millisecond, func() { after(a, err) }) },
			lost:  func() { after(nil, pd.CodePeerUnreachable) },
		})
	})
}

// described is what a node answers to whoever asks for its descriptor.
type described struct {
	boot   pd.BootID
	health pd.Health
}

func (p *process) describe() described { return described{p.peer.Boot, p.node.Snapshot().Health} }

// probe asks a host for its descriptor.
func (w *World) probe(from caller, to *host, timeout time.Duration, after func(d described, ok bool)) {
	done := false
	end := func(d time.Duration, v described, ok bool) {
		w.after(d, func() {
			if !done {
				done = true
				from.run(func() { after(v, ok) })
			}
		})
	}
	end(timeout, described{}, false)
	if w.cut(from.site(), to.site) {
		return
	}
	w.after(w.latency(), func() {
		if to.proc == nil {
			end(w.latency(), described{}, false)
			return
		}
		p := to.proc
		p.run(func() {
			if !w.cut(from.site(), to.site) {
				end(w.latency(), p.describe(), true)
			}
		})
	})
}

var _ caller = (*process)(nil)

// postID draws the name of a POST that arrived.
func (p *process) postID() node.PostID {
	p.serial++
	return node.PostID(p.serial)
}

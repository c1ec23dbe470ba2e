package sim

import (
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// leg is one POST of a router to one side of a handoff.
type leg struct {
	// constant
	world  *World
	flight *flight
	role   pd.Role
	host   *host

	proc *process
	post node.PostID
	// closed: the router has left; over: the node has ended it, or is gone.
	closed, over bool
	seen         bool // the node knows that the router has left
	headed       bool
	// arrives is when the last piece of the answer arrives: pieces of one
	// connection do not overtake each other.
	arrives time.Duration
}

// send makes the POST.
func (l *leg) send() {
	w := l.world
	if w.hit(PostNeverArrives, 0.03) {
		w.happened(PostNeverArrives)
		w.note(l.host.name, "post lost", l.handoff(), "")
		return
	}
	if w.cut(l.flight.router.site(), l.host.site) {
		return
	}
	delay := w.latency()
	if w.hit(ControlReorder, 0.04) {
		// The slower leg is much slower.
		delay = between(w.rand("slow leg"), 0, w.set.handoffTimeout/2)
	}
	w.after(delay, func() {
		p := l.host.proc
		if p == nil {
			w.after(w.latency(), func() { l.flight.failed(l, true) })
			return
		}
		p.run(l.arrive)
	})
}

func (l *leg) handoff() pd.HandoffID { return l.flight.fence.Handoff }

// arrive is the request at its node. One whose router has left already may
// still reach the handler, which learns of it right after.
func (l *leg) arrive() {
	w, p := l.world, l.host.proc
	if p == nil || l.flight.router.dead || l.closed && w.rand("pipelined").IntN(2) == 0 {
		return
	}
	l.proc, l.post = p, p.postID()
	p.posts[l.post] = l
	if p.byID[l.handoff()] == nil {
		p.byID[l.handoff()] = l
	}
	w.check.posted(p, l)
	f := l.flight.fence
	if l.role == pd.Decode {
		p.step(node.DecodePosted{Post: l.post, Fence: f, Stream: l.flight.client.stream})
	} else {
		c := l.flight.client.continuation()
		hash, err := wire.MetadataHash(c)
		if err != nil {
			panic(err)
		}
		digest, err := wire.PreparedDigest(hash)
		if err != nil {
			panic(err)
		}
		p.step(node.PrefillPosted{Post: l.post, Fence: f, Continuation: c, MetadataHash: hash, PreparedDigest: digest})
	}
	if l.closed && !l.over {
		l.tell()
	}
}

// close is the router leaving.
func (l *leg) close() {
	if l.closed {
		return
	}
	l.closed = true
	if l.proc != nil && !l.over {
		l.tell()
	}
}

// tell lets the node see that the router has left.
func (l *leg) tell() {
	w := l.world
	if w.hit(PostClosedUnseen, 0.3) {
		w.happened(PostClosedUnseen)
		w.note(l.host.name, "close unseen", l.handoff(), "")
		return
	}
	p := l.proc
	w.after(w.latency()+w.healed(l.flight.router.site(), l.host.site), func() {
		p.run(func() {
			if !l.over {
				l.seen = true
				w.check.closed(p, l)
				p.step(node.PostClosed{Post: l.post})
			}
		})
	})
}

// toRouter delivers a piece of the answer, in order.
func (l *leg) toRouter(do func()) {
	w := l.world
	at := w.now + w.latency() + w.healed(l.flight.router.site(), l.host.site)
	l.arrives = max(l.arrives, at)
	w.after(l.arrives-w.now, func() {
		if !l.closed && !l.flight.router.dead {
			do()
		}
	})
}

// accepted: the node has decided that the request runs.
func (l *leg) accepted() {
	if l.flight.client.stream {
		l.toRouter(func() { l.head() })
	}
}

func (l *leg) head() {
	if !l.headed {
		l.headed = true
		l.flight.headed(l)
	}
}

// output carries tokens.
func (l *leg) output(o engine.Output) {
	l.toRouter(func() { l.flight.client.tokens = append(l.flight.client.tokens, o.Tokens...) })
}

// ended is the end of the answer, or a refusal.
func (l *leg) ended(last engine.Output, err error) {
	l.over = true
	l.toRouter(func() {
		if err == nil {
			l.head()
		}
		l.flight.ended(l, last, err)
	})
}

// lost: the node's process is gone.
func (l *leg) lost(audible bool) {
	l.over = true
	if audible {
		l.toRouter(func() { l.flight.failed(l, false) })
		return
	}
	// Nothing ends the connection but the router's own bound between two reads.
	l.world.after(l.world.set.requestTimeout, func() {
		if !l.closed && !l.flight.router.dead && !l.flight.over[l.role] {
			l.flight.failed(l, false)
		}
	})
}

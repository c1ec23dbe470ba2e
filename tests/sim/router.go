package sim

import (
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// router is a model of the PD router: it behaves as router/pdrouter does
// towards nodes.
type router struct {
	// constant
	world *World
	index int
	// heartless routers state a stop fact with their aborts, which nodes must
	// not believe.
	heartless bool

	dead    bool
	boots   int
	nodes   []*seen
	flights map[pd.HandoffID]*flight
	cursors [2]int
}

// seen is what a router knows of one node.
type seen struct {
	host  *host
	said  described
	known bool
	slots map[slotKey]bool // value: unconfirmed
}

type slotKey struct {
	boot    pd.BootID
	handoff pd.HandoffID
}

// flight is one request on its way through a pair.
type flight struct {
	// constant
	router *router
	client *client
	fence  pd.Fence
	legs   [3]*leg

	over, asking [3]bool
	headDecode   bool
	refused      error
	answered     bool
}

const (
	pollInterval = time.Second
	pollTimeout  = 2 * time.Second
)

func (w *World) newRouter(index int) *router {
	r := &router{world: w, index: index, heartless: w.rand("router").IntN(3) == 0}
	r.start()
	return r
}

func (r *router) name() string { return "R" + string(rune('0'+r.index)) }
func (r *router) site() int    { return 100 + r.index }

func (r *router) run(do func()) {
	if !r.dead {
		do()
	}
}

// start begins a life that knows nothing of the one before.
func (r *router) start() {
	w := r.world
	r.dead, r.boots = false, r.boots+1
	r.nodes, r.flights = nil, map[pd.HandoffID]*flight{}
	for _, h := range w.hosts {
		r.nodes = append(r.nodes, &seen{host: h, slots: map[slotKey]bool{}})
	}
	w.note(r.name(), "start", "", "number %d", r.boots)
	for _, s := range r.nodes {
		r.poll(s, r.boots)
	}
}

func (r *router) poll(s *seen, life int) {
	w := r.world
	w.probe(r, s.host, pollTimeout, func(d described, ok bool) {
		if r.boots != life {
			return
		}
		if s.known = ok; ok {
			s.said = d
			for key := range s.slots {
				if key.boot != d.boot {
					delete(s.slots, key)
				}
			}
		}
		w.after(pollInterval, func() {
			if r.boots == life && !r.dead {
				r.poll(s, life)
			}
		})
	})
}

// crash closes every connection; nobody is told anything.
func (r *router) crash() {
	w := r.world
	w.note(r.name(), "crash", "", "")
	r.dead = true
	for _, h := range sorted(r.flights) { // answering does not shorten the list of a dead router
		f := r.flights[h]
		f.answer(nil, pd.CodeUpstreamInterrupted)
		for _, l := range f.legs {
			if l != nil {
				l.close()
			}
		}
	}
}

// fit says whether a node may get a new request.
func (r *router) fit(s *seen) bool {
	return s.known && s.said.health == pd.Ready && len(s.slots) < r.world.set.capacity
}

// choose takes the next pair of free nodes, as pdrouter's round robin does.
func (r *router) choose() (p, d *seen) {
	var sides [2][]*seen
	for _, s := range r.nodes {
		sides[s.host.role-1] = append(sides[s.host.role-1], s)
	}
	var got [2]*seen
	for i, nodes := range sides {
		for k := range nodes {
			at := (r.cursors[i] + k) % len(nodes)
			if r.fit(nodes[at]) {
				got[i], r.cursors[i] = nodes[at], (at+1)%len(nodes)
				break
			}
		}
	}
	return got[0], got[1]
}

// take begins a request; false if there is no pair for it.
func (r *router) take(c *client) bool {
	p, d := r.choose()
	if c.pair[0] != nil {
		p, d = r.nodes[c.pair[0].site], r.nodes[c.pair[1].site]
		if !r.fit(p) || !r.fit(d) {
			p = nil
		}
	}
	if p == nil || d == nil {
		return false
	}
	r.world.tally.Handoffs++
	f := &flight{router: r, client: c, fence: pd.Fence{
		Request: pd.RequestID("cmpl-" + c.name), Handoff: pd.HandoffID(r.world.hexID("handoff")), Run: runID,
		Prefill: pd.Peer{Node: p.host.id, Boot: p.said.boot}, Decode: pd.Peer{Node: d.host.id, Boot: d.said.boot},
	}}
	c.flight = f
	r.flights[f.fence.Handoff] = f
	r.world.flights[f.fence.Handoff] = f
	r.world.note(r.name(), "request", f.fence.Handoff, "%s %v to %s and %s", c.name, c.prompt, p.host.name, d.host.name)
	for _, s := range []*seen{p, d} {
		s.slots[slotKey{s.said.boot, f.fence.Handoff}] = false
		f.legs[s.host.role] = &leg{world: r.world, flight: f, role: s.host.role, host: s.host}
	}
	f.legs[pd.Prefill].send()
	f.legs[pd.Decode].send()
	wait := r.world.set.requestTimeout
	f.expire(f.legs[pd.Prefill], wait)
	if c.stream {
		wait = r.world.set.handoffTimeout
	}
	f.expire(f.legs[pd.Decode], wait)
	return true
}

// expire fails a leg whose answer does not begin in time.
func (f *flight) expire(l *leg, wait time.Duration) {
	w := f.router.world
	w.after(wait, func() {
		if !l.headed && !l.closed && !f.over[l.role] && !f.router.dead {
			w.note(f.router.name(), "head timeout", f.fence.Handoff, "%s", l.host.name)
			f.failed(l, false)
		}
	})
}

func (f *flight) seen(role pd.Role) *seen { return f.router.nodes[f.legs[role].host.site] }

func (f *flight) peer(role pd.Role) pd.Peer {
	if role == pd.Prefill {
		return f.fence.Prefill
	}
	return f.fence.Decode
}

// free gives a side's slot back.
func (f *flight) free(role pd.Role) {
	f.over[role] = true
	delete(f.seen(role).slots, slotKey{f.peer(role).Boot, f.fence.Handoff})
	f.forget()
}

func (f *flight) forget() {
	if f.answered && f.over[pd.Prefill] && f.over[pd.Decode] {
		delete(f.router.flights, f.fence.Handoff)
	}
}

// answer ends the client's request.
func (f *flight) answer(last *engine.Output, err error) {
	if !f.answered {
		f.answered = true
		f.client.end(last, err)
		f.forget()
	}
}

func (f *flight) headed(l *leg) {
	if l.role == pd.Decode {
		f.headDecode = true
		if f.refused != nil {
			f.prefillFailedLate()
		}
	}
}

// ended takes a leg's whole answer in.
func (f *flight) ended(l *leg, last engine.Output, err error) {
	if l.role == pd.Prefill {
		f.free(pd.Prefill)
		if err != nil {
			f.prefillFailed(err)
		}
		return
	}
	switch {
	case err == nil:
		f.free(pd.Decode)
		f.answer(&last, nil)
	case !f.headDecode:
		f.free(pd.Decode)
		f.refuse(err)
	default:
		f.refuse(err) // an error in the stream: decode is asked whether it is over
	}
}

// failed takes in that a leg broke, or was never connected.
func (f *flight) failed(l *leg, dial bool) {
	err := pd.Errorf(pd.CodePeerUnreachable, "forward", "%s is gone", l.host.name)
	if dial {
		f.free(l.role)
	}
	if l.role == pd.Prefill {
		f.prefillFailed(err)
		return
	}
	f.refuse(err)
}

func (f *flight) prefillFailed(err error) {
	f.refused = err
	if f.headDecode {
		f.prefillFailedLate()
		return
	}
	f.refuse(err)
}

// refuse ends the request for the client and on both nodes.
func (f *flight) refuse(err error) {
	f.answer(nil, err)
	f.abandon(outcome(err))
}

// abandon closes both legs and asks both nodes until they confirm the end.
func (f *flight) abandon(reason string) {
	f.confirm(pd.Decode, reason)
	f.confirm(pd.Prefill, reason)
	f.legs[pd.Decode].close()
	f.legs[pd.Prefill].close()
}

func (f *flight) confirm(role pd.Role, reason string) {
	if f.over[role] || f.asking[role] {
		return
	}
	f.asking[role] = true
	s := f.seen(role)
	key := slotKey{f.peer(role).Boot, f.fence.Handoff}
	if _, held := s.slots[key]; !held {
		f.over[role] = true
		return
	}
	s.slots[key] = true
	f.ask(role, reason, pd.FactAskFirst)
}

// ask aborts one side until its node says that it is over there.
func (f *flight) ask(role pd.Role, reason string, pause time.Duration) {
	r, s := f.router, f.seen(role)
	key := slotKey{f.peer(role).Boot, f.fence.Handoff}
	if _, held := s.slots[key]; !held {
		f.over[role] = true
		f.forget()
		return
	}
	life := r.boots
	r.world.call(r, s.host, f.abort(reason), r.world.set.handoffTimeout, func(a any, err error) {
		if r.boots != life {
			return
		}
		if settled(a, err) {
			f.free(role)
			return
		}
		r.world.after(pause, func() {
			if r.boots == life && !r.dead {
				f.ask(role, reason, min(2*pause, pd.FactAskMost))
			}
		})
	})
}

// abort is the router's word to a node. Some routers state what they cannot
// know.
func (f *flight) abort(reason string) wire.Abort {
	a := wire.Abort{Fence: f.fence, From: "router", Reason: reason}
	if f.router.heartless {
		a.Fact = pd.NeverSubmitted
	}
	return a
}

// settled says that a node's answer means that it runs the handoff no more.
func settled(a any, err error) bool {
	if err != nil {
		code := pd.CodeOf(err)
		return code == pd.CodeStaleBoot || code == pd.CodeUnknownKey
	}
	switch a.(wire.Status).State {
	case "Retired", "Completed", "Aborted", "Quarantined":
		return true
	}
	return false
}

// prefillFailedLate: decode's answer has begun. If decode does not own the
// request yet, it is told.
func (f *flight) prefillFailedLate() {
	r := f.router
	f.confirm(pd.Prefill, "its answer was lost")
	if f.over[pd.Decode] || f.asking[pd.Decode] {
		return
	}
	life := r.boots
	to, timeout := f.legs[pd.Decode].host, r.world.set.handoffTimeout
	r.world.call(r, to, wire.StatusQuery{Fence: f.fence}, timeout, func(a any, err error) {
		if r.boots != life || err != nil || a.(wire.Status).Admitted || f.over[pd.Decode] {
			return
		}
		r.world.call(r, to, f.abort("prefill failed"), timeout, func(any, error) {})
	})
}

package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// settle is the liveness phase: faults end, and everything must come to rest.
func (w *World) settle() {
	w.calm, w.calmAt = true, w.now
	w.note("-", "calm", "", "faults end")
	clear(w.cuts)
	for _, h := range w.hosts {
		switch {
		case h.proc == nil:
			h.start(time.Second)
		case h.proc.paused != nil:
			h.proc.resume()
		}
		if h.proc != nil {
			h.proc.crashIn = -1
		}
	}
	for _, rt := range w.routers {
		if rt.dead {
			rt.start()
		}
	}
	w.drains("AfterFaultsStopAllDrains")
	w.mends()
	w.admits()
	w.crowd()
	w.drains("AfterFaultsStopAllDrains")
	w.rests()
}

// patience is how long an ordinary end may take: a request's own time, the
// waits for facts behind it, and the operator.
func (w *World) patience() time.Duration {
	return w.set.requestTimeout + 4*w.set.handoffTimeout + 4*pd.FactAskMost + 2*time.Minute
}

// drains waits until no request is in progress anywhere.
func (w *World) drains(invariant string) {
	end := w.now + w.patience()
	for w.busy() != "" {
		if w.now >= end {
			w.broken(invariant, "%v after the faults have ended: %s", w.patience(), w.busy())
		}
		w.runUntil(w.now+time.Second, nil)
	}
}

// busy says what is in progress, "" for nothing.
func (w *World) busy() string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, c := range w.clients {
		if !c.done {
			say("request %s has no end", c.name)
		}
	}
	for _, h := range w.hosts {
		if h.proc == nil {
			say("%s does not run", h.name)
			continue
		}
		s := h.proc.node.Snapshot()
		if s.Capacity.Active > 0 || s.Capacity.Reservations > s.Capacity.Quarantined {
			say("%s has %d requests and %d reservations, %d of them quarantined", h.name, s.Capacity.Active, s.Capacity.Reservations, s.Capacity.Quarantined)
		}
		if n := len(h.proc.posts); n > 0 {
			say("%s has %d open posts", h.name, n)
		}
		if rest := h.proc.owners.atRest(); rest != "" {
			say("%s: %s", h.name, rest)
		}
	}
	for _, rt := range w.routers {
		for _, s := range rt.nodes {
			if len(s.slots) > 0 {
				say("%s holds %d slots of %s", rt.name(), len(s.slots), s.host.name)
			}
		}
	}
	return strings.Join(out, "; ")
}

// mends waits until every node is ready: gates whose proof exists end by
// themselves within two polls, the others by the operator, who is at work all
// the time.
func (w *World) mends() {
	end := w.now + w.patience()
	for {
		waiting := ""
		for _, h := range w.hosts {
			if p := h.proc; p == nil || p.node.Snapshot().Health != pd.Ready || p.owners.lostRank() {
				waiting = h.name
			}
		}
		if waiting == "" {
			return
		}
		if w.now >= end {
			w.broken("GateEndsWhenProofExists", "%s is not ready %v after the faults have ended", waiting, w.patience())
		}
		w.runUntil(w.now+time.Second, nil)
	}
}

// admits sends one request through every pair.
func (w *World) admits() {
	w.runUntil(w.now+3*time.Second, nil) // the routers have looked
	for _, p := range w.hosts {
		for _, d := range w.hosts {
			if p.role == pd.Prefill && d.role == pd.Decode {
				w.probePair(p, d)
			}
		}
	}
}

// crowd sends more requests at once than fit. Whoever is refused is refused at
// once; whoever is taken in is served. Nobody may wait for somebody who waits for
// him: that would end with a time, and no time may end anything now.
func (w *World) crowd() {
	var all []*client
	for i := range 2 * w.set.capacity {
		c := w.newClient(fmt.Sprintf("crowd-%d", i))
		all = append(all, c)
		w.after(between(w.rand("crowd"), 0, 50*time.Millisecond), func() { c.send(w.routers[i%len(w.routers)]) })
	}
	done := func() bool { return !slices.ContainsFunc(all, func(c *client) bool { return !c.done }) }
	w.runUntil(w.now+w.patience(), done)
	served := 0
	for _, c := range all {
		switch {
		case !c.done || pd.CodeOf(c.err) == pd.CodeDeadline:
			w.broken("NoWaitCycle", "request %s waits for what waits for it: %v", c.name, c.err)
		case c.err == nil:
			served++
		}
	}
	if served == 0 {
		w.broken("NoWaitCycle", "nobody of a crowd of %d was served, last: %v", len(all), all[len(all)-1].err)
	}
}

// probePair wants one right answer through a pair within a few tries.
func (w *World) probePair(p, d *host) {
	var last error
	for range 3 {
		c := w.newClient(fmt.Sprintf("probe-%s-%s", p.name, d.name))
		c.pair = [2]*host{p, d}
		w.after(0, func() { c.send(w.routers[0]) })
		w.runUntil(w.now+w.patience(), func() bool { return c.done })
		if !c.done {
			w.broken("HealthyPairAdmits", "a request through %s and %s has no end", p.name, d.name)
		}
		if last = c.err; last == nil {
			return
		}
		w.runUntil(w.now+5*time.Second, nil)
	}
	w.broken("HealthyPairAdmits", "%s and %s are healthy and refuse: %v", p.name, d.name, last)
}

// rests waits until every counter is back at zero.
func (w *World) rests() {
	end := w.now + w.patience()
	for w.residue() != "" {
		if w.now >= end {
			w.broken("CountersZeroAtRest", "%s", w.residue())
		}
		w.runUntil(w.now+time.Second, nil)
	}
	for _, h := range w.hosts {
		w.check.capacity(h.proc)
	}
}

// residue says what is not back at zero, "" if all is.
func (w *World) residue() string {
	for _, h := range w.hosts {
		p := h.proc
		s := p.node.Snapshot()
		if s.Capacity.Active != 0 || s.Capacity.Reservations != 0 || s.Capacity.Quarantined != 0 || s.Pins != 0 || len(s.Gates) != 0 {
			return fmt.Sprintf("%s: %+v, %d pins, %d gates", h.name, s.Capacity, s.Pins, len(s.Gates))
		}
		for _, g := range sorted(s.Pages) {
			if u := s.Pages[g]; u.Held != 0 || u.Free != u.Total || u.Quarantined != 0 {
				return fmt.Sprintf("%s group %s: %+v", h.name, g, u)
			}
		}
		if n := len(p.calls) + len(p.outgoing) + len(p.byID) + len(p.prompts); n != 0 {
			return fmt.Sprintf("%s: %d calls wait, %d are made, %d posts, %d prompts", h.name, len(p.calls), len(p.outgoing), len(p.byID), len(p.prompts))
		}
	}
	return ""
}

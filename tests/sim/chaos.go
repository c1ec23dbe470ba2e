package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// trouble is a kind of fault that comes at times rather than with messages.
type trouble struct {
	kind Fault
	// every is the mean time between two.
	every time.Duration
	do    func(w *World)
}

func troubles() []trouble {
	return []trouble{
		{NodeCrashBetweenEffects, 5 * time.Second, (*World).crashSome},
		{NodePaused, 5 * time.Second, (*World).pauseSome},
		{OwnerCrashNodeAlive, 8 * time.Second, (*World).loseSomeOwner},
		{ControlBlackhole, 6 * time.Second, (*World).cutSome},
		{RouterCrash, 6 * time.Second, (*World).crashSomeRouter},
		{BothSigterm, 10 * time.Second, (*World).stopSomePair},
		{TombstoneEvicted, 10 * time.Second, (*World).storm},
		{FalseDeathClaim, 3 * time.Second, (*World).claimDeath},
		{SenderDeadBytesInFlight, 6 * time.Second, (*World).crashSomeSender},
		{StaleWriteToNewBoot, 6 * time.Second, (*World).crashSomeTarget},
		{PredecessorAliveAtStart, 8 * time.Second, (*World).crashSome},
		{FenceDuringTransfer, 2 * time.Second, (*World).fenceSome},
	}
}

// unleash lets every active trouble come at its times.
func (w *World) unleash() {
	for _, t := range troubles() {
		if !w.set.active.Has(t.kind) {
			continue
		}
		r := w.rand("times of " + t.kind.String())
		var next func()
		next = func() {
			every := time.Duration(float64(t.every) / w.intensity())
			w.after(between(r, every/4, 2*every), func() {
				if w.calm {
					return
				}
				if w.troubled() {
					t.do(w)
				}
				next()
			})
		}
		next()
	}
}

// some picks a running process of a role; nil if there is none. Zero is any.
func (w *World) some(role pd.Role, purpose string) *process {
	var up []*process
	for _, h := range w.hosts {
		if h.proc != nil && (role == 0 || h.role == role) {
			up = append(up, h.proc)
		}
	}
	if len(up) == 0 {
		return nil
	}
	return up[w.rand(purpose).IntN(len(up))]
}

// crashSoon crashes a process between two of its next effects and starts its
// host again after a while.
func (w *World) crashSoon(p *process) {
	if p == nil || p.crashIn >= 0 {
		return
	}
	r := w.rand("crash")
	p.crashIn = r.IntN(40)
	p.host.start(between(r, 200*time.Millisecond, 8*time.Second))
	// A process without events crashes, too.
	w.after(between(r, 50*time.Millisecond, 2*time.Second), func() {
		if !p.dead && !w.calm {
			p.crash(r.IntN(3) > 0)
		}
	})
}

// killSoon crashes a process within moments and starts its host again.
func (w *World) killSoon(p *process) {
	r := w.rand("kill")
	w.after(between(r, 0, 10*time.Millisecond), func() {
		if !p.dead && !w.calm {
			p.crash(r.IntN(3) > 0)
			p.host.start(between(r, 200*time.Millisecond, 8*time.Second))
		}
	})
}

func (w *World) crashSome() { w.crashSoon(w.some(0, "who crashes")) }

// busySender is a prefill process that has writes in flight.
func (w *World) busySender() *process {
	for _, b := range w.data.live {
		if p := b.source.owners.proc; !p.dead {
			return p
		}
	}
	return w.some(pd.Prefill, "who crashes")
}

func (w *World) crashSomeSender() { w.crashSoon(w.busySender()) }

func (w *World) crashSomeTarget() {
	for _, b := range w.data.live {
		if p := b.target.rank.owners.proc; !p.dead {
			w.crashSoon(p)
			return
		}
	}
	w.crashSoon(w.some(pd.Decode, "who crashes"))
}

func (w *World) pauseSome() {
	if p := w.some(0, "who pauses"); p != nil {
		r := w.rand("pause")
		p.pauseFor(between(r, 50*time.Millisecond, pick(r, 900*time.Millisecond, 5*time.Second, 2*w.set.handoffTimeout)))
	}
}

func (w *World) loseSomeOwner() {
	if p := w.some(0, "whose owner"); p != nil {
		p.owners.lose(w.rand("whose owner").IntN(ranks))
	}
}

// cutSome lets nothing pass between two sites for a while.
func (w *World) cutSome() {
	r := w.rand("cut")
	var sites []int
	for _, h := range w.hosts {
		sites = append(sites, h.site)
	}
	for _, rt := range w.routers {
		sites = append(sites, rt.site())
	}
	a, b := pick(r, sites...), pick(r, sites...)
	if a == b {
		return
	}
	w.happened(ControlBlackhole)
	long := between(r, w.set.handoffTimeout, 2*w.set.handoffTimeout)
	w.cuts[[2]int{min(a, b), max(a, b)}] = w.now + long
	w.note("net", "blackhole", "", "between %d and %d for %v", a, b, long)
}

func (w *World) crashSomeRouter() {
	rt := pick(w.rand("who crashes"), w.routers...)
	if rt.dead {
		return
	}
	w.happened(RouterCrash)
	rt.crash()
	w.after(between(w.rand("restart"), 100*time.Millisecond, 5*time.Second), rt.start)
}

// stopSomePair sends SIGTERM to a prefill and a decode node at once.
func (w *World) stopSomePair() {
	p, d := w.some(pd.Prefill, "who stops"), w.some(pd.Decode, "who stops")
	if p == nil || d == nil || p.draining || d.draining {
		return
	}
	w.happened(BothSigterm)
	w.note("ops", "sigterm", "", "%s and %s", p.name(), d.name())
	p.run(p.drain)
	d.run(d.drain)
}

// storm aborts so many unknown handoffs that every tombstone is evicted.
func (w *World) storm() {
	p := w.some(0, "storm")
	if p == nil || p.paused != nil {
		return
	}
	w.happened(TombstoneEvicted)
	w.note("net", "cancel storm", "", "at %s", p.name())
	for i := range pd.MaxTombstones + 1 {
		f := pd.Fence{Request: "storm", Handoff: pd.HandoffID(fmt.Sprintf("%016x%016x", p.serial, i)), Run: runID}
		other := pd.Peer{Boot: pd.BootID(fmt.Sprintf("%032x", 1))}
		for _, h := range w.hosts {
			if h.role != p.host.role {
				other.Node = h.id
				break
			}
		}
		f.Prefill, f.Decode = p.peer, other
		if p.host.role == pd.Decode {
			f.Prefill, f.Decode = other, p.peer
		}
		p.serial++
		// The answers interest nobody; the node has only ended handoffs to forget.
		p.node.Step(node.Called{Call: node.CallID(p.serial), Message: wire.Abort{Fence: f, From: "router", Reason: "storm"}}, p.clock())
	}
	w.check.after(p)
	p.arm()
}

// claimDeath: somebody tells a decode node that a living prefill boot is dead.
func (w *World) claimDeath() {
	d, p := w.some(pd.Decode, "claim"), w.some(pd.Prefill, "claim")
	// It hurts most where decode has just acknowledged a chunk.
	for _, l := range w.check.open() {
		dead, living := w.host(l.fence.Prefill.Node).proc, w.host(l.fence.Decode.Node).proc
		if dead != nil && living != nil && dead.peer == l.fence.Prefill && living.peer == l.fence.Decode {
			d, p = living, dead
			break
		}
	}
	// Without a fence that proves, the operator's word is all there is; people
	// must not lie to such a data plane.
	if d == nil || p == nil || !w.set.fenceProves {
		return
	}
	w.happened(FalseDeathClaim)
	w.note("ops", "false claim", "", "%s is told that %s is dead", d.name(), p.name())
	for _, l := range w.check.leases {
		if l.boot == d.peer.Boot && l.fence.Prefill == p.peer {
			w.check.claimed[l.key] = true // decode asks a dead boot no more
		}
	}
	d.ask(node.DeathOrder{Boot: p.peer.Boot}, func(any, error) {})
}

// fenceSome orders a fence wherever one is of use, without waiting.
func (w *World) fenceSome() {
	for _, h := range w.hosts {
		if h.proc != nil && h.role == pd.Decode && len(h.proc.node.Gates()) > 0 {
			h.proc.ask(node.FenceOrder{}, func(any, error) {})
		}
	}
}

// operate is an operator who looks now and then and ends gates as the guide
// says: by a fence where there is one, by a restart else.
func (w *World) operate() {
	r := w.rand("operator")
	w.after(between(r, 500*time.Millisecond, 3*time.Second), func() {
		for _, h := range w.hosts {
			p := h.proc
			if p != nil && p.owners.lostRank() && r.IntN(3) == 0 {
				// A node does not mend a dead owner; requests through it fail.
				w.restart(p)
				continue
			}
			if p != nil && w.proofMustCome(p) {
				continue
			}
			if p == nil || p.gatedAt == 0 || p.paused != nil || w.now-p.gatedAt < w.waitBefore(r) {
				continue
			}
			w.relieve(p, r.IntN(4))
		}
		w.operate()
	})
}

// waitBefore is how long an operator leaves a gated node alone.
func (w *World) waitBefore(r *rand.Rand) time.Duration {
	if w.set.patient {
		return between(r, w.set.handoffTimeout, w.set.handoffTimeout+pd.FactAskMost)
	}
	return between(r, 500*time.Millisecond, 5*time.Second)
}

// proofMustCome says, once the faults have ended, that prefill knows what would
// end each gate of a decode node, and is there to be asked. Then the operator
// waits, and the gates must end by themselves: within two polls, behind a call
// that was lost before.
func (w *World) proofMustCome(p *process) bool {
	gates := p.node.Gates()
	if !w.calm || p.host.role != pd.Decode || len(gates) == 0 {
		return false
	}
	for _, g := range gates {
		source := w.host(g.Peer.Node)
		if source == nil || source.proc == nil || source.proc.peer != g.Peer || w.check.claimed[key{p.peer.Boot, g.Handoff}] {
			return false
		}
		k := key{g.Peer.Boot, g.Handoff}
		if r := source.proc.owners.records[g.Handoff]; w.check.unclear[k] || r != nil && r.open > 0 {
			return false
		}
	}
	if since := max(p.gatedAt, w.calmAt); w.now-since > 2*pd.FactAskMost+w.set.handoffTimeout+w.set.attemptTimeout+10*time.Second {
		w.broken("GateEndsWhenProofExists", "%s is still gated by %s, whose end %s knows", p.name(), short(gates[0].Handoff), gates[0].Peer.Node)
	}
	return true
}

// relieve ends the gates of one node.
func (w *World) relieve(p *process, choice int) {
	gates := p.node.Gates()
	if len(gates) == 0 {
		return
	}
	w.note("ops", "relieve", gates[0].Handoff, "%s, choice %d", p.name(), choice)
	switch {
	case p.host.role == pd.Decode && w.set.fenceProves && choice > 0:
		p.ask(node.FenceOrder{}, func(any, error) {})
	case p.host.role == pd.Decode && choice > 0 && w.reallyDead(gates[0].Peer):
		// Only the broken rule frees memory upon this, after a settle time.
		boot := gates[0].Peer.Boot
		if w.opt.Broken == DeathSuffices {
			w.after(settleTime, func() { p.ask(node.DeathOrder{Boot: boot}, func(any, error) {}) })
			return
		}
		w.restart(p)
	case p.host.role == pd.Prefill && choice > 1 && w.reallyDead(gates[0].Peer):
		for _, g := range gates {
			if g.Peer.Boot == gates[0].Peer.Boot {
				w.check.freedByOrder[key{p.peer.Boot, g.Handoff}] = true
			}
		}
		p.ask(node.DeathOrder{Boot: gates[0].Peer.Boot}, func(any, error) {})
	default:
		w.restart(p)
	}
}

// settleTime is how long a broken operator waits after a death.
const settleTime = 2 * time.Second

// reallyDead says that no process of a boot lives.
func (w *World) reallyDead(peer pd.Peer) bool {
	h := w.host(peer.Node)
	if h == nil || h.proc != nil && h.proc.peer == peer {
		return false
	}
	return h.lingering == nil
}

// restart ends a process and starts its host again.
func (w *World) restart(p *process) {
	p.crash(true)
	p.host.start(between(w.rand("restart"), 100*time.Millisecond, 2*time.Second))
}

package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Result is how a world ended.
type Result struct {
	Options Options
	// Violation is nil where every invariant held.
	Violation *Violation
	// Panic is a crash of the checked code or the simulation itself.
	Panic  string
	Digest uint64
	Lines  int
	Counts Counts
	Tally  Tally
	World  string
	// Active are the kinds that the seed chose.
	Active Faults
	Took   time.Duration // of the simulated time
}

// Failed says that the world must be looked at.
func (r Result) Failed() bool { return r.Violation != nil || r.Panic != "" }

// Name is the broken invariant, "" if none is.
func (r *Result) Name() string {
	switch {
	case r.Violation != nil:
		return r.Violation.Invariant
	case r.Panic != "":
		return "panic"
	}
	return ""
}

// Run runs one world to its end.
func Run(o Options) (result Result) {
	w := newWorld(o)
	defer func() {
		result = Result{
			Options: o, Digest: w.trace.digest, Lines: w.trace.lines, Counts: w.counts, Tally: w.tally, World: w.set.String(), Active: w.set.active, Took: w.now,
		}
		switch v := recover().(type) {
		case nil:
		case *Violation:
			result.Violation = v
			w.note("END", v.Invariant, "", "%s", v.Text)
		default:
			result.Panic = fmt.Sprintf("%v\n%s", v, debug.Stack())
		}
	}()
	w.live()
	w.settle()
	return
}

func newWorld(o Options) *World {
	w := &World{opt: o, set: newSettings(o), chaos: map[string]*rand.Rand{}, trace: newTrace(o.Log), cuts: map[[2]int]time.Duration{}, flights: map[pd.HandoffID]*flight{}}
	w.tally.Failures, w.tally.Cancels = map[string]int{}, map[string]int{}
	w.kind = model.variants[w.set.policy]
	w.data = dataPlane{world: w, endpoints: map[string]*dataEngine{}}
	w.check = newChecker(w)
	for i, tp := range w.set.tpPrefill {
		w.hosts = append(w.hosts, w.newHost(pd.Prefill, i, tp, w.set))
	}
	for i, tp := range w.set.tpDecode {
		w.hosts = append(w.hosts, w.newHost(pd.Decode, i, tp, w.set))
	}
	w.hosts[0].unacknowledged = o.Unacknowledged
	return w
}

// live is the safety phase: clients, operators and faults.
func (w *World) live() {
	w.note("-", "world", "", "seed=%d %s", w.opt.Seed, w.set)
	for _, h := range w.hosts {
		h.boot()
	}
	for i := range w.set.routers {
		w.routers = append(w.routers, w.newRouter(i))
	}
	for _, f := range []Fault{RouterSecond, PoolExactFit, RingPeriodMin, OddChunkEnds, PrefixEvictUnderLoad} {
		if w.set.active.Has(f) {
			w.counts[f] += w.opt.Handoffs
		}
	}
	w.unleash()
	w.operate()
	r := w.rand("arrivals")
	at := 2 * time.Second
	for i := range w.opt.Handoffs {
		c := w.newClient(fmt.Sprintf("c%d", i))
		rt := w.routers[r.IntN(len(w.routers))]
		w.after(at, func() { c.send(rt) })
		at += between(r, 0, 2*w.set.interval)
	}
	w.runUntil(at+2*time.Second, nil)
}

// Replay is the command that runs a failed world again, event by event.
func (r *Result) Replay() string {
	o := r.Options
	var b strings.Builder
	if o.Mutant != 0 {
		b.WriteString("go test -tags mutants ")
	} else {
		b.WriteString("go test ")
	}
	fmt.Fprintf(&b, "./tests/sim -run '^TestSeed$' -count=1 -sim.seed=%d -sim.handoffs=%d -sim.faults=%s", o.Seed, o.Handoffs, o.Faults)
	if o.Exact {
		b.WriteString(" -sim.exact")
	}
	if o.From != 0 {
		fmt.Fprintf(&b, " -sim.from=%v", o.From)
	}
	if o.Until != 0 {
		fmt.Fprintf(&b, " -sim.until=%v", o.Until)
	}
	if o.Unacknowledged {
		b.WriteString(" -sim.unacknowledged")
	}
	if o.Mutant != 0 {
		fmt.Fprintf(&b, " -sim.mutant=%d", o.Mutant)
	}
	if o.Intensity != 0 {
		fmt.Fprintf(&b, " -sim.intensity=%g", o.Intensity)
	}
	if o.Broken != Nothing {
		fmt.Fprintf(&b, " -sim.broken=%d", o.Broken)
	}
	if c := commit(); c != "" {
		b.WriteString(" # " + c)
	}
	return b.String()
}

// commit is the commit that was built, if it was stamped.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	out := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			out = "at commit " + s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			out += ", changed"
		}
	}
	return out
}

// Err is the failure in words, nil if there is none.
func (r *Result) Err() error {
	switch {
	case r.Violation != nil:
		return r.Violation
	case r.Panic != "":
		return errors.New(r.Panic)
	}
	return nil
}

package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// World is one simulated deployment: nodes with their owners and memory, a
// network, routers, clients, operators and everything that goes wrong. It runs
// on one goroutine; time is what the next event says.
type World struct {
	opt   Options
	set   settings
	kind  *variant
	now   time.Duration
	queue eventQueue
	order uint64
	chaos map[string]*rand.Rand
	trace *trace
	check *checker

	hosts   []*host
	routers []*router
	clients []*client
	flights map[pd.HandoffID]*flight
	data    dataPlane
	cuts    map[[2]int]time.Duration

	// calm: faults have ended; what is broken now must mend.
	calm   bool
	calmAt time.Duration
	counts Counts
	tally  Tally
}

// Tally is what became of the requests of a world.
type Tally struct {
	Handoffs, Succeeded, Cancelled, Failed int
	// Refused are requests that no node took in.
	Refused  int
	Batches  int
	Landings int
	Calls    int
	Steps    int
	Boots    int
	Fences   int
	Gates    int
	// Proofs are facts that ended a quarantine.
	Proofs int
	// Failures counts what clients were told, by code.
	Failures map[string]int
	// Cancels counts in which state of its handoff a client left.
	Cancels map[string]int
}

// event is something that happens at a time; events of one time keep the order
// in which they were made.
type event struct {
	at    time.Duration
	order uint64
	do    func()
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *eventQueue) Push(x any) { *q = append(*q, x.(event)) }

// Pop implements heap.Interface.
func (q *eventQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return e
}

// flight finds the request of a handoff; nil for one that no router made.
func (w *World) flight(h pd.HandoffID) *flight { return w.flights[h] }

// after makes something happen later.
func (w *World) after(d time.Duration, do func()) {
	w.order++
	heap.Push(&w.queue, event{w.now + max(d, 0), w.order, do})
}

// runUntil lets everything happen up to a time, or until done says so.
func (w *World) runUntil(end time.Duration, done func() bool) {
	for len(w.queue) > 0 && w.queue[0].at <= end {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.do()
		if done != nil && done() {
			return
		}
	}
	w.now = max(w.now, end)
}

// rand is the stream of chance of one purpose.
func (w *World) rand(purpose string) *rand.Rand {
	r := w.chaos[purpose]
	if r == nil {
		r = draw(w.opt.Seed, purpose)
		w.chaos[purpose] = r
	}
	return r
}

// hit decides whether a kind of fault happens now. Each kind has a stream of
// its own, which moves on only where the kind is active.
func (w *World) hit(f Fault, chance float64) bool {
	if w.calm || !w.set.active.Has(f) {
		return false
	}
	return w.rand(f.String()).Float64() < chance*w.intensity() && w.troubled()
}

// troubled says whether faults may happen now.
func (w *World) troubled() bool {
	return !w.calm && w.now >= w.opt.From && (w.opt.Until == 0 || w.now < w.opt.Until)
}

func (w *World) intensity() float64 {
	if w.opt.Intensity == 0 {
		return w.set.intensity
	}
	return w.opt.Intensity * w.set.intensity
}

// happened counts a fault where it took effect.
func (w *World) happened(f Fault) { w.counts[f]++ }

func (w *World) note(who, what string, h pd.HandoffID, format string, args ...any) {
	w.trace.line(w.now, who, what, h, format, args...)
}

// hexID draws an identity of 128 bits.
func (w *World) hexID(purpose string) string {
	r := w.rand(purpose)
	return fmt.Sprintf("%016x%016x", r.Uint64(), r.Uint64())
}

// Violation is a broken invariant. It ends a world.
type Violation struct {
	Invariant string
	Text      string
	At        time.Duration
}

// Error implements error.
func (v *Violation) Error() string {
	return fmt.Sprintf("%s at %v: %s", v.Invariant, v.At, v.Text)
}

// broken ends the world with a violation.
func (w *World) broken(invariant, format string, args ...any) {
	panic(&Violation{Invariant: invariant, Text: fmt.Sprintf(format, args...), At: w.now})
}

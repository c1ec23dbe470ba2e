package sim

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// dataPlane holds every write in flight, one by one, whoever knows of it.
type dataPlane struct {
	world     *World
	endpoints map[string]*dataEngine
	live      []*batch
	serial    int
}

// dataEngine is one life of one rank's endpoint. Connections are bound to it,
// not to its address.
type dataEngine struct {
	// constant
	plane    *dataPlane
	rank     *rankOwner
	identity transfer.Identity
	endpoint string

	open bool
	// buffered are landings that wait in the sockets of a paused owner.
	buffered []*landing
}

// batch is one submitted write with its own verdict.
type batch struct {
	// constant
	id       int
	job      *job
	segments []pd.Segment
	snapshot [][]byte
	source   *rankOwner
	engine   *dataEngine // of source, at that time
	target   *dataEngine
	posted   time.Duration

	landings []*landing
	// pending landings may still happen.
	pending int
	// acks is how many more landings the target acknowledges the batch after;
	// negative if it never does.
	acks    int
	ackTime time.Duration
	verdict bool
	// free: the provider reads the source no more.
	free bool
	// dead: the sender is gone.
	dead bool
	flip bool
}

// landing is one segment of a batch arriving at its target.
type landing struct {
	batch   *batch
	segment int
	counts  bool // the acknowledgement waits for it
	done    bool
}

func (d *dataPlane) open(ro *rankOwner, port int) *dataEngine {
	p := ro.owners.proc
	e := &dataEngine{
		plane: d, rank: ro, open: true, endpoint: fmt.Sprintf("10.0.0.%d:%d", p.host.site, port),
		identity: transfer.Identity{Boot: p.peer.Boot, Rank: ro.rank, Epoch: ro.epoch},
	}
	d.endpoints[e.endpoint] = e
	return e
}

// shut ends an engine: nothing that was addressed to it lands any more.
func (e *dataEngine) shut() {
	e.open = false
	if e.plane.endpoints[e.endpoint] == e {
		delete(e.plane.endpoints, e.endpoint)
	}
	for _, l := range e.buffered {
		l.end()
	}
	e.buffered = nil
}

// connect opens a way to a target rank and compares its identity row.
func (d *dataPlane) connect(p *process, to *host, endpoint string, want transfer.Identity) (*dataEngine, error) {
	e := d.endpoints[endpoint]
	switch {
	case e == nil || d.world.cut(p.host.site, to.site):
		return nil, pd.Errorf(pd.CodePeerUnreachable, "connect", "nobody answers")
	case e.identity != want && d.world.opt.Broken != PortReuse:
		d.world.happened(StaleWriteToNewBoot)
		return nil, pd.Errorf(pd.CodeStaleBoot, "connect", "another engine has this address")
	}
	return e, nil
}

// post hands one batch to the provider and decides what becomes of it.
func (d *dataPlane) post(j *job, segments []pd.Segment, target *dataEngine) {
	w := d.world
	d.serial++
	w.tally.Batches++
	b := &batch{id: d.serial, job: j, segments: segments, source: j.source, engine: j.source.engine, target: target, posted: w.now, ackTime: w.latency()}
	for _, s := range segments {
		b.snapshot = append(b.snapshot, slices.Clone(b.sourceBytes(s)))
	}
	d.live = append(d.live, b)
	w.check.posted2(b)
	w.after(w.set.attemptTimeout, func() { b.settle(pd.Uncertain, "TIMEOUT") })
	d.plan(b)
	// The worst moment for a death is with bytes on their way.
	if w.hit(SenderDeadBytesInFlight, 0.004) {
		w.killSoon(b.source.owners.proc)
	}
	if w.hit(StaleWriteToNewBoot, 0.004) {
		w.killSoon(target.rank.owners.proc)
	}
	if b.pending == 0 {
		b.ended()
	}
}

func (b *batch) sourceBytes(s pd.Segment) []byte {
	return b.source.owners.proc.host.memory[b.source.rank][s.Component][s.SourceOffset : s.SourceOffset+s.Bytes]
}

// schedule lets segments arrive within a time, in order.
func (b *batch) schedule(segments []int, from, within time.Duration, counts bool) {
	w := b.target.plane.world
	step := within / time.Duration(max(len(segments), 1))
	at := from
	for _, i := range segments {
		at += between(w.rand("landing"), step/4, step)
		l := &landing{batch: b, segment: i, counts: counts}
		if counts {
			b.acks++
		}
		b.pending++
		b.landings = append(b.landings, l)
		w.after(at, l.arrive)
	}
}

func (b *batch) all() []int {
	out := make([]int, len(b.segments))
	for i := range out {
		out[i] = i
	}
	return out
}

// plan draws the fate of a batch.
func (d *dataPlane) plan(b *batch) {
	w := d.world
	r := w.rand("batch fate")
	quick := between(r, time.Millisecond, 15*time.Millisecond)
	late := func() time.Duration {
		return between(r, 5*time.Millisecond, pick(r, time.Second, w.set.handoffTimeout, 3*w.set.handoffTimeout))
	}
	soon := func() time.Duration { return between(r, 0, 20*time.Millisecond) }
	switch {
	case w.opt.Broken == Unacknowledged || b.source.owners.proc.host.unacknowledged:
		w.after(200*time.Microsecond, func() { b.settle(pd.Done, "left the socket") })
		b.schedule(b.all(), soon(), between(r, 10*time.Millisecond, time.Second), false)
	case w.hit(LateWriteAfterFailed, 0.01):
		w.happened(LateWriteAfterFailed)
		w.after(soon(), func() { b.settle(pd.Uncertain, "FAILED") })
		b.schedule(b.all(), late(), late(), false)
	case w.hit(LateWriteAfterHiddenRetry, 0.01):
		// The second try completes, but too late to be believed; the first one is
		// still under way.
		w.happened(LateWriteAfterHiddenRetry)
		b.schedule(b.all(), soon(), quick, false)
		b.schedule(b.all(), late(), late(), false)
		w.after(w.set.attemptTimeout+soon(), func() { b.settle(pd.Uncertain, "COMPLETED late") })
	case w.hit(DoubleApply, 0.06):
		w.happened(DoubleApply)
		b.schedule(b.all(), 0, quick, true)
		b.schedule(b.all(), soon(), quick, true)
	case w.hit(ReorderedPages, 0.1):
		w.happened(ReorderedPages)
		b.schedule(w.rand("reordered").Perm(len(b.segments)), 0, quick, true)
	case w.hit(PartialApplyThenFailed, 0.01):
		w.happened(PartialApplyThenFailed)
		b.schedule(b.all()[:len(b.segments)/2], 0, quick, false)
		w.after(quick+soon(), func() { b.settle(pd.Uncertain, "FAILED") })
	case w.hit(CompletedShort, 0.01):
		w.happened(CompletedShort)
		b.schedule(b.all()[:len(b.segments)-1], 0, quick, false)
		w.after(quick+soon(), func() { b.settle(pd.Uncertain, "COMPLETED short") })
	case w.hit(VerdictNever, 0.01):
		w.happened(VerdictNever)
		b.schedule(b.all(), 0, quick, false)
	case w.hit(VerdictAfterDeadline, 0.01):
		w.happened(VerdictAfterDeadline)
		b.schedule(b.all(), 0, quick, false)
		w.after(w.set.attemptTimeout+late(), func() { b.settle(pd.Done, "late") })
	case w.hit(VerdictLateNeverPosted, 0.01):
		w.happened(VerdictLateNeverPosted)
		w.after(w.set.attemptTimeout-time.Millisecond, func() { b.settle(pd.Failed, "never posted") })
	case w.hit(RouteFailsAllPending, 0.006):
		w.happened(RouteFailsAllPending)
		b.schedule(b.all(), 0, quick, true)
		w.after(quick/2, func() { d.failRoute(b.source, b.target, late) })
	case w.hit(TargetOwnerPaused, 0.008):
		w.happened(TargetOwnerPaused)
		b.target.rank.pause(late())
		b.schedule(b.all(), 0, quick, true)
	case w.hit(FlippedByte, 0.05):
		w.happened(FlippedByte)
		b.flip = true
		b.schedule(b.all(), 0, quick, true)
	default:
		b.schedule(b.all(), 0, quick, true)
	}
}

// settle gives the provider's verdict, as the owner maps it. The first counts.
func (b *batch) settle(s pd.Settlement, detail string) {
	if b.verdict || b.dead {
		return
	}
	b.verdict = true
	w := b.target.plane.world
	b.free = s != pd.Uncertain || w.set.freesSource
	w.note(b.source.owners.proc.name(), "verdict", b.job.chunk.record.id, "batch %d of chunk %d to rank %d: %v %s", b.id, b.job.chunk.id, b.job.target, s, detail)
	w.check.verdict(b, s)
	b.source.owners.settle(b.job, b.segments, s, b.free, detail)
}

// failRoute ends a connection: everything posted on it has failed, and what had
// left may arrive.
func (d *dataPlane) failRoute(source *rankOwner, target *dataEngine, late func() time.Duration) {
	r := d.world.rand("route")
	for _, b := range slices.Clone(d.live) {
		if b.source == source && b.target == target && !b.verdict {
			b.delayOrDrop(func() bool { return r.IntN(2) == 0 }, late)
			b.settle(pd.Uncertain, "FAILED with its route")
		}
	}
}

// delayOrDrop gives what of a batch has not landed another fate.
func (b *batch) delayOrDrop(dropped func() bool, late func() time.Duration) {
	w := b.target.plane.world
	for _, l := range b.landings {
		if l.done {
			continue
		}
		l.done = true // the old arrival finds nothing
		if dropped() {
			b.pending--
			continue
		}
		again := &landing{batch: b, segment: l.segment}
		b.landings = append(b.landings, again)
		w.after(late(), again.arrive)
	}
	if b.pending == 0 {
		b.ended()
	}
}

// arrive is a landing at its target's host.
func (l *landing) arrive() {
	if l.done {
		return
	}
	b := l.batch
	d := b.target.plane
	w := d.world
	if cut := w.healed(b.source.owners.proc.host.site, b.target.rank.owners.proc.host.site); cut > 0 && !b.dead {
		w.after(cut+w.latency(), l.arrive)
		return
	}
	target := b.target
	if w.opt.Broken == PortReuse {
		target = d.endpoints[b.target.endpoint] // whoever answers there now
	}
	switch {
	case target == nil || !target.open:
		if h := b.target.rank.owners.proc.host; h.proc != nil && h.proc.peer.Boot != b.target.identity.Boot {
			w.happened(StaleWriteToNewBoot) // same memory, another engine
		}
		l.end()
		w.after(w.latency(), func() { b.settle(pd.Uncertain, "FAILED, reset") })
	case target.rank.pausedUntil > w.now:
		target.buffered = append(target.buffered, l)
	default:
		l.land(target)
	}
}

// land writes the bytes.
func (l *landing) land(target *dataEngine) {
	b := l.batch
	w := target.plane.world
	s := b.segments[l.segment]
	data := b.snapshot[l.segment]
	if !b.free && !b.dead {
		w.check.sourceRead(b, l.segment, b.sourceBytes(s))
	}
	if b.dead {
		w.happened(SenderDeadBytesInFlight)
	}
	w.tally.Landings++
	w.check.landing(b, s, target)
	dst := target.rank.owners.proc.host.memory[target.rank.rank][s.Component][s.TargetOffset : s.TargetOffset+s.Bytes]
	copy(dst, data)
	if b.flip {
		b.flip = false
		dst[w.rand("flip").IntN(len(dst))] ^= 0xff
	}
	l.end()
}

// end takes a landing off the batch; the last one is acknowledged.
func (l *landing) end() {
	if l.done {
		return
	}
	l.done = true
	b := l.batch
	b.pending--
	landed := b.target.open
	if l.counts {
		if b.acks--; b.acks == 0 && landed {
			b.target.plane.world.after(b.ackTime, func() { b.settle(pd.Done, "") })
		}
	}
	if b.pending == 0 {
		b.ended()
	}
}

// ended: nothing of the batch can land any more.
func (b *batch) ended() {
	d := b.target.plane
	d.live = slices.DeleteFunc(d.live, func(o *batch) bool { return o == b })
	// Of an engine that was made anew no more is heard.
	if b.verdict && !b.free && !b.dead && b.engine == b.source.engine && d.world.rand("ends").IntN(4) > 0 {
		b.free = true
		d.world.note(b.source.owners.proc.name(), "source free", b.job.chunk.record.id, "batch %d of chunk %d to rank %d", b.id, b.job.chunk.id, b.job.target)
		b.source.owners.sourceFreed(b.job)
	}
}

// pause stops an owner's copying; what arrives waits in its sockets, where it
// survives the sender.
func (ro *rankOwner) pause(d time.Duration) {
	w := ro.owners.world
	ro.pausedUntil = max(ro.pausedUntil, w.now+d)
	w.note(ro.owners.proc.name(), "owner paused", "", "rank %d for %v", ro.rank, d)
	w.after(ro.pausedUntil-w.now, func() {
		if ro.pausedUntil > w.now {
			return
		}
		waiting := ro.engine.buffered
		ro.engine.buffered = nil
		for _, l := range waiting {
			l.land(ro.engine)
		}
	})
}

// senderDied: what had left a dead sender may still land.
func (d *dataPlane) senderDied(o *owners) {
	w := d.world
	r := w.rand("sender died")
	lands := w.hit(SenderDeadBytesInFlight, 0.8)
	for _, b := range slices.Clone(d.live) {
		if b.source.owners != o {
			continue
		}
		b.dead, b.free = true, true
		buffered := func(l *landing) bool { return slices.Contains(b.target.buffered, l) }
		for _, l := range slices.Clone(b.landings) {
			if !l.done && !buffered(l) {
				l.done = true
				if !lands || r.IntN(3) == 0 {
					b.pending--
					continue
				}
				again := &landing{batch: b, segment: l.segment}
				b.landings = append(b.landings, again)
				w.after(between(r, 0, pick(r, 100*time.Millisecond, w.set.handoffTimeout, 2*w.set.handoffTimeout)), again.arrive)
			}
		}
		if b.pending == 0 {
			b.ended()
		}
	}
}

// rankLost settles what a dead owner of a living node had posted.
func (d *dataPlane) rankLost(ro *rankOwner) {
	for _, b := range slices.Clone(d.live) {
		if b.source == ro && !b.verdict {
			b.settle(pd.Uncertain, "OWNER_LOST")
		}
	}
}

// liveInto says whether a write into these owners' memory may still land,
// whatever was said of it.
func (d *dataPlane) liveInto(o *owners) bool {
	return slices.ContainsFunc(d.live, func(b *batch) bool { return b.target.rank.owners == o && b.target.open })
}

func sameBytes(a, b []byte) bool { return bytes.Equal(a, b) }

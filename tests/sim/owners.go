package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// owners are the owners of one boot: a model of pd/owner over the simulated
// data plane. They may outlive their node, and a rank of them may die alone.
type owners struct {
	world     *World
	proc      *process
	ranks     []*rankOwner
	records   map[pd.HandoffID]*record
	forgotten map[pd.HandoffID]bool
	peers     map[pd.NodeID]*life
	gone      bool
	// unfenced: the last fence has failed; fencing: one is under way.
	unfenced, fencing bool
}

// rankOwner is one rank's owner.
type rankOwner struct {
	// constant
	owners *owners
	rank   pd.Rank

	engine *dataEngine
	epoch  pd.Epoch
	// lost: its process died while the node lives.
	lost bool
	// pausedUntil: it copies nothing before.
	pausedUntil time.Duration
}

// record is what owners know of a handoff.
type record struct {
	id     pd.HandoffID
	sealed bool
	target *installed
	chunks map[pd.ChunkID]bool
	queued []*job
	open   int
	worst  pd.Settlement
	forget bool
}

// life is what owners know of one peer node.
type life struct {
	current *installed
	past    []pd.BootID
}

type installed struct {
	peer     pd.Peer
	registry pd.Registry
	stale    []bool
}

// submitted is one accepted chunk until it is settled.
type submitted struct {
	record *record
	id     pd.ChunkID
	units  []*unit
	open   int
	// reading counts the outcomes that left the source in use.
	reading int
}

type unit struct {
	pd.Unit
	source     pd.Rank
	left       int64
	settlement pd.Settlement
	detail     string
}

// job is the writes of one chunk between one pair of ranks.
type job struct {
	chunk    *submitted
	source   *rankOwner
	target   pd.Rank
	peer     *installed
	segments []pd.Segment
	units    map[pd.ComponentID]*unit
	posted   bool
}

func (w *World) newOwners(p *process) *owners {
	o := &owners{world: w, proc: p, records: map[pd.HandoffID]*record{}, forgotten: map[pd.HandoffID]bool{}, peers: map[pd.NodeID]*life{}}
	reuse := w.opt.Broken == PortReuse || w.hit(StaleWriteToNewBoot, 0.7)
	var ports []int
	for r := range ranks {
		ro := &rankOwner{owners: o, rank: pd.Rank(r), epoch: 1}
		port := p.host.port(r, reuse)
		ports = append(ports, port)
		ro.engine = w.data.open(ro, port)
		o.ranks = append(o.ranks, ro)
	}
	p.host.ports = ports
	return o
}

// registry is what peers need to write here.
func (o *owners) registry() pd.Registry {
	h := o.proc.host
	r := pd.Registry{
		Topology: h.layout.Topology, PagesPerLayer: h.layout.PagesPerLayer, RingPeriods: h.layout.RingPeriods,
		BootstrapSlots: h.layout.BootstrapSlots, Build: h.build(),
	}
	for _, ro := range o.ranks {
		reg := pd.RankRegistration{Rank: ro.rank, Epoch: ro.epoch, Endpoint: ro.engine.endpoint}
		for _, c := range model.contract.Components {
			reg.Regions = append(reg.Regions, pd.Region{Component: c.ID, Bytes: int64(len(h.memory[ro.rank][c.ID])), Envelope: "simulated"})
		}
		b := model.contract.Bootstrap.Component
		reg.Regions = append(reg.Regions, pd.Region{Component: b, Bytes: int64(len(h.memory[ro.rank][b])), Envelope: "simulated"})
		r.Ranks = append(r.Ranks, reg)
	}
	return r
}

// build identifies the data plane of a host.
func (h *host) build() string {
	if h.unacknowledged && h.world.opt.Broken != Unacknowledged {
		return "simulated, unacknowledged"
	}
	return "simulated"
}

// install remembers a peer's registry.
func (o *owners) install(peer pd.Peer, r pd.Registry) error {
	next := &installed{peer: peer, registry: r, stale: make([]bool, len(r.Ranks))}
	l := o.peers[peer.Node]
	switch {
	case l == nil:
		o.peers[peer.Node] = &life{current: next}
		return nil
	case slices.Contains(l.past, peer.Boot):
		return pd.Errorf(pd.CodeStaleBoot, "install", "boot %s ended before", peer.Boot)
	case l.current.peer.Boot != peer.Boot:
		l.past = append(l.past, l.current.peer.Boot)
		for i := range l.current.stale {
			l.current.stale[i] = true
		}
	default:
		fenced := false
		for i, old := range l.current.registry.Ranks {
			switch now := r.Ranks[i]; {
			case now.Epoch < old.Epoch:
				return pd.Errorf(pd.CodeRegistryMismatch, "install", "rank %d: epoch %d after %d", i, now.Epoch, old.Epoch)
			case now.Epoch > old.Epoch:
				l.current.stale[i], fenced = true, true
			}
		}
		if !fenced {
			return nil
		}
	}
	l.current = next
	o.sweep()
	return nil
}

// submit takes one acknowledged chunk in, whole or not at all.
func (o *owners) submit(e node.Submit) error {
	w := o.world
	w.check.submitted(o, e)
	l := o.peers[e.Peer.Node]
	r := o.records[e.Handoff]
	switch {
	case o.forgotten[e.Handoff]:
		return pd.Errorf(pd.CodeHandoffTerminal, "submit", "the handoff was forgotten")
	case l == nil:
		return pd.Errorf(pd.CodeRegistryMismatch, "submit", "the peer's registry is not installed")
	case l.current.peer.Boot != e.Peer.Boot:
		return pd.Errorf(pd.CodeStaleBoot, "submit", "the installed registry is of another boot")
	case e.RegistryEpoch != l.current.registry.Epoch():
		return pd.Errorf(pd.CodeStaleBoot, "submit", "the peer was fenced after it acknowledged the chunk")
	case r != nil && r.sealed:
		return pd.Errorf(pd.CodeHandoffTerminal, "submit", "the handoff is sealed")
	case r != nil && r.chunks[e.Chunk]:
		return pd.Errorf(pd.CodeConflict, "submit", "attempts are made once")
	case r != nil && r.target != nil && r.target != l.current:
		return pd.Errorf(pd.CodeStaleBoot, "submit", "the peer was fenced or restarted since the first chunk")
	case w.hit(SubmitFails, 0.02):
		w.happened(SubmitFails)
		return pd.Errorf(pd.CodeOwnerLost, "submit", "a rank refuses the chunk")
	}
	if r == nil {
		r = &record{id: e.Handoff, chunks: map[pd.ChunkID]bool{}}
		o.records[e.Handoff] = r
	}
	if r.target == nil {
		r.target = l.current
	}
	r.chunks[e.Chunk] = true
	r.open++
	c := &submitted{record: r, id: e.Chunk, open: len(e.Units)}
	var jobs []*job
	for _, write := range e.Writes {
		j := &job{
			chunk: c, source: o.ranks[write.Pair.Source], target: write.Pair.Target, peer: l.current,
			segments: write.Segments, units: map[pd.ComponentID]*unit{},
		}
		for _, u := range e.Units {
			if u.Target == j.target {
				n := &unit{Unit: u, source: write.Pair.Source, left: u.Bytes}
				c.units = append(c.units, n)
				j.units[u.Component] = n
			}
		}
		jobs = append(jobs, j)
	}
	for _, u := range c.units {
		if u.left == 0 {
			u.settlement = pd.Done
			c.open--
		}
	}
	for _, j := range jobs {
		if len(j.segments) > 0 {
			o.queue(j)
		}
	}
	o.settledUnits(c)
	return nil
}

// queue posts a job in a while.
func (o *owners) queue(j *job) {
	w := o.world
	r := j.chunk.record
	r.queued = append(r.queued, j)
	delay := between(w.rand("post"), 0, time.Millisecond)
	if w.hit(SealVsSubmitRace, 0.2) {
		delay = between(w.rand("slow post"), 10*time.Millisecond, 5*time.Second)
	}
	w.after(delay, func() {
		if !j.posted && !o.gone && slices.Contains(r.queued, j) {
			o.post(j)
		}
	})
}

func (r *record) drop(j *job) {
	r.queued = slices.DeleteFunc(r.queued, func(o *job) bool { return o == j })
}

// dead says why a queued job must not be posted.
func (j *job) dead() string {
	switch {
	case j.chunk.record.sealed:
		return "sealed before it was posted"
	case j.peer.stale[j.target]:
		return "the peer was fenced or restarted before it was posted"
	case j.source.lost:
		return "OWNER_LOST"
	}
	return ""
}

func (o *owners) post(j *job) {
	w := o.world
	if why := j.dead(); why != "" {
		o.neverPosted(j, why)
		return
	}
	if w.hit(SubmitFails, 0.02) {
		w.happened(SubmitFails)
		o.neverPosted(j, "SUBMIT")
		return
	}
	rank := j.peer.registry.Ranks[j.target]
	want := transfer.Identity{Boot: j.peer.peer.Boot, Rank: j.target, Epoch: rank.Epoch}
	target, err := w.data.connect(o.proc, w.host(j.peer.peer.Node), rank.Endpoint, want)
	if err != nil {
		o.neverPosted(j, pd.CodeOf(err).String())
		return
	}
	j.chunk.record.drop(j)
	j.posted = true
	half := len(j.segments)
	if half > 1 && w.rand("batches").IntN(3) == 0 {
		half = 1 + w.rand("batches").IntN(len(j.segments)-1)
	}
	w.data.post(j, j.segments[:half], target)
	if half < len(j.segments) {
		w.data.post(j, j.segments[half:], target)
	}
}

func (o *owners) neverPosted(j *job, detail string) {
	j.chunk.record.drop(j)
	o.settle(j, j.segments, pd.Failed, true, detail)
}

// settle takes what became of some segments of a job in.
func (o *owners) settle(j *job, segments []pd.Segment, s pd.Settlement, sourceFree bool, detail string) {
	if o.gone {
		return
	}
	c := j.chunk
	if !sourceFree {
		c.reading++
	}
	for _, seg := range segments {
		u := j.units[seg.Component]
		u.left -= seg.Bytes
		if worse := u.settlement.Worse(s); worse != u.settlement {
			u.settlement, u.detail = worse, detail
		}
		if u.left == 0 {
			c.open--
		}
	}
	o.settledUnits(c)
}

// settledUnits reports a chunk with its last unit.
func (o *owners) settledUnits(c *submitted) {
	if c.open > 0 {
		return
	}
	var results []pd.UnitResult
	for _, u := range c.units {
		results = append(results, pd.UnitResult{Chunk: c.id, Source: u.source, Target: u.Target, Component: u.Component, Settlement: u.settlement, Detail: u.detail})
		c.record.worst = c.record.worst.Worse(u.settlement)
	}
	c.open = 1 << 30 // reported
	h, sourceFree := c.record.id, c.reading == 0
	o.proc.soon(func() {
		o.proc.step(node.ChunkSettled{Handoff: h, Chunk: c.id, Results: results, SourceFree: sourceFree})
	})
	c.record.open--
	o.stopped(c.record)
}

// sourceFreed passes on that a batch is read no more whose verdict left that open.
func (o *owners) sourceFreed(j *job) {
	c := j.chunk
	if o.gone || j.source.lost {
		return
	}
	if c.reading--; c.reading == 0 && c.open == 1<<30 {
		h := c.record.id
		o.proc.soon(func() { o.proc.step(node.SourceFreed{Handoff: h, Chunk: c.id}) })
	}
}

// stopped states the fact, or drops the record, if the time has come.
func (o *owners) stopped(r *record) {
	switch {
	case !r.sealed || r.open > 0:
	case r.forget:
		delete(o.records, r.id)
	default:
		fact := map[pd.Settlement]pd.StopFact{0: pd.NeverSubmitted, pd.Done: pd.AllDone, pd.Failed: pd.DefiniteFailed, pd.Uncertain: pd.Unknown}[r.worst]
		o.proc.soon(func() { o.proc.step(node.Sealed{Handoff: r.id, Fact: fact}) })
	}
}

// seal refuses every further write of a handoff and drops what is queued.
func (o *owners) seal(h pd.HandoffID) {
	r := o.records[h]
	if r == nil {
		r = &record{id: h, chunks: map[pd.ChunkID]bool{}}
		o.records[h] = r
	}
	r.sealed = true
	if len(r.queued) > 0 {
		o.world.happened(SealVsSubmitRace)
	}
	// Stating the fact is the last thing: dropping queued jobs may do it.
	before := r.open
	for _, j := range slices.Clone(r.queued) {
		o.neverPosted(j, "sealed before it was posted")
	}
	if before == 0 || r.open > 0 {
		o.stopped(r)
	}
}

func (o *owners) forget(h pd.HandoffID) {
	o.forgotten[h] = true
	r := o.records[h]
	if r == nil {
		return
	}
	r.sealed, r.forget = true, true
	for _, j := range slices.Clone(r.queued) {
		o.neverPosted(j, "forgotten before it was posted")
	}
	if r.open == 0 {
		delete(o.records, h)
	}
}

// sweep drops queued jobs to peers that are not what they were.
func (o *owners) sweep() {
	for _, h := range sorted(o.records) {
		for _, j := range slices.Clone(o.records[h].queued) {
			if why := j.dead(); why != "" {
				o.neverPosted(j, why)
			}
		}
	}
}

// fence makes every rank's engine anew over the same memory.
func (o *owners) fence() {
	w := o.world
	w.tally.Fences++
	o.fencing = true
	if w.data.liveInto(o) {
		w.happened(FenceDuringTransfer)
	}
	r := w.rand("fence")
	takes := between(r, 100*time.Millisecond, 1500*time.Millisecond)
	hangs := w.hit(FenceHangs, 0.5)
	for i, ro := range o.ranks {
		if hangs && i == len(o.ranks)-1 {
			break
		}
		ro.engine.shut()
		takes = max(takes, ro.pausedUntil-w.now)
	}
	if hangs {
		w.happened(FenceHangs)
		takes = fenceTimeout
	}
	w.after(takes, func() {
		if o.gone {
			return
		}
		for _, ro := range o.ranks {
			if !ro.engine.open && !ro.lost || ro.lost && !hangs {
				ro.lost = false
				ro.epoch++
				ro.engine = w.data.open(ro, o.proc.host.port(int(ro.rank), false))
			}
		}
		var err error
		if o.unfenced = hangs; hangs {
			err = pd.Errorf(pd.CodeDeadline, "fence", "a rank's engine does not end")
		} else {
			w.check.fenced(o)
		}
		registry := o.registry()
		o.proc.soon(func() {
			o.fencing = false
			o.proc.step(node.Fenced{Registry: registry, Err: err})
		})
	})
}

// fenceTimeout is how long a node waits for its owners' fence.
const fenceTimeout = 30 * time.Second

// die ends the owners with their process, or after it.
func (o *owners) die() {
	if o.gone {
		return
	}
	o.gone = true
	for _, ro := range o.ranks {
		ro.engine.shut()
	}
	if o.proc.host.lingering == o {
		o.proc.host.lingering = nil
	}
	o.world.data.senderDied(o)
}

// linger keeps the owners alive without their node for a while.
func (o *owners) linger() {
	w := o.world
	w.happened(PredecessorAliveAtStart)
	w.note(o.proc.name(), "owners linger", "", "")
	o.proc.host.lingering = o
	w.after(between(w.rand("linger"), time.Second, 40*time.Second), o.die)
}

// lose kills one rank's owner while the node lives.
func (o *owners) lose(rank int) {
	w := o.world
	ro := o.ranks[rank]
	if ro.lost || o.gone {
		return
	}
	w.happened(OwnerCrashNodeAlive)
	w.note(o.proc.name(), "owner lost", "", "rank %d", rank)
	ro.lost = true
	ro.engine.shut()
	w.data.rankLost(ro)
	o.sweep()
}

// lostRank says that a rank's owner is dead.
func (o *owners) lostRank() bool {
	return slices.ContainsFunc(o.ranks, func(r *rankOwner) bool { return r.lost })
}

// atRest says what the owners still hold, "" for nothing.
func (o *owners) atRest() string {
	for _, h := range slices.Sorted(maps.Keys(o.records)) {
		if r := o.records[h]; r.open > 0 || len(r.queued) > 0 {
			return fmt.Sprintf("record of %s has %d open chunks", short(h), r.open)
		}
	}
	return ""
}

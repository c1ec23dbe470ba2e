package owner

import (
	"sync/atomic"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// handoff is the record of everything that was accepted for one handoff. It is
// kept until Forget. Except sealed and the constants, fields are guarded by the
// group's mutex.
type handoff struct {
	id pd.HandoffID // constant
	// Invariant NoSubmitAfterFact: set before a fact can be stated, never
	// cleared; Submit refuses and agents drop what they have not posted.
	sealed atomic.Bool
	// target is the registry under which the first chunk was accepted.
	target *installed
	chunks map[pd.ChunkID]struct{} // every chunk that was ever accepted
	ranks  map[pd.Rank]struct{}    // every rank that was ever given a job of it
	// open counts the accepted chunks that are not settled.
	//
	// unsealed are the ranks, of those, whose word that they are sealed is still to come.
	//
	// Invariant FactOnlyFromSealedOwner: a fact is stated only while sealed,
	// unsealed is empty and open == 0. A chunk is open from before its first job is
	// queued until the last of its units is settled, so nothing can be posted after
	// that. A rank that is gone says nothing: if it was given a job, the fact is
	// Unknown. A rank that was not has nothing to say.
	unsealed map[pd.Rank]struct{}
	open     int
	worst    pd.Settlement
	// told: the ranks were told to seal.
	told bool
	// forget: drop the record once nothing is open.
	forget bool
}

// fact sums up a handoff that is sealed and has nothing open.
func (h *handoff) fact() pd.StopFact {
	switch h.worst {
	case pd.Done:
		return pd.AllDone
	case pd.Failed:
		return pd.DefiniteFailed
	case pd.Uncertain:
		return pd.Unknown
	}
	return pd.NeverSubmitted
}

// chunk is one accepted chunk until it is settled. Fields are guarded by the
// group's mutex.
type chunk struct {
	handoff *handoff // constant
	id      pd.ChunkID
	units   []unit
	open    int // units that are not settled
	// Invariant SourceStableUntilSourceDone: reading counts the outcomes that left
	// the source in use, until the provider reads no more. Bytes that were never
	// posted were never read.
	reading      int
	posted       bool
	began, ended int64
	bytes        int64
}

// unit is one expected unit. It settles once all its bytes have a verdict.
type unit struct {
	pd.Unit
	source     pd.Rank
	left       int64
	settlement pd.Settlement
	detail     string
}

// outcome is what became of some segments.
type outcome struct {
	settlement pd.Settlement
	sourceFree bool
	detail     string
}

// neverPosted is the outcome of segments that no provider has seen.
func neverPosted(detail string) outcome {
	return outcome{settlement: pd.Failed, sourceFree: true, detail: detail}
}

func (u *unit) take(bytes int64, o outcome) (settled bool) {
	u.left -= bytes
	if worse := u.settlement.Worse(o.settlement); worse != u.settlement {
		u.settlement, u.detail = worse, o.detail
	}
	return u.left == 0
}

func (u *unit) result(c pd.ChunkID) pd.UnitResult {
	return pd.UnitResult{
		Chunk: c, Source: u.source, Target: u.Target, Component: u.Component,
		Settlement: u.settlement, Detail: u.detail,
	}
}

// settled records the outcome of segments of one job.
func (g *Group) settled(j *job, first, count int, o outcome) {
	segments := j.segments[first : first+count]
	g.mu.Lock()
	defer g.mu.Unlock()
	c := j.chunk
	if !o.sourceFree {
		c.reading++
	}
	var u *unit
	var results []pd.UnitResult
	for i := range segments {
		s := &segments[i]
		if u == nil || u.Component != s.Component {
			u = j.units[s.Component]
		}
		if o.settlement == pd.Done {
			c.bytes += s.Bytes
		}
		if u.take(s.Bytes, o) {
			results = append(results, u.result(c.id))
		}
	}
	g.unitsSettledLocked(c, results)
}

// unitsSettledLocked reports units, and the chunk with its last one.
func (g *Group) unitsSettledLocked(c *chunk, results []pd.UnitResult) {
	if len(results) == 0 {
		return
	}
	g.emitLocked(UnitSettled{Handoff: c.handoff.id, Chunk: c.id, Results: results})
	if c.open -= len(results); c.open > 0 {
		return
	}
	c.ended = g.now()
	if !c.posted {
		c.began = c.ended
	}
	h := c.handoff
	all := make([]pd.UnitResult, len(c.units))
	for i := range c.units {
		all[i] = c.units[i].result(c.id)
		h.worst = h.worst.Worse(c.units[i].settlement)
	}
	g.emitLocked(ChunkSettled{
		Handoff: h.id, Chunk: c.id, Results: all, SourceFree: c.reading == 0,
		Began: c.began, Ended: c.ended, Bytes: c.bytes,
	})
	g.openChunks--
	h.open--
	g.stoppedLocked(h)
}

// sourceFreed takes in that a batch is read no more.
func (g *Group) sourceFreed(j *job) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := j.chunk
	if c.reading--; c.reading == 0 && c.open == 0 {
		g.emitLocked(SourceFreed{Handoff: c.handoff.id, Chunk: c.id})
	}
}

// stoppedLocked states the fact, or drops the record, if the time has come.
func (g *Group) stoppedLocked(h *handoff) {
	switch {
	case h.open > 0 || !h.sealed.Load():
	case h.forget:
		g.dropLocked(h)
	case len(h.unsealed) > 0:
	default:
		g.emitLocked(HandoffStopped{Handoff: h.id, Fact: h.fact()})
	}
}

// dropLocked ends a record that has nothing open.
func (g *Group) dropLocked(h *handoff) {
	delete(g.handoffs, h.id)
	for rank := range h.ranks {
		g.ranks[rank].forget(h.id)
	}
}

// began notes that a batch of the job was handed to the provider.
func (g *Group) began(j *job) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := j.chunk
	if !c.posted {
		c.posted, c.began = true, g.now()
	}
}

// recordLocked finds or makes the record of a handoff.
func (g *Group) recordLocked(id pd.HandoffID, limit int) (*handoff, *pd.Error) {
	if h := g.handoffs[id]; h != nil {
		return h, nil
	}
	if len(g.handoffs) >= limit {
		return nil, &pd.Error{Code: pd.CodeBusy, Handoff: id, Text: "too many handoffs are on record; forget those that ended"}
	}
	h := &handoff{id: id, chunks: map[pd.ChunkID]struct{}{}, ranks: map[pd.Rank]struct{}{}, unsealed: map[pd.Rank]struct{}{}}
	g.handoffs[id] = h
	return h, nil
}

// Seal implements Service.
func (g *Group) Seal(id pd.HandoffID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		return &pd.Error{Op: "seal", Code: pd.CodeOwnerLost, Handoff: id, Text: "the owners are closing"}
	}
	// Sealing has room of its own, so that a full record cannot keep a handoff
	// from being stopped.
	h, err := g.recordLocked(id, 2*maxHandoffs)
	if err != nil {
		err.Op = "seal"
		return err
	}
	g.sealLocked(h)
	g.stoppedLocked(h)
	return nil
}

// sealLocked makes the group, and then every rank that was given a part, refuse
// what is new. The other ranks have nothing of it and get nothing any more.
func (g *Group) sealLocked(h *handoff) {
	h.sealed.Store(true)
	if h.told {
		return
	}
	h.told = true
	for rank := range h.ranks {
		switch {
		case g.gone[rank] != nil:
			h.worst = pd.Uncertain // its seal can never be heard of
		case !g.ranks[rank].seal(h.id):
			h.unsealed[rank] = struct{}{}
		}
	}
}

// sealed takes a rank's word that it is sealed.
func (g *Group) sealed(rank pd.Rank, id pd.HandoffID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.handoffs[id]
	if h == nil {
		return // forgotten meanwhile
	}
	if _, awaited := h.unsealed[rank]; awaited {
		delete(h.unsealed, rank)
		g.stoppedLocked(h)
	}
}

// lost ends a rank for good. What is open there is reported after this.
func (g *Group) lost(rank pd.Rank, why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone[rank] != nil {
		return
	}
	g.gone[rank] = why
	if !g.closing {
		g.emitLocked(OwnerLost{Rank: rank, PID: g.ranks[rank].pid, Err: why})
	}
	for _, h := range g.handoffs {
		if _, awaited := h.unsealed[rank]; !awaited {
			continue // sealed already, or never told: see sealLocked
		}
		delete(h.unsealed, rank)
		h.worst = pd.Uncertain
		g.stoppedLocked(h)
	}
}

// Forget implements Service.
func (g *Group) Forget(id pd.HandoffID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, known := g.forgotten[id]; !known {
		if len(g.forgottenRing) < pd.MaxTombstones {
			g.forgottenRing = append(g.forgottenRing, id)
		} else {
			delete(g.forgotten, g.forgottenRing[g.forgottenNext])
			g.forgottenRing[g.forgottenNext] = id
			g.forgottenNext = (g.forgottenNext + 1) % pd.MaxTombstones
		}
		g.forgotten[id] = struct{}{}
	}
	h := g.handoffs[id]
	if h == nil {
		return
	}
	h.forget = true
	if h.open > 0 {
		g.sealLocked(h)
		return
	}
	h.sealed.Store(true)
	g.dropLocked(h)
}

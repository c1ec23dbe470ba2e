package owner

import (
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// Submit implements Service. The whole chunk is checked, for every rank,
// before any rank gets its part.
func (g *Group) Submit(w Write) error {
	g.mu.Lock()
	peer, err := g.admitLocked(&w)
	g.mu.Unlock()
	if err != nil {
		return refuse(&w, err)
	}
	// The check of a long chunk takes milliseconds; other callers and the agents
	// do not wait for it.
	c, jobs, bad := g.plan(&w, peer)
	if bad != nil {
		return refuse(&w, &pd.Error{Code: pd.CodeInvalidPlan, Err: bad})
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	again, err := g.admitLocked(&w)
	if err == nil && again != peer {
		err = pd.Errorf(pd.CodeStaleBoot, "", "the peer's registry changed meanwhile")
	}
	var h *handoff
	if err == nil {
		h, err = g.recordLocked(w.Handoff, maxHandoffs)
	}
	if err != nil {
		return refuse(&w, err)
	}
	c.handoff = h
	if h.target == nil {
		h.target = peer
	}
	h.chunks[w.Chunk] = struct{}{}
	h.open++
	g.openChunks++
	var nothing []pd.UnitResult
	for i := range c.units {
		if u := &c.units[i]; u.left == 0 {
			u.settlement = pd.Done
			nothing = append(nothing, u.result(c.id))
		}
	}
	g.unitsSettledLocked(c, nothing)
	for _, j := range jobs {
		g.lastID++
		j.id, j.dropped = g.lastID, &h.sealed
		h.ranks[j.source] = struct{}{}
		g.ranks[j.source].queue(j)
	}
	return nil
}

// refuse completes an error with what was being done and for whom.
func refuse(w *Write, err *pd.Error) error {
	err.Op = fmt.Sprintf("submit chunk %d", w.Chunk)
	err.Handoff, err.Node = w.Handoff, w.Peer.Node
	return err
}

// admitLocked decides whether a chunk may be written now, and where to.
func (g *Group) admitLocked(w *Write) (*installed, *pd.Error) {
	refuse := func(code pd.Code, format string, args ...any) (*installed, *pd.Error) {
		return nil, pd.Errorf(code, "", format, args...)
	}
	if g.closing {
		return refuse(pd.CodeOwnerLost, "the owners are closing")
	}
	if _, gone := g.forgotten[w.Handoff]; gone {
		return refuse(pd.CodeHandoffTerminal, "the handoff was forgotten")
	}
	l := g.peers[w.Peer.Node]
	switch {
	case l == nil:
		return refuse(pd.CodeRegistryMismatch, "the peer's registry is not installed")
	case l.current.peer.Boot != w.Peer.Boot:
		return refuse(pd.CodeStaleBoot, "the installed registry is of boot %s, not %s", l.current.peer.Boot, w.Peer.Boot)
	case w.RegistryEpoch != 0 && w.RegistryEpoch != l.current.epoch:
		return refuse(pd.CodeStaleBoot, "the peer was fenced after it acknowledged the chunk")
	case g.openChunks >= maxOpenChunks:
		return refuse(pd.CodeBusy, "%d chunks are unsettled", g.openChunks)
	}
	for i := range w.Writes {
		if why := g.gone[w.Writes[i].Pair.Source]; why != nil {
			return nil, goneError(w.Writes[i].Pair.Source, why)
		}
	}
	h := g.handoffs[w.Handoff]
	if h == nil {
		return l.current, nil
	}
	if h.sealed.Load() {
		return refuse(pd.CodeHandoffTerminal, "the handoff is sealed")
	}
	if _, twice := h.chunks[w.Chunk]; twice {
		return refuse(pd.CodeConflict, "the chunk was submitted before; attempts are made once")
	}
	if h.target != nil && h.target != l.current {
		return refuse(pd.CodeStaleBoot, "the peer was fenced or restarted since the handoff's first chunk")
	}
	if len(h.chunks) >= maxChunks {
		return refuse(pd.CodeInvalidPlan, "the handoff has %d chunks already", len(h.chunks))
	}
	return l.current, nil
}

// plan checks a chunk and lays it out as units and jobs. Nothing is queued.
func (g *Group) plan(w *Write, peer *installed) (*chunk, []*job, error) {
	if err := pd.CheckHexID("handoff", string(w.Handoff)); err != nil {
		return nil, nil, err
	}
	switch {
	case w.Chunk < 0:
		return nil, nil, fmt.Errorf("chunk %d: chunks count from 0", w.Chunk)
	case len(w.Writes) < 1 || len(w.Writes) > len(peer.targets):
		return nil, nil, fmt.Errorf("%d writes: want one per target rank, 1..%d", len(w.Writes), len(peer.targets))
	case len(w.Units) < 1 || len(w.Units) > len(w.Writes)*len(g.extents):
		return nil, nil, fmt.Errorf("%d units: want 1..%d", len(w.Units), len(w.Writes)*len(g.extents))
	}
	c := &chunk{id: w.Chunk, units: make([]unit, len(w.Units)), open: len(w.Units)}
	byTarget := make(map[pd.Rank]*job, len(w.Writes))
	jobs := make([]*job, 0, len(w.Writes))
	sums := make(map[pd.Rank]map[pd.ComponentID]int64, len(w.Writes))
	var checked []pd.Segment // the list that sum belongs to
	var sum map[pd.ComponentID]int64
	for i := range w.Writes {
		pair, segments := w.Writes[i].Pair, w.Writes[i].Segments
		switch {
		case pair.Source < 0 || int(pair.Source) >= len(g.ranks):
			return nil, nil, fmt.Errorf("pair %d-%d: this node has ranks 0..%d", pair.Source, pair.Target, len(g.ranks)-1)
		case pair.Target < 0 || int(pair.Target) >= len(peer.targets):
			return nil, nil, fmt.Errorf("pair %d-%d: the peer has ranks 0..%d", pair.Source, pair.Target, len(peer.targets)-1)
		case len(segments) > maxSegments:
			return nil, nil, fmt.Errorf("pair %d-%d: %d segments: want at most %d", pair.Source, pair.Target, len(segments), maxSegments)
		case byTarget[pair.Target] != nil:
			return nil, nil, fmt.Errorf("pair %d-%d: the target rank has another source already", pair.Source, pair.Target)
		}
		// All pairs of a chunk usually share one list, and all ranks of a node have
		// the same extents.
		if i == 0 || !sameList(checked, segments) {
			if _, err := transfer.CheckSegments(segments, g.extents, peer.extents); err != nil {
				return nil, nil, fmt.Errorf("pair %d-%d: %w", pair.Source, pair.Target, err)
			}
			checked, sum = segments, sumBytes(segments)
		}
		j := &job{
			handoff: w.Handoff, chunkID: w.Chunk, source: pair.Source, target: peer.targets[pair.Target], segments: segments,
			chunk: c, units: make(map[pd.ComponentID]*unit, len(g.extents)),
		}
		byTarget[pair.Target], sums[pair.Target] = j, sum
		if len(segments) > 0 {
			jobs = append(jobs, j)
		}
	}
	for i, u := range w.Units {
		j := byTarget[u.Target]
		if j == nil {
			return nil, nil, fmt.Errorf("unit %d: target rank %d has no write", i, u.Target)
		}
		if _, known := g.extents[u.Component]; !known {
			return nil, nil, fmt.Errorf("unit %d: component %q is not in the contract", i, u.Component)
		}
		if j.units[u.Component] != nil {
			return nil, nil, fmt.Errorf("unit %d: %s on target rank %d is listed twice", i, u.Component, u.Target)
		}
		if got := sums[u.Target][u.Component]; got != u.Bytes {
			return nil, nil, fmt.Errorf("unit %d: %s on target rank %d: segments add up to %d bytes, want %d",
				i, u.Component, u.Target, got, u.Bytes)
		}
		c.units[i] = unit{Unit: u, source: j.source, left: u.Bytes}
		j.units[u.Component] = &c.units[i]
	}
	for target, j := range byTarget {
		for component := range sums[target] {
			if j.units[component] == nil {
				return nil, nil, fmt.Errorf("target rank %d: segments of %s belong to no unit", target, component)
			}
		}
	}
	return c, jobs, nil
}

func sameList(a, b []pd.Segment) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// sumBytes adds up checked segments per component.
func sumBytes(segments []pd.Segment) map[pd.ComponentID]int64 {
	sum := map[pd.ComponentID]int64{}
	for i := 0; i < len(segments); {
		component, run := segments[i].Component, int64(0)
		for ; i < len(segments) && segments[i].Component == component; i++ {
			run += segments[i].Bytes
		}
		sum[component] += run
	}
	return sum
}

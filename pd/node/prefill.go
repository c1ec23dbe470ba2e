package node

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/handoff"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
	"github.com/hw-native-sys/pypto-pd/pd/mutant"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// chunk is one computed chunk on its way to decode.
type chunk struct {
	computed ChunkComputed
	snapshot lease.Snapshot
	manifest pd.Manifest
	hash     string
	// epoch is that of the registry for which the chunk was planned. Decode may
	// be fenced, and have given the pages away, before its answer is here.
	epoch pd.Epoch
	// pinned until the source is free; acked once decode gave the authority to
	// write; submitted once the owners have it.
	pinned, acked, submitted bool
}

// prefill is the prefill side of one handoff.
type prefill struct {
	// constant
	fence          pd.Fence
	continuation   *pd.Continuation
	metadataHash   string
	preparedDigest string
	order          int64

	deadline time.Duration
	// silent is when a decode that was not heard of counts as gone.
	silent time.Duration

	machine *handoff.Prefill
	// calling is the control call in flight, 0 if there is none (Invariant I-07).
	calling Op
	post    PostID
	// again: decode's data plane was made anew, so the reservation is sent once
	// more over a new session.
	again    again
	grant    *wire.Reserved
	tables   adapter.Tables
	chunks   map[pd.ChunkID]*chunk
	progress int
	fact     pd.StopFact
	// askers are abort calls that wait for the terminal fact.
	askers []CallID
}

// again is how far the one repetition of a reservation is.
type again int

const (
	reserveWaits again = iota + 1
	reserveSent
)

func (n *Node) prefillPosted(e PrefillPosted) {
	h := e.Fence.Handoff
	err := n.admit(e.Fence)
	if l := len(e.Continuation.PromptTokens); err == nil && l+e.Continuation.MaxNewTokens > n.cfg.MaxModelTokens {
		err = n.fail(h, "admit", pd.CodeContextLength, "%d prompt tokens and %d new ones exceed the model's %d", l, e.Continuation.MaxNewTokens, n.cfg.MaxModelTokens)
	}
	if err != nil {
		n.emit(EndPost{Post: e.Post, Handoff: h, Err: err})
		return
	}
	p := &prefill{
		fence: e.Fence, continuation: e.Continuation, metadataHash: e.MetadataHash, preparedDigest: e.PreparedDigest,
		deadline: n.now + n.cfg.RequestTimeout, order: n.sequence,
		machine: handoff.NewPrefill(), post: e.Post, chunks: map[pd.ChunkID]*chunk{},
	}
	n.prefills[h], n.posts[e.Post] = p, h
	n.emit(Record{Event: "HANDOFF_CREATED", Fence: p.fence})
	n.needSession(p)
}

// prefillEvent steps the machine and carries its orders out.
func (n *Node) prefillEvent(p *prefill, e handoff.Event) {
	effects, err := p.machine.Step(e)
	if err != nil {
		n.emit(Record{Event: "EVENT_REFUSED", Fence: p.fence, Code: pd.CodeOf(err), Detail: err.Error()})
		return
	}
	for _, eff := range effects {
		n.prefillEffect(p, eff)
	}
	if p.machine.State().Terminal() && n.prefills[p.fence.Handoff] == p {
		n.endPrefill(p)
	}
}

// unpin drops a chunk's pin once.
func (n *Node) unpin(p *prefill, c *chunk) {
	if c.pinned {
		c.pinned = false
		n.emit(FreePin{Key: lease.PinKey{Owner: p.fence.Handoff, Chunk: c.computed.Chunk}})
	}
}

func (n *Node) prefillEffect(p *prefill, eff handoff.Effect) {
	h := p.fence.Handoff
	switch eff.Kind {
	case handoff.SendReserve:
		n.call(p, OpReserve, wire.Reserve{
			Fence: p.fence, ContractDigest: n.cfg.ContractDigest, PromptTokenCount: len(p.continuation.PromptTokens),
			Continuation: *p.continuation, MetadataHash: p.metadataHash, PreparedDigest: p.preparedDigest,
			RemainingMillis: (p.deadline - n.now).Milliseconds(),
		})
	case handoff.CancelCall:
		n.emit(CancelCall{Handoff: h, Op: OpReserve})
	case handoff.StartPrefill:
		n.emit(Record{Event: "HANDOFF_RESERVED", Fence: p.fence})
		n.emit(StartPrefill{Handoff: h, Request: p.fence.Request, Continuation: p.continuation})
	case handoff.SendChunk:
		n.sendChunk(p, p.chunks[eff.Chunk])
	case handoff.Submit:
		n.submit(p, p.chunks[eff.Chunk])
	case handoff.Resume:
		n.emit(ResumePrefill{Handoff: h})
	case handoff.StopPrefill:
		n.emit(StopPrefill{Handoff: h})
	case handoff.Seal:
		if mutant.Off(mutant.SealFirst) {
			n.sealed(Sealed{Handoff: h, Fact: pd.DefiniteFailed})
			return
		}
		n.emit(Seal{Handoff: h})
	case handoff.Unpin:
		n.unpin(p, p.chunks[eff.Chunk])
	case handoff.SendResults:
		n.call(p, OpResults, wire.Results{Fence: p.fence, Results: eff.Results})
	case handoff.SendCommit:
		final := p.final()
		n.call(p, OpCommit, wire.Commit{
			Fence: p.fence, ManifestHash: final.hash, FirstToken: final.computed.FirstToken,
			MetadataHash: p.metadataHash, Results: eff.Results,
		})
	case handoff.SendAbort:
		p.fact = eff.Fact
		n.call(p, OpAbort, wire.Abort{
			Fence: p.fence, From: pd.Prefill.String(), Reason: reasonText(eff.Err), Fact: eff.Fact, Results: eff.Results,
		})
	case handoff.Gate:
		if p.sourceHeld() {
			n.gate(h, reasonText(eff.Err))
			n.emit(Record{Event: "RECOVERY_REQUIRED", Fence: p.fence, Code: pd.CodeUncertain, Detail: reasonText(eff.Err)})
		}
	case handoff.EndPost:
		n.endPost(&p.post, h, eff.Err)
	default:
		panic(fmt.Sprintf("node: prefill effect %v", eff.Kind))
	}
}

// sourceHeld says that the provider may still read pages of this handoff. Pins
// of chunks that were never submitted go with its end.
func (p *prefill) sourceHeld() bool {
	for _, c := range p.chunks {
		if c.pinned && c.submitted {
			return true
		}
	}
	return false
}

func reasonText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (n *Node) call(p *prefill, op Op, message any) {
	if p.calling != 0 {
		panic(fmt.Sprintf("invariant I-07: %v of %s while %v is in flight", op, p.fence.Handoff, p.calling))
	}
	p.calling = op
	n.emit(Call{Handoff: p.fence.Handoff, Op: op, Peer: p.fence.Decode, Message: message, Timeout: n.cfg.HandoffTimeout})
}

func (p *prefill) final() *chunk {
	for _, c := range p.chunks {
		if c.computed.Final {
			return c
		}
	}
	return nil
}

// stopPrefill ends a handoff early; what that takes depends on its state.
func (n *Node) stopPrefill(p *prefill, reason error) {
	n.prefillEvent(p, handoff.Event{Kind: handoff.Stop, Err: reason})
}

// chunkComputed takes the pin in the same step that learns of the chunk, so
// that no ring can turn in between (Invariant SourceStableUntilSourceDone).
func (n *Node) chunkComputed(e ChunkComputed) {
	p, key := n.prefills[e.Handoff], lease.PinKey{Owner: e.Handoff, Chunk: e.Chunk}
	if p == nil || p.machine.State() != handoff.Prefilling {
		// Being stopped; the engine was told.
		if host, ok := n.cfg.Allocator.(lease.Deferred); ok {
			host.Unpinned(key)
		}
		return
	}
	if int(e.Chunk) != len(p.chunks) || e.Span.Start != p.progress {
		panic(fmt.Sprintf("invariant I-09: chunk %d [%d,%d) of %s comes after %d chunks up to %d", e.Chunk, e.Span.Start, e.Span.End, e.Handoff, len(p.chunks), p.progress))
	}
	snapshot, err := n.ledger.Pin(key)
	if err != nil {
		panic("invariant I-10: " + err.Error())
	}
	p.chunks[e.Chunk] = &chunk{computed: e, snapshot: snapshot, pinned: true}
	p.progress = e.Span.End
	n.prefillEvent(p, handoff.Event{Kind: handoff.ChunkComputed, Chunk: e.Chunk, Final: e.Final})
}

// sendChunk plans a chunk and offers it to decode.
func (n *Node) sendChunk(p *prefill, c *chunk) {
	peer := n.openTo(p.fence.Decode)
	if peer == nil {
		n.prefillEvent(p, handoff.Event{Kind: handoff.Refused, Err: n.fail(p.fence.Handoff, "plan", pd.CodeStaleBoot, "the session to %s is gone", p.fence.Decode)})
		return
	}
	m, err := adapter.Build(adapter.Input{
		Contract: n.cfg.Contract, Fence: p.fence, PromptTokens: len(p.continuation.PromptTokens),
		Chunk: c.computed.Chunk, Span: c.computed.Span, Final: c.computed.Final,
		Source: n.cfg.Registry.Topology, SourcePartition: c.computed.Partition, SourceTables: c.snapshot.Tables,
		SourcePeriods: n.cfg.Registry.RingPeriods, SourceHit: c.computed.HitTokens, SourceSlot: c.snapshot.Slot,
		Target: peer.registry.Topology, TargetPartition: p.grant.Partition, TargetTables: p.tables,
		TargetPeriods: peer.registry.RingPeriods, TargetHit: p.grant.HitTokens,
		TargetSlot: p.grant.BootstrapSlot, TargetGeneration: p.grant.Generation,
		FirstToken: c.computed.FirstToken, MetadataHash: p.metadataHash, PreparedDigest: p.preparedDigest,
	})
	if err == nil {
		c.hash, err = wire.ManifestHash(&m)
	}
	if err != nil {
		n.prefillEvent(p, handoff.Event{Kind: handoff.Refused, Err: err})
		return
	}
	c.manifest, c.epoch = m, peer.registry.Epoch()
	n.emit(n.chunkRecord("CHUNK_PLANNED", p.fence, &m))
	n.call(p, OpChunk, wire.Chunk{Manifest: m, ManifestHash: c.hash})
	if mutant.Off(mutant.AckFirst) {
		n.submit(p, c)
	}
}

// chunkRecord says what a chunk moves, for the journal.
func (n *Node) chunkRecord(event string, f pd.Fence, m *pd.Manifest) Record {
	r := Record{Event: event, Fence: f, Chunk: m.Chunk, Span: m.Span, Ranks: len(m.RankMap), Regions: map[pd.ComponentID]int64{}}
	for _, u := range m.Units {
		r.Bytes += u.Bytes
		r.Regions[u.Component] += u.Bytes
	}
	return r
}

// submit lowers an acknowledged chunk and hands it to the owners.
func (n *Node) submit(p *prefill, c *chunk) {
	if !c.acked && !mutant.Off(mutant.AckFirst) {
		panic(fmt.Sprintf("invariant I-01: chunk %d of %s was not acknowledged", c.computed.Chunk, p.fence.Handoff))
	}
	peer := n.openTo(p.fence.Decode)
	if peer == nil {
		n.failUnits(p, c, pd.CodeStaleBoot.String())
		return
	}
	writes, err := adapter.Lower(n.cfg.Contract, &c.manifest, n.cfg.Registry.PagesPerLayer, peer.registry.PagesPerLayer,
		n.cfg.Registry.BootstrapSlots, peer.registry.BootstrapSlots)
	if err != nil {
		n.failUnits(p, c, pd.CodeOf(err).String())
		return
	}
	c.submitted = true
	n.emit(n.chunkRecord("CHUNK_SUBMITTED", p.fence, &c.manifest))
	n.emit(Submit{Handoff: p.fence.Handoff, Chunk: c.computed.Chunk, Peer: p.fence.Decode, RegistryEpoch: c.epoch, Writes: writes, Units: c.manifest.Units})
}

// failUnits settles a chunk of which nothing was submitted.
func (n *Node) failUnits(p *prefill, c *chunk, detail string) {
	results := make([]pd.UnitResult, len(c.manifest.Units))
	for i, u := range c.manifest.Units {
		results[i] = pd.UnitResult{Chunk: c.computed.Chunk, Target: u.Target, Component: u.Component, Settlement: pd.Failed, Detail: detail}
		for _, pair := range c.manifest.RankMap {
			if pair.Target == u.Target {
				results[i].Source = pair.Source
			}
		}
	}
	n.prefillEvent(p, handoff.Event{Kind: handoff.ChunkSettled, Chunk: c.computed.Chunk, Results: results, SourceFree: true})
}

func (n *Node) submitRefused(e SubmitRefused) {
	if p := n.prefills[e.Handoff]; p != nil {
		n.doubtSession(p.fence.Decode)
		n.failUnits(p, p.chunks[e.Chunk], pd.CodeOf(e.Err).String())
	}
}

func (n *Node) chunkSettled(e ChunkSettled) {
	p := n.prefills[e.Handoff]
	if p == nil {
		if e.SourceFree {
			n.sourceFreed(SourceFreed{Handoff: e.Handoff, Chunk: e.Chunk})
		}
		return
	}
	c := p.chunks[e.Chunk]
	r := n.chunkRecord("CHUNK_SETTLED", p.fence, &c.manifest)
	for _, u := range e.Results {
		if u.Settlement != pd.Done {
			r.Code, r.Detail = pd.CodeTransferFailed, u.Detail
			if u.Settlement == pd.Uncertain {
				r.Code = pd.CodeUncertain
				break
			}
		}
	}
	n.emit(r)
	if r.Code != 0 {
		n.doubtSession(p.fence.Decode)
	}
	n.prefillEvent(p, handoff.Event{Kind: handoff.ChunkSettled, Chunk: e.Chunk, Results: e.Results, SourceFree: e.SourceFree})
}

// sourceFreed lets the pin of a chunk go. Where the handoff has ended Uncertain
// the gate goes with its last pin.
func (n *Node) sourceFreed(e SourceFreed) {
	if p := n.prefills[e.Handoff]; p != nil {
		if c := p.chunks[e.Chunk]; c != nil {
			n.unpin(p, c)
		}
		return
	}
	key, pins := lease.PinKey{Owner: e.Handoff, Chunk: e.Chunk}, n.ledger.PinsOf(e.Handoff)
	if !slices.Contains(pins, key) {
		return // a fence was first
	}
	n.emit(FreePin{Key: key})
	if len(pins) == 1 {
		delete(n.gates, e.Handoff)
	}
}

func (n *Node) sealed(e Sealed) {
	if p := n.prefills[e.Handoff]; p != nil {
		p.fact = e.Fact
		n.prefillEvent(p, handoff.Event{Kind: handoff.Sealed, Fact: e.Fact})
	}
}

func (n *Node) prefillStopped(e PrefillStopped) {
	if p := n.prefills[e.Handoff]; p != nil {
		err := e.Err
		if err == nil && p.machine.State() == handoff.Prefilling {
			err = n.fail(e.Handoff, "prefill", pd.CodeInternal, "the engine stopped the prompt by itself")
		}
		n.prefillEvent(p, handoff.Event{Kind: handoff.EngineStopped, Err: err})
	}
}

// prefillReturned takes the answer of a control call in.
func (n *Node) prefillReturned(p *prefill, e Returned) {
	p.calling = 0
	if n.staleSession(p, e) {
		return
	}
	if e.Err == nil {
		n.heardDecode(p)
	} else {
		n.prefillEvent(p, handoff.Event{Kind: handoff.Refused, Err: e.Err})
		return
	}
	switch a := e.Answer.(type) {
	case wire.Reserved:
		n.granted(p, &a)
	case wire.ChunkAck:
		if c := p.chunks[a.Chunk]; c != nil {
			c.acked = true
		}
		n.prefillEvent(p, handoff.Event{Kind: handoff.ChunkAcked, Chunk: a.Chunk})
	case wire.Ack:
		n.prefillEvent(p, handoff.Event{Kind: handoff.ResultsAcked})
	case wire.Committed:
		n.emit(Record{Event: "HANDOFF_COMMITTED", Fence: p.fence})
		n.prefillEvent(p, handoff.Event{Kind: handoff.Committed})
	case wire.Status:
		n.prefillEvent(p, handoff.Event{Kind: handoff.AbortAnswered})
	default:
		panic(fmt.Sprintf("node: answer %T to %v", e.Answer, e.Op))
	}
}

// staleSession notes that decode has another life or another data plane than
// this session's. A reservation is sent once more over a new session; true if
// it is.
func (n *Node) staleSession(p *prefill, e Returned) bool {
	code := pd.CodeOf(e.Err)
	if code != pd.CodeStaleBoot && code != pd.CodeSessionStale {
		return false
	}
	if n.openTo(p.fence.Decode) != nil {
		delete(n.sessions, p.fence.Decode)
	}
	if code == pd.CodeStaleBoot || e.Op != OpReserve || p.again != 0 || p.machine.State() != handoff.Reserving {
		return false
	}
	p.again = reserveWaits
	n.needSession(p)
	return true
}

// granted checks decode's grant before anything is computed for it.
func (n *Node) granted(p *prefill, r *wire.Reserved) {
	p.grant, p.tables = r, adapter.Tables{}
	err := n.grantError(p, r)
	n.prefillEvent(p, handoff.Event{Kind: handoff.Granted})
	if err != nil {
		n.stopPrefill(p, n.fail(p.fence.Handoff, "reserve", pd.CodeInvalidPlan, "decode's grant: %v", err))
	}
}

func (n *Node) grantError(p *prefill, r *wire.Reserved) error {
	peer := n.openTo(p.fence.Decode)
	if peer == nil {
		return fmt.Errorf("the session to %s is gone", p.fence.Decode)
	}
	if int(r.Partition) < 0 || int(r.Partition) >= peer.registry.Topology.Partitions() {
		return fmt.Errorf("partition %d of %d", r.Partition, peer.registry.Topology.Partitions())
	}
	if r.BootstrapSlot < 0 || r.BootstrapSlot >= peer.registry.BootstrapSlots {
		return fmt.Errorf("bootstrap slot %d of %d", r.BootstrapSlot, peer.registry.BootstrapSlots)
	}
	for _, g := range n.cfg.Contract.Groups {
		table, err := pd.TableOf(r.Tables[g.Name], pd.MaxTablePages)
		if err != nil {
			return fmt.Errorf("group %s: %w", g.Name, err)
		}
		for _, page := range table {
			if int(page) >= peer.registry.PagesPerLayer[g.Name] {
				return fmt.Errorf("group %s: page %d of %d", g.Name, page, peer.registry.PagesPerLayer[g.Name])
			}
		}
		p.tables[g.Name] = table
	}
	return nil
}

// endPrefill turns an ended handoff into a tombstone and answers who waits.
func (n *Node) endPrefill(p *prefill) {
	h := p.fence.Handoff
	state := p.machine.State()
	for _, id := range slices.Sorted(maps.Keys(p.chunks)) {
		if c := p.chunks[id]; state != handoff.PrefillQuarantined || !c.submitted {
			n.unpin(p, c) // never submitted, or proven to have ended
		}
	}
	status := n.prefillStatus(p)
	if state == handoff.PrefillAborted && status.Fact == 0 {
		status.Fact = pd.NeverSubmitted // it ended before anything could be acknowledged
	}
	n.unclear = n.unclear || state == handoff.PrefillQuarantined
	delete(n.prefills, h)
	n.endPost(&p.post, h, p.machine.Reason())
	// Decode learns the fact from the abort; if that call failed, it asks.
	n.bury(p.fence, status, len(p.machine.Unreported()) > 0 || state == handoff.PrefillQuarantined)
	for _, call := range p.askers {
		n.emit(Answer{Call: call, Message: status})
	}
	n.emit(Forget{Handoff: h})
	event := "HANDOFF_COMPLETED"
	if state != handoff.Retired {
		event = "HANDOFF_FAILED"
	}
	n.emit(Record{Event: event, Fence: p.fence, Code: codeOrZero(p.machine.Reason()), Detail: reasonText(p.machine.Reason())})
}

func codeOrZero(err error) pd.Code {
	if err == nil {
		return 0
	}
	return pd.CodeOf(err)
}

func (n *Node) prefillStatus(p *prefill) wire.Status {
	s := wire.Status{
		Role: pd.Prefill, State: p.machine.State().String(), Progress: p.progress, Fact: p.fact,
		Why: reasonText(p.machine.Reason()),
	}
	for _, c := range p.chunks {
		if c.pinned {
			for _, t := range c.snapshot.Tables {
				s.Held += len(t)
			}
		}
	}
	if r := p.machine.Reason(); r != nil {
		s.Code = pd.CodeOf(r).String()
	}
	if p.grant != nil {
		s.Reservation = p.grant.Reservation
	}
	if p.machine.State() == handoff.Retired {
		s.Fact, s.Admitted = pd.AllDone, true
	}
	return s
}

package node

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/handoff"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// decode is the decode side of one handoff.
type decode struct {
	// constant
	fence pd.Fence

	machine *handoff.Decode
	post    PostID
	stream  bool
	// reserve and call are prefill's reservation and the call that waits for it.
	reserve *wire.Reserve
	call    CallID
	prefix  pd.PrefixHashes
	// granting: the host was asked for the memory and has not decided yet.
	granting bool
	grant    lease.Grant
	pages    int

	// what the acknowledged chunks fixed
	hashes   []string
	received map[pd.GroupName][]pd.Span // logical pages, by group, ascending
	// written has a bit for every page of a component that a chunk writes.
	written         map[pd.ComponentID][]uint64
	end             int
	final           *pd.Manifest
	sourcePartition pd.Partition
	sourceHit       int

	// deadline ends the present wait; askAt is when prefill is asked next, ask
	// the pause after that.
	deadline time.Duration
	// silent is when a prefill that was not heard of counts as gone, doubt when an
	// abort that cannot reach it stops hoping.
	silent, doubt time.Duration
	askAt         time.Duration
	ask           time.Duration
	asking        bool
	// told: prefill stated its fact or knows that decode is through.
	told   bool
	askers []CallID
	// started: the engine got the request; running: it may still touch the pages.
	started, running bool
	// proven: a proof came while the engine was running.
	proven bool
}

// holdsSlot says whether a handoff counts against capacity. A quarantined lease
// counts apart.
func (d *decode) holdsSlot() bool {
	return d.machine.State() != handoff.DecodeQuarantined && (d.post != 0 || d.machine.State() != handoff.Waiting)
}

func (n *Node) decodePosted(e DecodePosted) {
	h := e.Fence.Handoff
	d := n.decodes[h]
	err := n.admit(e.Fence)
	if err == nil && d != nil {
		switch {
		case d.post != 0 || d.machine.State() != handoff.Waiting:
			err = n.fail(h, "admit", pd.CodeDuplicateHandoff, "this handoff was posted before")
		case d.fence != e.Fence:
			err = n.fail(h, "admit", pd.CodeIdentity, "prefill reserved with another %s", d.fence.Diff(e.Fence))
		}
	}
	if err != nil {
		n.emit(EndPost{Post: e.Post, Handoff: h, Err: err})
		return
	}
	if d == nil {
		d = n.newDecode(e.Fence)
	}
	d.post, d.stream = e.Post, e.Stream
	n.posts[e.Post] = h
	n.decodeEvent(d, handoff.Event{Kind: handoff.PostOpened})
}

func (n *Node) newDecode(f pd.Fence) *decode {
	d := &decode{
		fence: f, machine: handoff.NewDecode(), deadline: n.now + n.cfg.HandoffTimeout, written: map[pd.ComponentID][]uint64{},
	}
	n.decodes[f.Handoff] = d
	n.emit(Record{Event: "HANDOFF_CREATED", Fence: f})
	return d
}

// decodeEvent steps the machine and carries its orders out.
func (n *Node) decodeEvent(d *decode, e handoff.Event) {
	effects, err := d.machine.Step(e)
	if err != nil {
		n.emit(Record{Event: "EVENT_REFUSED", Fence: d.fence, Code: pd.CodeOf(err), Detail: err.Error()})
		return
	}
	for _, eff := range effects {
		n.decodeEffect(d, eff)
	}
	if d.machine.State().Terminal() && n.decodes[d.fence.Handoff] == d {
		n.endDecode(d)
	}
}

func (n *Node) decodeEffect(d *decode, eff handoff.Effect) {
	h := d.fence.Handoff
	switch eff.Kind {
	case handoff.Reserve:
		n.reserveLease(d)
	case handoff.AnswerReserve:
		n.answerReserve(d, eff.Err)
	case handoff.AcceptPost:
		d.deadline = n.now + n.cfg.RequestTimeout
		n.heardPrefill(d)
		n.askLater(d, n.askInterval())
		n.emit(Record{Event: "HANDOFF_RESERVED", Fence: d.fence, Count: int64(d.grant.HitTokens)})
		n.emit(AcceptPost{Post: d.post, HitTokens: d.grant.HitTokens})
	case handoff.Adopt:
		if err := n.ledger.Adopt(h); err != nil {
			panic("invariant I-04: " + err.Error())
		}
		d.askAt, d.told, d.started, d.running = 0, true, true, true
		n.emit(Record{Event: "DECODE_ADMITTED", Fence: d.fence})
		n.emit(Adopt{
			Handoff: h, Request: d.fence.Request, Continuation: &d.reserve.Continuation, FirstToken: *d.final.FirstToken,
			Partition: d.grant.Partition, HitTokens: d.grant.HitTokens, CachedTokens: d.sourceHit, BootstrapSlot: d.grant.Slot,
		})
	case handoff.StopDecode:
		n.emit(StopDecode{Handoff: h})
	case handoff.Release:
		n.releaseLease(d)
	case handoff.AbortPeer:
		d.deadline = n.now + n.cfg.HandoffTimeout
		d.doubt = n.now + min(n.cfg.HandoffTimeout, pd.UnreachableMost)
		if !d.told {
			n.askFact(d)
		}
	case handoff.Gate:
		n.gate(h, reasonText(eff.Err))
		n.emit(Record{Event: "RECOVERY_REQUIRED", Fence: d.fence, Code: pd.CodeUncertain, Detail: reasonText(eff.Err)})
		n.answerAskers(d)
	case handoff.EndPost:
		n.endPost(&d.post, h, eff.Err)
	default:
		panic(fmt.Sprintf("node: decode effect %v", eff.Kind))
	}
}

// reserveLease asks the ledger for memory; the POST is open here by the
// machine's Invariant I-08.
func (n *Node) reserveLease(d *decode) {
	c := &d.reserve.Continuation
	if c.Stream != d.stream {
		n.decodeEvent(d, handoff.Event{Kind: handoff.Refused, Err: n.fail(d.fence.Handoff, "reserve", pd.CodeInvalidRequest, "the two POSTs disagree on stream")})
		return
	}
	g, err := n.ledger.Reserve(lease.Demand{
		Owner: d.fence.Handoff, Tokens: len(c.PromptTokens), Receiving: true,
		Prefix: d.prefix, HitLimit: n.cfg.Adapter.TargetHitLimit(len(c.PromptTokens)),
	})
	switch {
	case errors.Is(err, lease.ErrLater):
		d.granting = true
		return
	case err != nil:
		n.decodeEvent(d, handoff.Event{Kind: handoff.Refused, Err: err})
		return
	}
	if g.ColdRetry {
		n.emit(Record{Event: "RESERVE_COLD_RETRY", Fence: d.fence})
	}
	for _, pages := range g.Shared {
		slices.Sort(pages) // for noteTargets
	}
	d.grant = g
	l, _ := n.ledger.Lease(d.fence.Handoff)
	d.pages = l.Pages
	n.decodeEvent(d, handoff.Event{Kind: handoff.Granted})
}

// grantDecided asks the ledger again. Who did not wait for it any more has
// withdrawn the demand.
func (n *Node) grantDecided(e GrantDecided) {
	if d := n.decodes[e.Handoff]; d != nil && d.granting {
		d.granting = false
		n.reserveLease(d)
	}
}

// withdraw tells the host that memory is not wanted any more.
func (n *Node) withdraw(d *decode) {
	if d.granting {
		d.granting = false
		n.cfg.Allocator.(lease.Deferred).Withdraw(d.fence.Handoff)
	}
}

func (n *Node) answerReserve(d *decode, err error) {
	if d.call == 0 {
		return
	}
	call := d.call
	d.call = 0
	if err != nil {
		n.emit(Answer{Call: call, Err: err})
		return
	}
	r := wire.Reserved{
		Reservation: pd.ReservationID("pd-" + string(d.fence.Handoff)), Partition: d.grant.Partition,
		Tables: map[pd.GroupName][]pd.PageRun{}, HitTokens: d.grant.HitTokens,
		BootstrapSlot: d.grant.Slot, Generation: d.grant.Generation,
	}
	for g, t := range d.grant.Tables {
		r.Tables[g] = t.Runs()
	}
	n.emit(Answer{Call: call, Message: r})
}

// releaseLease ends the lease; the memory follows as the step's last effect.
func (n *Node) releaseLease(d *decode) {
	h := d.fence.Handoff
	l, ok := n.ledger.Lease(h)
	if !ok {
		return
	}
	var err error
	if l.State == lease.Quarantined {
		err = n.ledger.Resolve(h)
	} else {
		err = n.ledger.Release(h)
	}
	if err != nil {
		panic("invariant I-02: " + err.Error())
	}
	delete(n.gates, h)
	n.emit(FreeLease{Handoff: h})
}

// reserveCalled takes prefill's reservation in.
func (n *Node) reserveCalled(call CallID, r wire.Reserve, prefix pd.PrefixHashes) {
	h := r.Fence.Handoff
	d := n.decodes[h]
	refuse := func(code pd.Code, format string, args ...any) {
		err := n.fail(h, "reserve", code, format, args...)
		n.emit(Answer{Call: call, Err: err}, Record{Event: "CONTROL_MESSAGE_REJECTED", Fence: r.Fence, Code: code, Detail: err.Error()})
	}
	if err := n.fenceError(r.Fence); err != nil {
		n.emit(Answer{Call: call, Err: err})
		return
	}
	tomb := n.tombstones[h]
	switch {
	case tomb != nil:
		refuse(pd.CodeHandoffTerminal, "the handoff is %s: %s", tomb.status.State, tomb.status.Why)
	case d == nil && n.draining:
		refuse(pd.CodeDraining, "the node is shutting down")
	case n.gated() && (d == nil || d.reserve == nil):
		refuse(pd.CodeNodeGated, "%s", n.gateReason())
	case n.sessions[r.Fence.Prefill] == nil:
		refuse(pd.CodeSessionStale, "no session with %s", r.Fence.Prefill)
	case r.ContractDigest != n.cfg.ContractDigest:
		refuse(pd.CodeContractMismatch, "contract digest differs from this node's")
	case len(r.Continuation.PromptTokens) != r.PromptTokenCount || r.PromptTokenCount < 1:
		refuse(pd.CodeInvalidLength, "%d prompt tokens are announced, %d were sent", r.PromptTokenCount, len(r.Continuation.PromptTokens))
	case r.Continuation.MaxNewTokens < 1 || r.PromptTokenCount+r.Continuation.MaxNewTokens > n.cfg.MaxModelTokens:
		refuse(pd.CodeInvalidLength, "%d prompt tokens and %d new ones, the model holds %d", r.PromptTokenCount, r.Continuation.MaxNewTokens, n.cfg.MaxModelTokens)
	case d != nil && d.fence != r.Fence:
		refuse(pd.CodeIdentity, "%s differs from the POST's", d.fence.Diff(r.Fence))
	case d != nil && d.reserve != nil && d.reserve.PreparedDigest != r.PreparedDigest:
		refuse(pd.CodeReplayMismatch, "the handoff was reserved with other content")
	case d != nil && d.reserve != nil && d.machine.State() == handoff.Waiting:
		n.answerReserve(d, n.fail(h, "reserve", pd.CodeConflict, "the same reservation was sent again"))
		d.call = call
	case d != nil && d.reserve != nil:
		d.call = call
		n.answerReserve(d, nil)
	case d == nil && len(n.decodes) >= 2*n.cfg.Capacity:
		refuse(pd.CodeBusy, "%d handoffs wait, the limit is %d", len(n.decodes), 2*n.cfg.Capacity)
	default:
		if d == nil {
			d = n.newDecode(r.Fence)
		}
		d.reserve, d.call, d.prefix = &r, call, prefix
		n.decodeEvent(d, handoff.Event{Kind: handoff.ReserveCalled})
	}
}

// live finds a handoff that a message of prefill may change; else it answers
// the terminal fact.
func (n *Node) live(call CallID, op string, f pd.Fence) *decode {
	if err := n.fenceError(f); err != nil {
		n.emit(Answer{Call: call, Err: err})
		return nil
	}
	d := n.decodes[f.Handoff]
	if d == nil {
		if t := n.tombstones[f.Handoff]; t != nil {
			n.emit(Answer{Call: call, Err: n.fail(f.Handoff, op, pd.CodeHandoffTerminal, "the handoff is %s: %s", t.status.State, t.status.Why)})
		} else {
			n.emit(Answer{Call: call, Err: n.fail(f.Handoff, op, pd.CodeUnknownKey, "no such handoff here")})
		}
		return nil
	}
	if field := d.fence.Diff(f); field != "" {
		n.emit(Answer{Call: call, Err: n.fail(f.Handoff, op, pd.CodeIdentity, "%s differs from the reservation's", field)})
		return nil
	}
	n.heardPrefill(d)
	return d
}

// chunkCalled checks an offered chunk against this node's own plan. The answer
// is the only authority to write.
func (n *Node) chunkCalled(call CallID, c wire.Chunk) {
	m := &c.Manifest
	if n.fencing != nil {
		// No authority is given while the data plane is about to be made anew.
		n.fencing.held = append(n.fencing.held, heldChunk{call, c})
		return
	}
	d := n.live(call, "chunk", m.Fence)
	if d == nil {
		return
	}
	if err := n.chunkError(d, &c); err != nil {
		n.emit(Answer{Call: call, Err: err}, Record{Event: "CONTROL_MESSAGE_REJECTED", Fence: d.fence, Chunk: m.Chunk, Code: pd.CodeOf(err), Detail: err.Error()})
		return
	}
	if int(m.Chunk) == len(d.hashes) {
		if err := n.ledger.Authorize(d.fence.Handoff, m.Chunk, m.Final, m.Units); err != nil {
			n.emit(Answer{Call: call, Err: err})
			return
		}
		n.noteTargets(d, m)
		d.hashes = append(d.hashes, c.ManifestHash)
		d.end, d.sourcePartition, d.sourceHit = m.Span.End, m.SourcePartition, m.SourceHitTokens
		d.receive(adapter.Moved(n.planOf(d, m, n.sessions[d.fence.Prefill])))
		if m.Final {
			d.final = m
		}
		n.emit(n.chunkRecord("CHUNK_REGISTERED", d.fence, m))
		n.decodeEvent(d, handoff.Event{Kind: handoff.Authorized})
	}
	n.emit(Answer{Call: call, Message: wire.ChunkAck{Chunk: m.Chunk}})
}

func (n *Node) chunkError(d *decode, c *wire.Chunk) error {
	m, h := &c.Manifest, d.fence.Handoff
	switch state := d.machine.State(); {
	case state != handoff.Reserved && state != handoff.Transferring:
		return n.fail(h, "chunk", pd.CodeHandoffTerminal, "the handoff is %v: %s", state, reasonText(d.machine.Reason()))
	case int(m.Chunk) > len(d.hashes):
		return n.fail(h, "chunk", pd.CodeOutOfOrder, "chunk %d, want %d", m.Chunk, len(d.hashes))
	case int(m.Chunk) < len(d.hashes) && d.hashes[m.Chunk] == c.ManifestHash:
		return nil // the same chunk again, still transferring
	case int(m.Chunk) < len(d.hashes):
		return n.fail(h, "chunk", pd.CodeConflict, "chunk %d was acknowledged with other content", m.Chunk)
	case d.final != nil:
		return n.fail(h, "chunk", pd.CodeConflict, "chunk %d after the final chunk", m.Chunk)
	case m.Span.Start != d.end:
		return n.fail(h, "chunk", pd.CodeInvalidPlan, "chunk %d starts at %d, the one before ended at %d", m.Chunk, m.Span.Start, d.end)
	case m.Chunk > 0 && (m.SourcePartition != d.sourcePartition || m.SourceHitTokens != d.sourceHit):
		return n.fail(h, "chunk", pd.CodeInvalidPlan, "source partition or prefix hit changed within the handoff")
	}
	peer := n.sessions[d.fence.Prefill]
	if peer == nil {
		return n.fail(h, "chunk", pd.CodeSessionStale, "no session with %s", d.fence.Prefill)
	}
	return adapter.Verify(n.planOf(d, m, peer), m)
}

// planOf is this node's own side of a chunk's plan, with what the session says
// of prefill.
func (n *Node) planOf(d *decode, m *pd.Manifest, peer *session) adapter.Input {
	return adapter.Input{
		Contract: n.cfg.Contract, Fence: d.fence, PromptTokens: d.reserve.PromptTokenCount,
		Chunk: m.Chunk, Span: m.Span, Final: m.Final, SourceHit: m.SourceHitTokens,
		Source: peer.registry.Topology, SourcePeriods: peer.registry.RingPeriods,
		Target: n.cfg.Registry.Topology, TargetPartition: d.grant.Partition, TargetTables: d.grant.Tables,
		TargetPeriods: n.cfg.Registry.RingPeriods, TargetHit: d.grant.HitTokens,
		TargetSlot: d.grant.Slot, TargetGeneration: d.grant.Generation,
		MetadataHash: d.reserve.MetadataHash, PreparedDigest: d.reserve.PreparedDigest,
	}
}

// noteTargets looks at every page that an accepted chunk will write. The plan is
// this node's own by now, so that a page which others may read, or which an
// earlier chunk wrote, is a broken invariant and no mistake of the peer.
func (n *Node) noteTargets(d *decode, m *pd.Manifest) {
	var c pd.Component
	for _, cp := range m.Copies {
		if c.ID != cp.Component {
			c, _ = n.cfg.Contract.Component(cp.Component)
		}
		shared := d.grant.Shared[c.Group]
		if i, _ := slices.BinarySearch(shared, cp.Target); i < len(shared) && shared[i] < cp.Target+pd.Page(cp.Count) {
			panic(fmt.Sprintf("invariant I-16: chunk %d of %s would write %s into shared page %d", m.Chunk, d.fence.Handoff, cp.Component, shared[i]))
		}
		if d.written[c.ID] == nil {
			d.written[c.ID] = make([]uint64, n.cfg.Registry.PagesPerLayer[c.Group]/64+1)
		}
		for page := cp.Target; page < cp.Target+pd.Page(cp.Count); page++ {
			word, bit := &d.written[c.ID][page/64], uint64(1)<<(page%64)
			if *word&bit != 0 {
				panic(fmt.Sprintf("invariant I-19: chunk %d of %s would write page %d of %s again", m.Chunk, d.fence.Handoff, page, cp.Component))
			}
			*word |= bit
		}
	}
}

// settle takes facts in. It reports the first that makes the lease uncertain.
func (n *Node) settle(d *decode, results []pd.UnitResult) error {
	var first error
	for _, r := range results {
		err := n.ledger.Settle(d.fence.Handoff, r)
		if err == nil && r.Settlement == pd.Uncertain {
			err = n.fail(d.fence.Handoff, "transfer", pd.CodeUncertain, "chunk %d, %s on rank %d is uncertain (%s)", r.Chunk, r.Component, r.Target, r.Detail)
		}
		if first == nil {
			first = err
		}
	}
	if l, ok := n.ledger.Lease(d.fence.Handoff); ok && l.State == lease.Quarantined && d.machine.State() != handoff.DecodeQuarantined {
		n.decodeEvent(d, handoff.Event{Kind: handoff.Uncertain, Err: first})
	}
	return first
}

// writersGone ends the wait for a fact once every acknowledged write has one:
// an abort is over then, and a quarantine for want of facts, too.
func (n *Node) writersGone(d *decode) {
	l, ok := n.ledger.Lease(d.fence.Handoff)
	if !ok || l.Unsettled > 0 || n.decodes[d.fence.Handoff] != d {
		return
	}
	switch d.machine.State() {
	case handoff.DecodeAborting:
		n.decodeEvent(d, handoff.Event{Kind: handoff.WritersGone})
	case handoff.DecodeQuarantined:
		n.prove(d)
	}
}

func (n *Node) resultsCalled(call CallID, r wire.Results) {
	d := n.live(call, "result", r.Fence)
	if d == nil {
		return
	}
	if err := n.settle(d, r.Results); err != nil && pd.CodeOf(err) != pd.CodeUncertain {
		n.emit(Answer{Call: call, Err: err})
		return
	}
	n.writersGone(d)
	n.emit(Answer{Call: call, Message: wire.Ack{}})
}

func (n *Node) commitCalled(call CallID, c wire.Commit) {
	h := c.Fence.Handoff
	if t := n.tombstones[h]; t != nil && t.fence == c.Fence && t.status.Admitted && t.status.ManifestHash == c.ManifestHash {
		n.emit(Answer{Call: call, Message: wire.Committed{Reservation: t.status.Reservation, ManifestHash: c.ManifestHash, Admitted: true}})
		return
	}
	d := n.live(call, "commit", c.Fence)
	if d == nil {
		return
	}
	if d.final != nil && d.hashes[len(d.hashes)-1] == c.ManifestHash && d.started {
		n.emit(Answer{Call: call, Message: wire.Committed{Reservation: reservation(d), ManifestHash: c.ManifestHash, Admitted: true}})
		return
	}
	if err := n.commitError(d, &c); err != nil {
		n.emit(Answer{Call: call, Err: err})
		return
	}
	n.decodeEvent(d, handoff.Event{Kind: handoff.Committed})
	n.emit(Answer{Call: call, Message: wire.Committed{Reservation: reservation(d), ManifestHash: c.ManifestHash, Admitted: true}})
}

func reservation(d *decode) pd.ReservationID {
	if d.pages == 0 {
		return ""
	}
	return pd.ReservationID("pd-" + string(d.fence.Handoff))
}

func (n *Node) commitError(d *decode, c *wire.Commit) error {
	h := d.fence.Handoff
	// Facts count in every state: an abort may be waiting for just these.
	if err := n.settle(d, c.Results); err != nil {
		return err
	}
	n.writersGone(d)
	if state := d.machine.State(); state != handoff.Reserved && state != handoff.Transferring {
		return n.fail(h, "commit", pd.CodeHandoffTerminal, "the handoff is %v: %s", state, reasonText(d.machine.Reason()))
	}
	switch {
	case d.final == nil:
		return n.fail(h, "commit", pd.CodeIncomplete, "the final chunk was not acknowledged")
	case d.hashes[len(d.hashes)-1] != c.ManifestHash:
		return n.fail(h, "commit", pd.CodeConflict, "the manifest hash is not the final chunk's")
	case *d.final.FirstToken != c.FirstToken:
		return n.fail(h, "commit", pd.CodeConflict, "the first token is not the final chunk's")
	case d.reserve.MetadataHash != c.MetadataHash:
		return n.fail(h, "commit", pd.CodeConflict, "the metadata hash is not the reservation's")
	}
	return n.ledger.Commit(h, n.known(d))
}

func (n *Node) decodeStopped(e DecodeStopped) {
	if d := n.decodes[e.Handoff]; d != nil {
		d.running = false
		n.decodeEvent(d, handoff.Event{Kind: handoff.EngineStopped, Err: e.Err})
		if d.proven {
			n.prove(d)
		}
	}
}

// stopDecode ends a handoff early; what that takes depends on its state.
func (n *Node) stopDecode(d *decode, reason error) {
	l, ok := n.ledger.Lease(d.fence.Handoff)
	n.decodeEvent(d, handoff.Event{Kind: handoff.Stop, Err: reason, Writers: ok && l.Unsettled > 0})
}

// peerStopped takes prefill's stop fact in.
func (n *Node) peerStopped(d *decode, fact pd.StopFact, why string) {
	h := d.fence.Handoff
	l, held := n.ledger.Lease(h)
	switch {
	case fact.Definite():
		d.told, d.askAt = true, 0
		if held && l.State == lease.Constructing {
			if err := n.ledger.Stopped(h); err != nil {
				panic("invariant I-02: " + err.Error())
			}
		}
		if d.machine.State() == handoff.DecodeQuarantined {
			n.prove(d)
		}
		n.writersGone(d)
	case fact == pd.Unknown && held && l.Unsettled > 0 && l.State == lease.Constructing:
		if err := n.ledger.Quarantine(h); err != nil {
			panic("invariant I-03: " + err.Error())
		}
		n.decodeEvent(d, handoff.Event{Kind: handoff.Uncertain, Err: n.fail(h, "transfer", pd.CodeUncertain, "prefill cannot tell whether its writes have ended: %s", why)})
	}
}

// endDecode turns an ended handoff into a tombstone and answers who waits.
func (n *Node) endDecode(d *decode) {
	status := n.decodeStatus(d)
	n.withdraw(d)
	n.endPost(&d.post, d.fence.Handoff, d.machine.Reason())
	n.answerReserve(d, n.fail(d.fence.Handoff, "reserve", pd.CodeHandoffTerminal, "the handoff is %s: %s", status.State, status.Why))
	delete(n.decodes, d.fence.Handoff)
	n.bury(d.fence, status, false)
	for _, call := range d.askers {
		n.emit(Answer{Call: call, Message: status})
	}
	event := "HANDOFF_COMPLETED"
	if d.machine.State() != handoff.Completed || d.machine.Reason() != nil {
		event = "HANDOFF_FAILED"
	}
	n.emit(Record{Event: event, Fence: d.fence, Code: codeOrZero(d.machine.Reason()), Detail: reasonText(d.machine.Reason())})
}

// answerAskers answers abort calls of a handoff that will not end by itself.
func (n *Node) answerAskers(d *decode) {
	for _, call := range d.askers {
		n.emit(Answer{Call: call, Message: n.decodeStatus(d)})
	}
	d.askers = nil
}

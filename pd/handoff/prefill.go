package handoff

import (
	"fmt"
	"slices"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// PrefillState is where the prefill side stands. The zero value is invalid.
type PrefillState int

// The states of the prefill side.
const (
	Connecting         PrefillState = 1
	Reserving          PrefillState = 2
	Prefilling         PrefillState = 3
	Committing         PrefillState = 4
	Retiring           PrefillState = 5
	PrefillAborting    PrefillState = 6
	Retired            PrefillState = 7
	PrefillAborted     PrefillState = 8
	PrefillQuarantined PrefillState = 9
)

// String gives the name used in tables, status and logs.
func (s PrefillState) String() string {
	switch s {
	case Connecting:
		return "Connecting"
	case Reserving:
		return "Reserving"
	case Prefilling:
		return "Prefilling"
	case Committing:
		return "Committing"
	case Retiring:
		return "Retiring"
	case PrefillAborting:
		return "Aborting"
	case Retired:
		return "Retired"
	case PrefillAborted:
		return "Aborted"
	case PrefillQuarantined:
		return "Quarantined"
	}
	return fmt.Sprintf("PrefillState(%d)", int(s))
}

// Terminal says that nothing more happens.
func (s PrefillState) Terminal() bool {
	return s == Retired || s == PrefillAborted || s == PrefillQuarantined
}

// call is the control call in flight; the zero value means none.
type call int

const (
	callReserve call = iota + 1
	callChunk
	callResults
	callCommit
	callAbort
)

// computed is a chunk that the engine finished and that waits for its turn.
type computed struct {
	chunk pd.ChunkID
	final bool
}

// Prefill is the prefill side of one handoff.
type Prefill struct {
	state PrefillState

	// Invariant I-07: at most one control call and one transfer are in flight.
	calling    call
	offered    *computed // sent to decode, not yet settled
	waiting    *computed // computed meanwhile; its request is held
	finalDone  bool      // the final chunk settled Done
	unreported []pd.UnitResult

	engineRunning bool
	sealed        pd.StopFact
	reason        error
}

// NewPrefill starts the machine; the node opens a session next.
func NewPrefill() *Prefill { return &Prefill{state: Connecting} }

// State shows where the machine stands.
func (p *Prefill) State() PrefillState { return p.state }

// Reason is why the handoff is ending, nil while all is well.
func (p *Prefill) Reason() error { return p.reason }

// Unreported lists the facts that decode has not acknowledged.
func (p *Prefill) Unreported() []pd.UnitResult { return slices.Clone(p.unreported) }

// Step takes one event in.
func (p *Prefill) Step(e Event) ([]Effect, error) {
	switch p.state {
	case Connecting:
		switch e.Kind {
		case SessionOpened:
			return p.toReserving(), nil
		case Stop:
			return p.toRefused(e.Err), nil
		}
	case Reserving:
		switch e.Kind {
		case Granted:
			return p.toPrefilling(), nil
		case Refused:
			return p.toRefused(e.Err), nil
		case Stop:
			return append([]Effect{{Kind: CancelCall}}, p.toAborting(e.Err)...), nil
		}
	case Prefilling:
		return p.stepPrefilling(e)
	case Committing:
		switch e.Kind {
		case Committed:
			return p.toRetiring(), nil
		case Refused:
			p.calling = 0
			return p.toAborting(e.Err), nil
		case Stop:
			return nil, nil // every write is done; decode's answer decides
		}
	case Retiring:
		switch e.Kind {
		case EngineStopped:
			return p.toRetired(), nil
		case Stop:
			return nil, nil
		}
	case PrefillAborting:
		return p.stepAborting(e)
	}
	return nil, refuse("prefill", p.state.String(), e)
}

func (p *Prefill) stepPrefilling(e Event) ([]Effect, error) {
	switch e.Kind {
	case ChunkComputed:
		if p.waiting != nil || p.finalDone {
			return nil, refuse("prefill", p.state.String(), e)
		}
		p.waiting = &computed{e.Chunk, e.Final}
		return p.advance(), nil
	case ChunkAcked:
		if p.calling != callChunk || p.offered.chunk != e.Chunk {
			return nil, refuse("prefill", p.state.String(), e)
		}
		p.calling = 0
		effects := []Effect{{Kind: Submit, Chunk: e.Chunk}}
		if !p.offered.final {
			effects = append(effects, Effect{Kind: Resume})
		}
		return append(effects, p.advance()...), nil
	case ChunkSettled:
		if p.offered == nil || p.calling == callChunk || p.offered.chunk != e.Chunk {
			return nil, refuse("prefill", p.state.String(), e)
		}
		final := p.offered.final
		effects := p.settle(e)
		for _, r := range e.Results {
			if r.Settlement != pd.Done {
				return append(effects, p.toAborting(&pd.Error{
					Op: "transfer", Code: codeOf(r.Settlement),
					Text: fmt.Sprintf("chunk %d, %s on rank %d is %v (%s)", r.Chunk, r.Component, r.Target, r.Settlement, r.Detail),
				})...), nil
			}
		}
		p.finalDone = final
		return append(effects, p.advance()...), nil
	case ResultsAcked:
		if p.calling != callResults {
			return nil, refuse("prefill", p.state.String(), e)
		}
		p.calling, p.unreported = 0, nil
		return p.advance(), nil
	case Refused:
		if p.calling == 0 {
			return nil, refuse("prefill", p.state.String(), e)
		}
		if p.calling == callChunk {
			p.offered = nil // no acknowledgement, no authority: nothing was submitted
		}
		p.calling = 0
		return p.toAborting(e.Err), nil
	case Stop:
		return p.toAborting(e.Err), nil
	case EngineStopped:
		p.engineRunning = false
		return p.toAborting(e.Err), nil
	}
	return nil, refuse("prefill", p.state.String(), e)
}

func codeOf(s pd.Settlement) pd.Code {
	if s == pd.Uncertain {
		return pd.CodeUncertain
	}
	return pd.CodeTransferFailed
}

// settle takes the facts of the offered chunk in.
func (p *Prefill) settle(e Event) []Effect {
	p.offered = nil
	p.unreported = append(p.unreported, e.Results...)
	if e.SourceFree {
		return []Effect{{Kind: Unpin, Chunk: e.Chunk}}
	}
	return nil
}

// advance starts the next control call if none is in flight. Facts go first,
// so that decode knows what settled before it hears of the next chunk; the last
// ones ride on the commit.
func (p *Prefill) advance() []Effect {
	switch {
	case p.calling != 0:
		return nil
	case p.finalDone:
		return p.toCommitting()
	case len(p.unreported) > 0:
		p.calling = callResults
		return []Effect{{Kind: SendResults, Results: p.Unreported()}}
	case p.offered == nil && p.waiting != nil:
		p.offered, p.waiting = p.waiting, nil
		p.calling = callChunk
		return []Effect{{Kind: SendChunk, Chunk: p.offered.chunk}}
	}
	return nil
}

func (p *Prefill) stepAborting(e Event) ([]Effect, error) {
	var effects []Effect
	switch e.Kind {
	case Granted:
		p.calling = 0
	case Refused:
		if p.calling == callAbort {
			// Decode could not be told. It asks for the fact itself; the node
			// keeps it until then.
			return p.toEnd(), nil
		}
		if p.calling == callChunk {
			p.offered = nil
		}
		p.calling = 0
	case ChunkAcked:
		// Authority came too late; nothing is submitted after the seal.
		p.calling, p.offered = 0, nil
	case ResultsAcked:
		p.calling, p.unreported = 0, nil
	case Committed:
		p.calling = 0
	case ChunkComputed, Stop:
	case ChunkSettled:
		effects = p.settle(e)
	case EngineStopped:
		p.engineRunning = false
	case Sealed:
		p.sealed = e.Fact
	case AbortAnswered:
		if p.calling == callAbort {
			return p.toEnd(), nil
		}
		return nil, refuse("prefill", p.state.String(), e)
	default:
		return nil, refuse("prefill", p.state.String(), e)
	}
	if p.calling == 0 && !p.engineRunning && p.sealed != 0 {
		p.calling = callAbort
		effects = append(effects, Effect{Kind: SendAbort, Fact: p.sealed, Results: p.Unreported(), Err: p.reason})
	}
	return effects, nil
}

func (p *Prefill) toReserving() []Effect {
	p.state, p.calling = Reserving, callReserve
	return []Effect{{Kind: SendReserve}}
}

func (p *Prefill) toPrefilling() []Effect {
	p.state, p.calling, p.engineRunning = Prefilling, 0, true
	return []Effect{{Kind: StartPrefill}}
}

func (p *Prefill) toCommitting() []Effect {
	p.state, p.calling = Committing, callCommit
	return []Effect{{Kind: SendCommit, Results: p.Unreported()}}
}

func (p *Prefill) toRetiring() []Effect {
	p.state, p.calling, p.unreported = Retiring, 0, nil
	return []Effect{{Kind: StopPrefill}}
}

func (p *Prefill) toRetired() []Effect {
	p.state, p.engineRunning = Retired, false
	return []Effect{{Kind: EndPost}}
}

func (p *Prefill) toAborting(reason error) []Effect {
	p.state, p.reason, p.waiting = PrefillAborting, reason, nil
	effects := []Effect{{Kind: Seal}, {Kind: EndPost, Err: reason}}
	if p.engineRunning {
		effects = append([]Effect{{Kind: StopPrefill}}, effects...)
	}
	return effects
}

// toRefused ends a handoff of which nothing was begun.
func (p *Prefill) toRefused(reason error) []Effect {
	p.state, p.calling, p.reason = PrefillAborted, 0, reason
	return []Effect{{Kind: EndPost, Err: reason}}
}

// toEnd closes an abort by its fact.
func (p *Prefill) toEnd() []Effect {
	p.calling = 0
	if p.sealed.Definite() {
		p.state = PrefillAborted
		return nil
	}
	p.state = PrefillQuarantined
	return []Effect{{Kind: Gate, Err: p.reason}}
}

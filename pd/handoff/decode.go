package handoff

import "fmt"

// DecodeState is where the decode side stands. The zero value is invalid.
type DecodeState int

// The states of the decode side.
const (
	Waiting           DecodeState = 1
	Reserved          DecodeState = 2
	Transferring      DecodeState = 3
	InUse             DecodeState = 4
	Stopping          DecodeState = 5
	DecodeAborting    DecodeState = 6
	Completed         DecodeState = 7
	DecodeAborted     DecodeState = 8
	DecodeQuarantined DecodeState = 9
)

// String gives the name used in tables, status and logs.
func (s DecodeState) String() string {
	switch s {
	case Waiting:
		return "Waiting"
	case Reserved:
		return "Reserved"
	case Transferring:
		return "Transferring"
	case InUse:
		return "InUse"
	case Stopping:
		return "Stopping"
	case DecodeAborting:
		return "Aborting"
	case Completed:
		return "Completed"
	case DecodeAborted:
		return "Aborted"
	case DecodeQuarantined:
		return "Quarantined"
	}
	return fmt.Sprintf("DecodeState(%d)", int(s))
}

// Terminal says that nothing more happens and no memory is held.
func (s DecodeState) Terminal() bool { return s == Completed || s == DecodeAborted }

// Decode is the decode side of one handoff.
type Decode struct {
	state DecodeState
	// Invariant I-08 NoAllocWithoutOpenPost: Reserve is ordered only while both
	// are true.
	post, reserve bool
	reason        error
}

// NewDecode starts the machine with neither POST nor reserve.
func NewDecode() *Decode { return &Decode{state: Waiting} }

// State shows where the machine stands.
func (d *Decode) State() DecodeState { return d.state }

// Reason is why the handoff ended early, nil if it did not.
func (d *Decode) Reason() error { return d.reason }

// Step takes one event in.
func (d *Decode) Step(e Event) ([]Effect, error) {
	switch d.state {
	case Waiting:
		switch e.Kind {
		case PostOpened:
			d.post = true
			return d.join(), nil
		case ReserveCalled:
			d.reserve = true
			return d.join(), nil
		case Granted:
			d.state = Reserved
			return []Effect{{Kind: AnswerReserve}, {Kind: AcceptPost}}, nil
		case Refused, Stop:
			return d.toAborted(e.Err, Effect{Kind: AnswerReserve, Err: e.Err}, Effect{Kind: EndPost, Err: e.Err}), nil
		}
	case Reserved:
		switch e.Kind {
		case Authorized:
			d.state = Transferring
			return nil, nil
		case Stop:
			return d.toAborted(e.Err, Effect{Kind: Release}, Effect{Kind: EndPost, Err: e.Err}, Effect{Kind: AbortPeer, Err: e.Err}), nil
		}
	case Transferring:
		switch e.Kind {
		case Authorized:
			return nil, nil
		case Stop:
			if e.Writers {
				return d.toAborting(e.Err), nil
			}
			return d.toAborted(e.Err, Effect{Kind: Release}, Effect{Kind: EndPost, Err: e.Err}, Effect{Kind: AbortPeer, Err: e.Err}), nil
		case Uncertain:
			return d.toQuarantined(e.Err, Effect{Kind: EndPost, Err: e.Err}, Effect{Kind: AbortPeer, Err: e.Err}), nil
		case Committed:
			d.state = InUse
			return []Effect{{Kind: Adopt}}, nil
		}
	case InUse:
		switch e.Kind {
		case Stop:
			d.state, d.reason = Stopping, e.Err
			return []Effect{{Kind: StopDecode}}, nil
		case EngineStopped:
			return d.toCompleted(), nil
		case Uncertain:
			return d.toQuarantined(e.Err, Effect{Kind: StopDecode}, Effect{Kind: EndPost, Err: e.Err}), nil
		}
	case Stopping:
		switch e.Kind {
		case Stop:
			return nil, nil
		case EngineStopped:
			return d.toCompleted(), nil
		case Uncertain:
			return d.toQuarantined(e.Err, Effect{Kind: EndPost, Err: e.Err}), nil
		}
	case DecodeAborting:
		switch e.Kind {
		case Stop:
			return nil, nil
		case WritersGone:
			return d.toAborted(d.reason, Effect{Kind: Release}), nil
		case Uncertain:
			return d.toQuarantined(e.Err), nil
		}
	case DecodeQuarantined:
		switch e.Kind {
		case EngineStopped, Stop, Uncertain:
			return nil, nil
		case Proven:
			return d.toAborted(d.reason, Effect{Kind: Release}), nil
		}
	}
	return nil, refuse("decode", d.state.String(), e)
}

func (d *Decode) join() []Effect {
	if d.post && d.reserve {
		return []Effect{{Kind: Reserve}}
	}
	return nil
}

func (d *Decode) toAborted(reason error, effects ...Effect) []Effect {
	d.state, d.reason = DecodeAborted, reason
	return effects
}

// toAborting ends the request for the client at once; the memory waits for
// prefill's fact.
func (d *Decode) toAborting(reason error) []Effect {
	d.state, d.reason = DecodeAborting, reason
	return []Effect{{Kind: EndPost, Err: reason}, {Kind: AbortPeer, Err: reason}}
}

func (d *Decode) toCompleted() []Effect {
	d.state = Completed
	return []Effect{{Kind: Release}, {Kind: EndPost, Err: d.reason}}
}

func (d *Decode) toQuarantined(reason error, effects ...Effect) []Effect {
	d.state, d.reason = DecodeQuarantined, reason
	return append(effects, Effect{Kind: Gate, Err: reason})
}

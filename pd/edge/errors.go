package edge

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// Causes with which a call's context ends.
var (
	// ErrClientGone: the client closed its end, half or whole, or a write to it
	// failed or stalled.
	ErrClientGone = errors.New("client is gone")
	// ErrStopping: the server stops and the time for running calls is over.
	ErrStopping = errors.New("server is stopping")
)

// Errors of exchanges, wrapped in an *ExchangeError.
var (
	// ErrHeadTimeout: no complete answer head within Request.HeadTimeout.
	ErrHeadTimeout = errors.New("no answer in time")
	// ErrReadTimeout: an answer body without a byte for Request.ReadTimeout.
	ErrReadTimeout = errors.New("the answer stalled")
	// ErrTooLarge: the answer is larger than the client's limit.
	ErrTooLarge = errors.New("the answer is too large")
	// ErrEarlyEnd: the connection ended before the answer was complete.
	ErrEarlyEnd = errors.New("connection ended before the answer was complete")
	// ErrExchangeClosed: the exchange was closed by its owner.
	ErrExchangeClosed = errors.New("exchange is closed")
)

// errMalformed is the reason of a refused body or answer.
var errMalformed = errors.New("malformed HTTP message")

// Phase is how far an exchange got before it failed. The zero value is invalid.
type Phase int

// The phases of an exchange.
const (
	// PhaseDial: no connection was made; the peer saw nothing.
	PhaseDial Phase = 1
	// PhaseSend: the request may have arrived in part.
	PhaseSend Phase = 2
	// PhaseHead: the request was sent, no complete answer head came back.
	PhaseHead Phase = 3
	// PhaseBody: the answer had begun.
	PhaseBody Phase = 4
)

// String names the phase for people.
func (p Phase) String() string {
	switch p {
	case PhaseDial:
		return "dial"
	case PhaseSend:
		return "send to"
	case PhaseHead:
		return "await answer of"
	case PhaseBody:
		return "read answer of"
	}
	return fmt.Sprintf("Phase(%d)", int(p))
}

// ExchangeError is how an exchange failed. Err is the context's cause when the
// exchange was cancelled.
type ExchangeError struct {
	Phase   Phase
	Address string
	// Reused says that the connection came from the pool, so that a failure
	// before the answer may be no more than an idle connection's end.
	Reused bool
	Err    error
}

// Error prints "dial 10.1.0.2:8000: connection refused".
func (e *ExchangeError) Error() string {
	return fmt.Sprintf("%s %s: %v", e.Phase, e.Address, e.Err)
}

// Unwrap gives the cause.
func (e *ExchangeError) Unwrap() error { return e.Err }

// DialFailed says that an error is an *ExchangeError of PhaseDial: the peer has
// seen nothing, and the same request may be sent elsewhere.
func DialFailed(err error) bool {
	e, ok := errors.AsType[*ExchangeError](err)
	return ok && e.Phase == PhaseDial
}

func isTimeout(err error) bool {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	n, ok := errors.AsType[net.Error](err)
	return ok && n.Timeout()
}

// LocalFault says that an exchange failed for want of something of this process
// or machine, such as descriptors or ports: that tells nothing about the peer.
func LocalFault(err error) bool {
	for _, own := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, own) {
			return true
		}
	}
	return false
}

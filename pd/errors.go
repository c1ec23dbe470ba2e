package pd

import (
	"errors"
	"fmt"
	"strings"
)

// Code says what went wrong. Callers branch on codes, never on text. Numbers
// are append-only: they cross the control wire by name and the C ABI by value.
type Code int

// The codes (docs/errors.md). Reserve and transfer codes carry the names of
// pd-domain §4.10.
const (
	CodeInternal             Code = 1
	CodeInvalidRequest       Code = 2
	CodeUnsupported          Code = 3
	CodeNotFound             Code = 4
	CodeBodyTooLarge         Code = 5
	CodeBusy                 Code = 6
	CodeNoPair               Code = 7
	CodeDraining             Code = 8
	CodeNodeGated            Code = 9
	CodeVersionMismatch      Code = 10
	CodeStaleBoot            Code = 11
	CodeContractMismatch     Code = 12
	CodeRegistryMismatch     Code = 13
	CodeIdentity             Code = 14
	CodeUnknownKey           Code = 15
	CodeDuplicateHandoff     Code = 16
	CodeHandoffTerminal      Code = 17
	CodeReplayMismatch       Code = 18
	CodeInvalidLength        Code = 19
	CodeInvalidDigest        Code = 20
	CodeCapacityExhausted    Code = 21
	CodeBootstrapExhausted   Code = 22
	CodeOutOfOrder           Code = 23
	CodeInvalidPlan          Code = 24
	CodeIncomplete           Code = 25
	CodeUncertain            Code = 26
	CodeConflict             Code = 27
	CodeCommitted            Code = 28
	CodeDeadline             Code = 29
	CodePeerUnreachable      Code = 30
	CodeAborted              Code = 31
	CodeClientGone           Code = 32
	CodeIntegrity            Code = 33
	CodeTransferFailed       Code = 34
	CodeOwnerLost            Code = 35
	CodeFrozen               Code = 36
	CodeInvalidConfig        Code = 37
	CodeMalformed            Code = 38
	CodeUnauthorized         Code = 39
	CodeModelNotFound        Code = 40
	CodeContextLength        Code = 41
	CodeDecodeExhausted      Code = 42
	CodeMethodNotAllowed     Code = 43
	CodeRouteMissing         Code = 44
	CodeUpstreamInterrupted  Code = 45
	CodeNativeLibraryMissing Code = 46
	CodeFenced               Code = 47
	CodeSessionStale         Code = 48
	// CodeInvalidModelOutput: the model's text has not the form that was asked of it.
	CodeInvalidModelOutput Code = 49
)

type codeFacts struct {
	name      string
	retryable bool
}

var codes = map[Code]codeFacts{
	CodeInternal:             {"INTERNAL", false},
	CodeInvalidRequest:       {"INVALID_REQUEST", false},
	CodeUnsupported:          {"UNSUPPORTED", false},
	CodeNotFound:             {"NOT_FOUND", false},
	CodeBodyTooLarge:         {"BODY_TOO_LARGE", false},
	CodeBusy:                 {"NODE_BUSY", true},
	CodeNoPair:               {"NO_ELIGIBLE_PAIR", true},
	CodeDraining:             {"DRAINING", true},
	CodeNodeGated:            {"NODE_GATED", true},
	CodeVersionMismatch:      {"VERSION_MISMATCH", false},
	CodeStaleBoot:            {"STALE_BOOT_IDENTITY", false},
	CodeContractMismatch:     {"CONTRACT_MISMATCH", false},
	CodeRegistryMismatch:     {"REGISTRY_MISMATCH", false},
	CodeIdentity:             {"IDENTITY", false},
	CodeUnknownKey:           {"UNKNOWN_KEY", false},
	CodeDuplicateHandoff:     {"REQUEST_ALREADY_RESERVED", false},
	CodeHandoffTerminal:      {"HANDOFF_TERMINAL", false},
	CodeReplayMismatch:       {"RESERVATION_REPLAY_MISMATCH", false},
	CodeInvalidLength:        {"INVALID_LENGTH", false},
	CodeInvalidDigest:        {"INVALID_PREPARED_DIGEST", false},
	CodeCapacityExhausted:    {"CAPACITY_EXHAUSTED", true},
	CodeBootstrapExhausted:   {"BOOTSTRAP_SLOT_EXHAUSTED", true},
	CodeOutOfOrder:           {"OUT_OF_ORDER", true},
	CodeInvalidPlan:          {"INVALID_PLAN", false},
	CodeIncomplete:           {"INCOMPLETE", true},
	CodeUncertain:            {"UNCERTAIN", false},
	CodeConflict:             {"CONFLICT", false},
	CodeCommitted:            {"COMMITTED", false},
	CodeDeadline:             {"DEADLINE", true},
	CodePeerUnreachable:      {"PEER_UNREACHABLE", true},
	CodeAborted:              {"ABORTED", false},
	CodeClientGone:           {"CLIENT_GONE", false},
	CodeIntegrity:            {"INTEGRITY", false},
	CodeTransferFailed:       {"TRANSFER_FAILED", false},
	CodeOwnerLost:            {"OWNER_LOST", false},
	CodeFrozen:               {"REGIONS_FROZEN", false},
	CodeInvalidConfig:        {"INVALID_CONFIG", false},
	CodeMalformed:            {"MALFORMED", false},
	CodeUnauthorized:         {"UNAUTHORIZED", false},
	CodeModelNotFound:        {"MODEL_NOT_FOUND", false},
	CodeContextLength:        {"CONTEXT_LENGTH_EXCEEDED", false},
	CodeDecodeExhausted:      {"DECODE_EXHAUSTED", false},
	CodeMethodNotAllowed:     {"METHOD_NOT_ALLOWED", false},
	CodeRouteMissing:         {"ROUTE_MISSING", false},
	CodeUpstreamInterrupted:  {"UPSTREAM_INTERRUPTED", false},
	CodeNativeLibraryMissing: {"NATIVE_LIBRARY_MISSING", false},
	CodeFenced:               {"FENCED", true},
	CodeSessionStale:         {"SESSION_STALE", true},
	CodeInvalidModelOutput:   {"INVALID_MODEL_OUTPUT", false},
}

// String gives the wire spelling.
func (c Code) String() string {
	if f, ok := codes[c]; ok {
		return f.name
	}
	return fmt.Sprintf("Code(%d)", int(c))
}

// Error makes a code usable with errors.Is.
func (c Code) Error() string { return c.String() }

// Retryable says whether the same request may succeed later or on another pair.
func (c Code) Retryable() bool { return codes[c].retryable }

// Codes lists every code in ascending order, for docs and conformance tests.
func Codes() []Code {
	var out []Code
	for c := Code(1); ; c++ {
		if _, ok := codes[c]; !ok {
			return out
		}
		out = append(out, c)
	}
}

// ParseCode reads the wire spelling.
func ParseCode(s string) (Code, bool) {
	for c, f := range codes {
		if f.name == s {
			return c, true
		}
	}
	return 0, false
}

// Error is the one error type that crosses package borders.
type Error struct {
	// Op is what was being done, "reserve" or "authorize lease".
	Op   string
	Code Code
	// Handoff and Node say to whom; either may be empty.
	Handoff HandoffID
	Node    NodeID
	// Text says what was wrong in words for people.
	Text string
	// Param names the offending field of a client's body, if any.
	Param string
	Err   error
}

// Errorf makes an Error without a cause.
func Errorf(code Code, op, format string, args ...any) *Error {
	return &Error{Op: op, Code: code, Text: fmt.Sprintf(format, args...)}
}

// Error prints "op handoff at node: text: cause (CODE)".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Handoff != "" {
		b.WriteString(" " + string(e.Handoff))
	}
	if e.Node != "" {
		b.WriteString(" at " + string(e.Node))
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	b.WriteString(e.Message())
	fmt.Fprintf(&b, " (%s)", e.Code)
	return b.String()
}

// Message is the part for the person who sent the request.
func (e *Error) Message() string {
	switch {
	case e.Text != "" && e.Err != nil:
		return e.Text + ": " + e.Err.Error()
	case e.Err != nil:
		return e.Err.Error()
	case e.Text != "":
		return e.Text
	}
	return strings.ToLower(strings.ReplaceAll(e.Code.String(), "_", " "))
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is matches a Code, so that errors.Is(err, pd.CodeBusy) works through wraps.
func (e *Error) Is(target error) bool {
	c, ok := target.(Code)
	return ok && c == e.Code
}

// CodeOf finds the code of an error; CodeInternal if it carries none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	var c Code
	if errors.As(err, &c) {
		return c
	}
	return CodeInternal
}

package wire

import (
	"errors"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// FailureOf is the answer to a request that failed: the HTTP status of the
// control port and the body (pd-domain §4.10).
func FailureOf(err error) (status int, f Failure) {
	code := pd.CodeOf(err)
	text := err.Error()
	if e, ok := errors.AsType[*pd.Error](err); ok {
		text = e.Message()
	}
	return statusOf(code), Failure{Error: FailureBody{
		Code: code.String(), Message: clip(text), Retryable: code.Retryable(), Definite: definite(code),
	}}
}

// Err is the failure as the caller's error, with the code of the peer.
func (f *Failure) Err(op string, node pd.NodeID) error {
	code, ok := pd.ParseCode(f.Error.Code)
	if !ok {
		return &pd.Error{Op: op, Code: pd.CodeInternal, Node: node, Text: "unknown code " + clip(f.Error.Code) + ": " + f.Error.Message}
	}
	return &pd.Error{Op: op, Code: code, Node: node, Text: f.Error.Message}
}

// Check implements Message. Codes of a newer peer are not refused here; Err
// deals with them.
func (f *Failure) Check() error {
	c := check{message: f}
	c.text("error.code", f.Error.Code, 1, pd.MaxIDBytes)
	c.text("error.message", f.Error.Message, 0, maxText)
	return c.result()
}

// statusOf is the only table from a code to an HTTP status of the control port.
func statusOf(code pd.Code) int {
	switch code {
	case pd.CodeInvalidRequest, pd.CodeUnsupported, pd.CodeMalformed, pd.CodeInvalidLength,
		pd.CodeInvalidDigest, pd.CodeInvalidPlan, pd.CodeContextLength:
		return 400
	case pd.CodeUnauthorized:
		return 401
	case pd.CodeNotFound, pd.CodeUnknownKey, pd.CodeModelNotFound:
		return 404
	case pd.CodeMethodNotAllowed:
		return 405
	case pd.CodeVersionMismatch, pd.CodeStaleBoot, pd.CodeContractMismatch, pd.CodeRegistryMismatch,
		pd.CodeIdentity, pd.CodeDuplicateHandoff, pd.CodeHandoffTerminal, pd.CodeReplayMismatch,
		pd.CodeOutOfOrder, pd.CodeFenced, pd.CodeSessionStale, pd.CodeIncomplete, pd.CodeUncertain, pd.CodeConflict, pd.CodeCommitted,
		pd.CodeAborted, pd.CodeFrozen, pd.CodeRouteMissing:
		return 409
	case pd.CodeBodyTooLarge:
		return 413
	case pd.CodeBusy, pd.CodeNoPair, pd.CodeDraining, pd.CodeNodeGated, pd.CodeCapacityExhausted,
		pd.CodeBootstrapExhausted, pd.CodePeerUnreachable, pd.CodeDecodeExhausted:
		return 503
	case pd.CodeDeadline:
		return 504
	}
	return 500
}

// definite says that a refusal with this code changed nothing and will not. A
// code that is missing here is not definite, which costs a question and never
// memory.
func definite(code pd.Code) bool {
	switch code {
	case pd.CodeInvalidRequest, pd.CodeUnsupported, pd.CodeMalformed, pd.CodeInvalidLength,
		pd.CodeInvalidDigest, pd.CodeInvalidPlan, pd.CodeUnauthorized, pd.CodeNotFound,
		pd.CodeUnknownKey, pd.CodeMethodNotAllowed, pd.CodeBodyTooLarge, pd.CodeVersionMismatch,
		pd.CodeStaleBoot, pd.CodeSessionStale, pd.CodeContractMismatch, pd.CodeRegistryMismatch, pd.CodeIdentity,
		pd.CodeDuplicateHandoff, pd.CodeHandoffTerminal, pd.CodeReplayMismatch, pd.CodeOutOfOrder,
		pd.CodeIncomplete, pd.CodeCommitted, pd.CodeBusy, pd.CodeNoPair, pd.CodeDraining,
		pd.CodeNodeGated, pd.CodeCapacityExhausted, pd.CodeBootstrapExhausted, pd.CodeFrozen,
		pd.CodeRouteMissing:
		return true
	}
	return false
}

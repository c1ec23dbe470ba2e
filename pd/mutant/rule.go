// Package mutant names the safety rules of a node that a test may switch off, to
// show that simulation sees what they prevent.
//
// In every ordinary build Off is constantly false and the compiler leaves
// nothing of it: no flag, file or variable of a built program can break a rule.
// With the build tag "mutants" there is a Switch; only tests/sim is built so.
//
// The package knows nothing and starts no goroutine.
package mutant

// Rule is one safety rule. The zero value is none.
type Rule int

// The rules, each with what is done instead where it is off.
const (
	// Quarantine: an uncertain write holds its memory. Off: it is taken for
	// failed.
	Quarantine Rule = iota + 1
	// HoldAtTimeout: a time frees nothing. Off: an abort that nobody answers frees.
	HoldAtTimeout
	// FactFromSource: only the sender states a stop fact. Off: anyone does.
	FactFromSource
	// AckFirst: a chunk's acknowledgement is the authority to write it. Off: the
	// reservation is.
	AckFirst
	// SealFirst: a stop fact waits for the owners' seal. Off: prefill says what it
	// believes.
	SealFirst
	// PublishKnown: decode publishes the pages whose bytes it knows. Off: all below
	// the end.
	PublishKnown
)

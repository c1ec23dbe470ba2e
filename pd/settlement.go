package pd

import "fmt"

// Settlement is the answer to "may anything still be written by this?".
// The zero value is invalid.
type Settlement int

// The three answers. Numbers are append-only: they cross the C ABI.
const (
	// Done: everything was written and acknowledged, nothing more will be.
	Done Settlement = 1
	// Failed: proven that nothing more will be written.
	Failed Settlement = 2
	// Uncertain: anything may still be written. Uncertain holds memory; a
	// timeout, a closed connection or a dead peer never turns it into Failed.
	Uncertain Settlement = 3
)

var settlementNames = map[Settlement]string{Done: "done", Failed: "failed", Uncertain: "uncertain"}

// String gives the wire spelling.
func (s Settlement) String() string {
	if n, ok := settlementNames[s]; ok {
		return n
	}
	return fmt.Sprintf("Settlement(%d)", int(s))
}

// MarshalText implements encoding.TextMarshaler.
func (s Settlement) MarshalText() ([]byte, error) {
	if _, ok := settlementNames[s]; !ok {
		return nil, fmt.Errorf("invalid settlement %d", int(s))
	}
	return []byte(s.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Settlement) UnmarshalText(b []byte) error {
	for k, v := range settlementNames {
		if v == string(b) {
			*s = k
			return nil
		}
	}
	return fmt.Errorf("settlement %q: want done, failed or uncertain", b)
}

// Worse joins two answers: Uncertain absorbs all, Failed absorbs Done.
func (s Settlement) Worse(o Settlement) Settlement { return max(s, o) }

// StopFact is what the sender's sealed owners say about a handoff as a whole.
// Only the sender's boot may state one. The zero value means "no fact".
type StopFact int

// The stop facts. Numbers are append-only.
const (
	// NeverSubmitted: no owner accepted a write of this handoff, and none will.
	NeverSubmitted StopFact = 1
	// AllDone: every submitted write settled Done, and no more will be submitted.
	AllDone StopFact = 2
	// DefiniteFailed: every submitted write settled Done or Failed.
	DefiniteFailed StopFact = 3
	// Unknown: at least one submitted write is Uncertain.
	Unknown StopFact = 4
)

var stopFactNames = map[StopFact]string{
	NeverSubmitted: "never_submitted", AllDone: "all_done", DefiniteFailed: "definite_failed", Unknown: "unknown",
}

// String gives the wire spelling; "" for no fact.
func (f StopFact) String() string {
	if n, ok := stopFactNames[f]; ok {
		return n
	}
	if f == 0 {
		return ""
	}
	return fmt.Sprintf("StopFact(%d)", int(f))
}

// MarshalText implements encoding.TextMarshaler.
func (f StopFact) MarshalText() ([]byte, error) {
	if _, ok := stopFactNames[f]; !ok && f != 0 {
		return nil, fmt.Errorf("invalid stop fact %d", int(f))
	}
	return []byte(f.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *StopFact) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*f = 0
		return nil
	}
	for k, v := range stopFactNames {
		if v == string(b) {
			*f = k
			return nil
		}
	}
	return fmt.Errorf("stop fact %q is unknown", b)
}

// Definite says that the fact proves the end of all writes.
func (f StopFact) Definite() bool { return f == NeverSubmitted || f == AllDone || f == DefiniteFailed }

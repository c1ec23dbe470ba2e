package lease

import (
	"fmt"
	"slices"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/mutant"
)

// State is where a lease stands. The zero value is invalid.
type State int

// The states of a lease; see the table in the package comment.
const (
	Constructing State = 1
	Ready        State = 2
	InUse        State = 3
	Quarantined  State = 4
	Released     State = 5
)

// String gives the name used in tables, logs and status.
func (s State) String() string {
	switch s {
	case Constructing:
		return "Constructing"
	case Ready:
		return "Ready"
	case InUse:
		return "InUse"
	case Quarantined:
		return "Quarantined"
	case Released:
		return "Released"
	}
	return fmt.Sprintf("State(%d)", int(s))
}

// unitKey names one completion record of a lease.
type unitKey struct {
	chunk     pd.ChunkID
	target    pd.Rank
	component pd.ComponentID
}

// record is one lease.
type record struct {
	state State
	grant Grant
	pages int

	// Invariant I-01: units holds exactly the units of authorized chunks; the
	// zero settlement means "a write may be in flight".
	units     map[unitKey]pd.Settlement
	chunks    int
	final     bool
	unsettled int
	failed    bool
}

// Lease is a view of one lease.
type Lease struct {
	State State
	Grant Grant
	// Pages counts the pages of the grant.
	Pages int
	// Chunks counts the authorized chunks, Unsettled their units without a fact.
	Chunks, Unsettled int
	// Failed: a unit settled Failed, so the lease can never be committed.
	Failed bool
}

// Ledger holds all leases and pins of one node.
type Ledger struct {
	// constant
	pages Allocator

	// owned by the node's step
	leases map[pd.HandoffID]*record
	pins   map[PinKey]Snapshot
}

// New makes an empty ledger over an allocator, which the ledger does not own.
func New(a Allocator) *Ledger {
	return &Ledger{pages: a, leases: map[pd.HandoffID]*record{}, pins: map[PinKey]Snapshot{}}
}

func refuse(h pd.HandoffID, op string, code pd.Code, format string, args ...any) error {
	return &pd.Error{Op: op, Code: code, Handoff: h, Text: fmt.Sprintf(format, args...)}
}

// find returns the lease if it is in one of the allowed states.
func (l *Ledger) find(h pd.HandoffID, op string, allowed ...State) (*record, error) {
	r := l.leases[h]
	if r == nil {
		return nil, refuse(h, op, pd.CodeUnknownKey, "no lease")
	}
	if !slices.Contains(allowed, r.state) {
		return nil, refuse(h, op, pd.CodeConflict, "the lease is %v", r.state)
	}
	return r, nil
}

// Reserve takes memory for a handoff. On an error nothing was taken.
func (l *Ledger) Reserve(d Demand) (Grant, error) {
	if r := l.leases[d.Owner]; r != nil {
		return Grant{}, refuse(d.Owner, "reserve", pd.CodeDuplicateHandoff, "the lease is %v", r.state)
	}
	g, err := l.pages.Open(d)
	if err != nil {
		return Grant{}, err
	}
	n := 0
	for _, t := range g.Tables {
		n += len(t)
	}
	l.leases[d.Owner] = &record{state: Constructing, grant: g, pages: n, units: map[unitKey]pd.Settlement{}}
	return g, nil
}

// Authorize allows the writes of one more chunk: from here until its units are
// settled, the lease has a writer.
func (l *Ledger) Authorize(h pd.HandoffID, chunk pd.ChunkID, final bool, units []pd.Unit) error {
	r, err := l.find(h, "authorize", Constructing)
	switch {
	case err != nil:
		return err
	case r.failed:
		return refuse(h, "authorize", pd.CodeTransferFailed, "a write of an earlier chunk did not happen")
	case r.final:
		return refuse(h, "authorize", pd.CodeConflict, "chunk %d after the final chunk", chunk)
	case int(chunk) != r.chunks:
		return refuse(h, "authorize", pd.CodeOutOfOrder, "chunk %d, want %d", chunk, r.chunks)
	case len(units) == 0:
		return refuse(h, "authorize", pd.CodeInvalidPlan, "chunk %d has no units", chunk)
	}
	seen := make(map[unitKey]struct{}, len(units))
	for _, u := range units {
		k := unitKey{chunk, u.Target, u.Component}
		if _, dup := seen[k]; dup {
			return refuse(h, "authorize", pd.CodeInvalidPlan, "unit %s on rank %d twice", u.Component, u.Target)
		}
		seen[k] = struct{}{}
	}
	for k := range seen {
		r.units[k] = 0
	}
	r.unsettled += len(units)
	r.chunks++
	r.final = final
	return nil
}

// Settle takes in one fact. The same fact again is fine; a different one is a
// conflict, which quarantines in every state that holds memory.
func (l *Ledger) Settle(h pd.HandoffID, u pd.UnitResult) error {
	r, err := l.find(h, "settle", Constructing, Ready, InUse, Quarantined)
	if err != nil {
		return err
	}
	k := unitKey{u.Chunk, u.Target, u.Component}
	old, known := r.units[k]
	switch {
	case !known:
		return refuse(h, "settle", pd.CodeConflict, "unit %s of chunk %d on rank %d was never authorized", u.Component, u.Chunk, u.Target)
	case u.Settlement < pd.Done || u.Settlement > pd.Uncertain:
		return refuse(h, "settle", pd.CodeMalformed, "settlement %d", int(u.Settlement))
	case mutant.Off(mutant.Quarantine) && u.Settlement == pd.Uncertain:
		u.Settlement = pd.Failed
	}
	switch {
	case old == u.Settlement:
		return nil
	case old == pd.Uncertain:
		return nil // Invariant I-03
	case old != 0:
		r.units[k] = pd.Uncertain
		r.unsettled++
		l.quarantine(h, r)
		return refuse(h, "settle", pd.CodeConflict, "unit %s of chunk %d on rank %d was %v and is now said to be %v",
			u.Component, u.Chunk, u.Target, old, u.Settlement)
	}
	r.units[k] = u.Settlement
	switch u.Settlement {
	case pd.Done:
		r.unsettled--
	case pd.Failed:
		r.unsettled--
		r.failed = true
	case pd.Uncertain:
		// The unit stays unsettled for good: only Resolve ends it.
		l.quarantine(h, r)
	}
	return nil
}

func (l *Ledger) quarantine(h pd.HandoffID, r *record) {
	if r.state != Quarantined {
		r.state = Quarantined
		r.pages = l.pages.Quarantine(h)
	}
}

// Commit says that every byte of the request is there, and publishes the full
// pages whose bytes are known: per group the logical pages that prefill wrote,
// as ascending half-open spans.
// Pages of a hit have their names already (PublishedBytesMatchHash).
func (l *Ledger) Commit(h pd.HandoffID, known map[pd.GroupName][]pd.Span) error {
	r, err := l.find(h, "commit", Constructing)
	switch {
	case err != nil:
		return err
	case !r.final:
		return refuse(h, "commit", pd.CodeIncomplete, "the final chunk was not authorized")
	case r.failed:
		return refuse(h, "commit", pd.CodeTransferFailed, "a write did not happen")
	case r.unsettled > 0:
		return refuse(h, "commit", pd.CodeIncomplete, "%d units are not settled", r.unsettled)
	}
	r.state = Ready
	l.pages.Publish(h, known)
	l.pages.Received(h)
	return nil
}

// Adopt hands a committed lease to the engine, once.
func (l *Ledger) Adopt(h pd.HandoffID) error {
	r, err := l.find(h, "adopt", Ready)
	if err != nil {
		return err
	}
	r.state = InUse
	return nil
}

// Release ends a lease that has no writer. The memory comes back with Free.
func (l *Ledger) Release(h pd.HandoffID) error {
	r, err := l.find(h, "release", Constructing, Ready, InUse)
	if err != nil {
		return err
	}
	if r.unsettled > 0 {
		return refuse(h, "release", pd.CodeUncertain, "native writer: %d units of authorized chunks are not settled", r.unsettled)
	}
	r.state = Released
	return nil
}

// Quarantine holds the memory of a lease that may still be written.
func (l *Ledger) Quarantine(h pd.HandoffID) error {
	r, err := l.find(h, "quarantine", Constructing, Ready, InUse)
	if err != nil {
		return err
	}
	l.quarantine(h, r)
	return nil
}

// Stopped takes in the sender's definite word that nothing more is or will be
// written: authorized units without a fact were never posted or did not happen.
func (l *Ledger) Stopped(h pd.HandoffID) error {
	r, err := l.find(h, "stop", Constructing)
	if err != nil {
		return err
	}
	for k, s := range r.units {
		if s == 0 {
			r.units[k], r.failed = pd.Failed, true
		}
	}
	r.unsettled = 0
	return nil
}

// Resolve ends a quarantine: the caller has proof that no write can land any
// more (docs/protocol.md lists the proofs).
func (l *Ledger) Resolve(h pd.HandoffID) error {
	r, err := l.find(h, "resolve", Quarantined)
	if err != nil {
		return err
	}
	r.state, r.unsettled = Released, 0
	return nil
}

// Free gives the memory of a released lease back and forgets it. It is the
// last effect of a step.
func (l *Ledger) Free(h pd.HandoffID) error {
	if _, err := l.find(h, "free", Released); err != nil {
		return err
	}
	l.pages.Close(h)
	delete(l.leases, h)
	return nil
}

// Lease shows one lease.
func (l *Ledger) Lease(h pd.HandoffID) (Lease, bool) {
	r := l.leases[h]
	if r == nil {
		return Lease{}, false
	}
	return Lease{State: r.state, Grant: r.grant, Pages: r.pages, Chunks: r.chunks, Unsettled: r.unsettled, Failed: r.failed}, true
}

// Counts says how many leases are held and how many of them are quarantined.
func (l *Ledger) Counts() (held, quarantined int) {
	for _, r := range l.leases {
		if r.state == Quarantined {
			quarantined++
		}
	}
	return len(l.leases), quarantined
}

// Pin holds the source pages of one computed chunk.
func (l *Ledger) Pin(key PinKey) (Snapshot, error) {
	if _, ok := l.pins[key]; ok {
		return Snapshot{}, refuse(key.Owner, "pin", pd.CodeConflict, "chunk %d is pinned", key.Chunk)
	}
	s, err := l.pages.Pin(key)
	if err != nil {
		return Snapshot{}, err
	}
	l.pins[key] = s
	return s, nil
}

// Unpin drops the pin of one chunk: its source bytes are read no more.
func (l *Ledger) Unpin(key PinKey) error {
	if _, ok := l.pins[key]; !ok {
		return refuse(key.Owner, "unpin", pd.CodeUnknownKey, "chunk %d is not pinned", key.Chunk)
	}
	delete(l.pins, key)
	l.pages.Unpin(key)
	return nil
}

// Pins counts the pins of one owner; of all owners if it is empty.
func (l *Ledger) Pins(owner pd.HandoffID) int {
	n := 0
	for k := range l.pins {
		if owner == "" || k.Owner == owner {
			n++
		}
	}
	return n
}

// PinsOf lists the pins of one owner by chunk.
func (l *Ledger) PinsOf(owner pd.HandoffID) []PinKey {
	var out []PinKey
	for k := range l.pins {
		if k.Owner == owner {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b PinKey) int { return int(a.Chunk - b.Chunk) })
	return out
}

// Check reports the first broken invariant of the ledger or its allocator.
func (l *Ledger) Check() error {
	for h, r := range l.leases {
		open := 0
		uncertain := false
		for _, s := range r.units {
			if s == 0 || s == pd.Uncertain {
				open++
			}
			uncertain = uncertain || s == pd.Uncertain
		}
		switch {
		case r.state == Released:
			if r.unsettled != 0 {
				return fmt.Errorf("invariant I-02: released lease %s has %d unsettled units", h, r.unsettled)
			}
		case open != r.unsettled:
			return fmt.Errorf("invariant I-01: lease %s counts %d unsettled units, has %d", h, r.unsettled, open)
		case uncertain && r.state != Quarantined:
			return fmt.Errorf("invariant I-03: lease %s is %v and has an uncertain unit", h, r.state)
		case (r.state == Ready || r.state == InUse) && (r.unsettled > 0 || r.failed || !r.final):
			return fmt.Errorf("invariant I-04 NoReadOfUnsettledPage: lease %s is %v with %d unsettled units", h, r.state, r.unsettled)
		}
	}
	return l.pages.Check()
}

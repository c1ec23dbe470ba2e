package sim

import (
	"fmt"
	"strings"
	"time"
)

// Summary is what many worlds came to.
type Summary struct {
	Worlds int
	Counts Counts
	Tally  Tally
	Lines  int
	Took   time.Duration // of simulated time
	Failed []Result
	// Digest joins the digests of all worlds.
	Digest uint64
}

// Add takes one world in.
func (s *Summary) Add(r Result) {
	s.Worlds++
	s.Counts.Add(r.Counts)
	s.Tally.Add(r.Tally)
	s.Lines += r.Lines
	s.Took += r.Took
	s.Digest = (s.Digest ^ r.Digest) * fnvPrime
	if r.Failed() {
		s.Failed = append(s.Failed, r)
	}
}

// Add adds another world's tally.
func (t *Tally) Add(o Tally) {
	t.Handoffs += o.Handoffs
	t.Succeeded += o.Succeeded
	t.Cancelled += o.Cancelled
	t.Failed += o.Failed
	t.Refused += o.Refused
	t.Batches += o.Batches
	t.Landings += o.Landings
	t.Calls += o.Calls
	t.Steps += o.Steps
	t.Boots += o.Boots
	t.Fences += o.Fences
	t.Gates += o.Gates
	t.Proofs += o.Proofs
	if t.Failures == nil {
		t.Failures, t.Cancels = map[string]int{}, map[string]int{}
	}
	for k, n := range o.Failures {
		t.Failures[k] += n
	}
	for k, n := range o.Cancels {
		t.Cancels[k] += n
	}
}

// String is the table that people read: what happened, and how often each kind
// of fault did.
func (s *Summary) String() string {
	var b strings.Builder
	t := s.Tally
	fmt.Fprintf(&b, "%d worlds, %v simulated, %d events, digest %016x\n", s.Worlds, s.Took.Round(time.Second), s.Lines, s.Digest)
	fmt.Fprintf(&b, "%d handoffs: %d right answers, %d left, %d failed; %d requests found no router\n", t.Handoffs, t.Succeeded, t.Cancelled, t.Failed-t.Refused, t.Refused)
	fmt.Fprintf(&b, "%d control calls, %d batches, %d landings, %d node steps, %d boots, %d fences, %d gates, %d ended by a fact\n", t.Calls, t.Batches, t.Landings, t.Steps, t.Boots, t.Fences, t.Gates, t.Proofs)
	for _, m := range []struct {
		name string
		of   map[string]int
	}{{"failed with", t.Failures}, {"left at", t.Cancels}} {
		fmt.Fprintf(&b, "%s:", m.name)
		for _, k := range sorted(m.of) {
			fmt.Fprintf(&b, " %s %d", k, m.of[k])
		}
		b.WriteByte('\n')
	}
	for f := Fault(1); f <= lastFault; f++ {
		fmt.Fprintf(&b, "%-42s %d\n", f, s.Counts[f])
	}
	return b.String()
}

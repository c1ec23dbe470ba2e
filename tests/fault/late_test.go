package fault

import (
	"flag"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// lateRounds is how many writes land late in each test. A run for the record
// has 1,000, shared among clusters.
var lateRounds = flag.Int("fault.rounds", 0, "how many writes land late in each test of late writes; 0: as many as a few seconds allow")

const (
	// lateTime bounds a test without a number of rounds.
	lateTime = 8 * time.Second
	// shardRounds is how many rounds one cluster has at most.
	shardRounds = 50
)

// lateKind is how a write comes to land late.
type lateKind struct {
	name string
	// fault hits one of every few batches, the i-th time with this delay.
	fault string
	delay func(i int) int
	// send sends request A; nil sends it like any other.
	send func(t *testing.T, c *cluster.Cluster, q cluster.Completion) *flight
	link string
}

var lateKinds = []lateKind{
	{name: "sender fails first", fault: simulator.LateWriteAfterFailed, delay: func(i int) int { return 7 * i % 97 }},
	// Bytes of this kind are uncertain only when the sender has given up before,
	// after half a second.
	{name: "target is slow", fault: simulator.TargetPausedBuffered, delay: func(i int) int { return 520 + 11*i%97 }},
	// The target's process stands still while the bytes arrive, until the client
	// of A has its error; then they lie in its sockets beside what B sends.
	{name: "target is stopped", send: stopTarget, link: "150000"},
}

// lateSpacing is of how many batches one is hit: a request moves one, so some
// requests are answered between two that fail.
const lateSpacing = 4

// Case B05: a write of request A lands when A has failed already, over a pool in
// which every request gets the pages of one of the two before it. B, which has
// them by then, is refused or its text is exact.
func TestLateWriteNeverReachesAnotherRequest(t *testing.T) {
	t.Parallel()
	for _, kind := range lateKinds {
		for _, fences := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, auto-fence %t", kind.name, fences), func(t *testing.T) {
				t.Parallel()
				for left, shard := *lateRounds, 0; shard == 0 || left > 0; left, shard = left-shardRounds, shard+1 {
					t.Run(fmt.Sprint(shard), func(t *testing.T) {
						t.Parallel()
						lateShard(t, kind, fences, shard, min(left, shardRounds))
					})
				}
			})
		}
	}
}

// lateShard runs so many rounds over a cluster of its own, or as many as its
// time allows.
func lateShard(t *testing.T, kind lateKind, fences bool, shard, rounds int) {
	var faults []simulator.Fault
	for i := range 200 {
		if kind.fault != "" {
			faults = append(faults, simulator.Fault{Kind: kind.fault, Nth: lateSpacing*i + 1, DelayMillis: int64(kind.delay(shard*shardRounds + i))})
		}
	}
	c := cluster.Start(t, tight(kind, faults, fences))
	l := late{t: t, c: c, kind: kind, fences: fences, shard: shard}
	for began := time.Now(); l.failed < rounds || rounds == 0 && time.Since(began) < lateTime; {
		l.request()
	}
	l.untilExact()
	c.AssertIdle(t)
	t.Logf("%d requests failed with a write under way, %d were answered exactly, %d refused", l.failed, l.exact, l.refused)
	require.Positive(t, l.failed)
	require.Positive(t, l.exact)
	if kind.fault != "" {
		// Nobody ever knows of such a write that it has ended.
		require.Positive(t, c.Decode[0].Count(t, journal.RecoveryRequired))
		require.Positive(t, c.Decode[0].Count(t, "FENCED"))
	}
}

// tight is a pair whose decode pool is as small as a request of the tests
// allows, under faults of the data plane. Writers give up after half a second.
func tight(kind lateKind, faults []simulator.Fault, fences bool) cluster.Options {
	flags := []string{"--no-enable-prefix-caching"}
	o := cluster.Options{
		PLayout: "dp1tp1", DLayout: "dp1tp1", Capacity: 1, HandoffSeconds: 1, RequestSeconds: 60, ExpectErrors: true,
		PrefillFlags: flags, DecodeFlags: append([]string{"--sim-pool-tokens", "256"}, flags...),
		PrefillFaults: faults,
	}
	if kind.link != "" {
		o.PrefillFlags = append([]string{"--sim-link-rate", kind.link}, flags...)
	}
	if fences {
		o.DecodeFlags = append(o.DecodeFlags, "--auto-fence")
	}
	return o
}

// late sends one request after the other and looks at what came of each.
type late struct {
	t      *testing.T
	c      *cluster.Cluster
	kind   lateKind
	fences bool
	shard  int

	sent, failed, exact, refused int
	// since is how many were answered exactly since the last that failed.
	since int
}

// refusals are the errors of requests that nothing was begun for. In a pair of
// hasty nodes any other error may be the end of a write that lands late.
var refusals = []any{"node_gated", "no_eligible_pair", "node_busy", "fenced", "session_stale"}

func (l *late) request() {
	l.t.Helper()
	q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint("late ", l.shard, " ", l.sent, " "), 100), Max: 20, Stream: l.sent%2 == 0}
	l.sent++
	var f *flight
	if l.kind.send != nil && l.since >= lateSpacing-1 {
		f = l.kind.send(l.t, l.c, q)
	} else {
		f = fly(l.t, l.c.URL, q)
	}
	f.land(l.t)
	require.NoError(l.t, f.err, "the answer has not the form of the API")
	switch failure := f.answer.Failure; {
	case failure == nil:
		f.wantText(l.t)
		l.exact++
		l.since++
	case slices.Contains(refusals, failure.Code):
		require.Equal(l.t, 503, f.answer.Status)
		l.refused++
		l.open()
	default:
		f.wantError(l.t)
		l.failed++
		l.since = 0
	}
}

// open is what an operator does when requests are refused.
func (l *late) open() {
	l.t.Helper()
	if l.fences {
		return
	}
	said, err := l.c.Decode[0].Describe()
	require.NoError(l.t, err)
	if said.Capacity.Quarantined > 0 {
		fence(l.t, l.c, l.c.Decode[0])
	}
}

// untilExact sends requests until one is answered.
func (l *late) untilExact() {
	l.t.Helper()
	cluster.Eventually(l.t, func() error {
		if l.since == 0 {
			l.request()
			return fmt.Errorf("no request is answered: %d failed, %d refused", l.failed, l.refused)
		}
		return nil
	})
}

// stopTarget sends a request and stops the decode node while prefill writes.
// Where the moment passes unseen the request is answered.
func stopTarget(t *testing.T, c *cluster.Cluster, q cluster.Completion) *flight {
	t.Helper()
	known := c.Prefill[0].Count(t, journal.ChunkSubmitted)
	f := fly(t, c.URL, q)
	cluster.Eventually(t, func() error {
		select {
		case <-f.over:
			return nil
		default:
		}
		if c.Prefill[0].Count(t, journal.ChunkSubmitted) == known {
			return fmt.Errorf("nothing is in flight")
		}
		return nil
	})
	decode := c.Decode[0].Process
	stop(t, decode)
	f.land(t)
	decode.Signal(syscall.SIGCONT)
	return f
}

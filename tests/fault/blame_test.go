package fault

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// Case B24: a good node is not shut out, neither for one transfer that failed
// nor for what clients ask: service goes on without a restart.
func TestGoodNodeIsNotShutOut(t *testing.T) {
	t.Parallel()
	zero, one := pd.Rank(0), pd.Rank(1)
	c := cluster.Start(t, cluster.Options{
		PLayout: "dp2tp1", DLayout: "dp2tp1", HandoffSeconds: patient, ExpectErrors: true,
		PrefillFlags: []string{"--max-model-len", "512"}, DecodeFlags: []string{"--max-model-len", "512"},
		PrefillFaults: []simulator.Fault{{Kind: simulator.SubmitFailed, Target: &zero}, {Kind: simulator.SubmitFailed, Target: &one}},
	})
	before := boots(t, c.Nodes())
	failed := 0
	for i := range 22 {
		f := fly(t, c.URL, cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint("blip ", i, " "), 60), Max: 6, Stream: i%2 == 0})
		if f.land(t); f.err == nil && f.answer.Failure != nil {
			f.wantError(t)
			failed++
			continue
		}
		f.wantText(t)
	}
	require.LessOrEqual(t, failed, 2, "as many as transfers failed")
	require.Positive(t, failed)
	// Bad requests between good ones.
	for i := range 25 {
		bad := cluster.Completion{Prompt: cluster.Prompt("long", 600), Max: 4, Stream: i%2 == 0}
		if i%3 == 0 {
			bad = cluster.Completion{Prompt: "a", Max: 4, Fields: map[string]any{"max_tokens": "four"}}
		}
		b := fly(t, c.URL, bad)
		good := fly(t, c.URL, cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint("good ", i, " "), 30), Max: 4, Stream: i%2 == 1})
		b.land(t)
		require.NoError(t, b.err)
		require.Equal(t, 400, b.answer.Status, "%s", b.answer.Raw)
		good.wantText(t)
	}
	c.AssertIdle(t)
	c.WaitPairs(t, 1)
	require.Equal(t, before, boots(t, c.Nodes()))
	for _, n := range c.Nodes() {
		require.Zero(t, n.Count(t, journal.RecoveryRequired), n.Label)
	}
}

// Case B27: prefill cannot begin a write, whichever chunk and rank it is of: the
// request fails once, with prefill's reason, and every page comes back.
func TestWriteThatCannotBeginIsToldAtOnce(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		// submit fails for the nth chunk that goes to the rank.
		nth  int
		rank pd.Rank
	}{{"first chunk", 1, 0}, {"middle chunk", 2, 0}, {"last chunk", 3, 0}, {"one rank of four", 2, 2}} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := cluster.Start(t, cluster.Options{
				PLayout: "dp1tp4", DLayout: "dp1tp4", HandoffSeconds: patient, ExpectErrors: true,
				PrefillFlags: []string{"--no-enable-prefix-caching"}, DecodeFlags: []string{"--no-enable-prefix-caching"},
				PrefillFaults: []simulator.Fault{{Kind: simulator.SubmitFailed, Target: &row.rank, Nth: row.nth}},
			})
			atStart := []int{freePages(t, c.Prefill[0]), freePages(t, c.Decode[0])}
			q := cluster.Completion{Prompt: cluster.Prompt("cannot begin ", 384), Max: 8}
			at := time.Now()
			f := fly(t, c.URL, q)
			f.wantError(t)
			t.Logf("%v: %v", f.landed.Sub(at).Round(time.Millisecond), f.answer.Failure)
			require.Less(t, f.landed.Sub(at), soon)
			require.Contains(t, []any{"transfer_failed", "aborted"}, f.answer.Failure.Code)
			require.Contains(t, f.answer.Failure.Message, fmt.Sprintf("chunk %d", row.nth-1))
			c.AssertIdle(t)
			for i, n := range c.Nodes() {
				require.Equal(t, atStart[i], freePages(t, n), n.Label)
				require.Equal(t, 1, n.Count(t, journal.HandoffFailed), n.Label)
				require.Zero(t, n.Count(t, journal.RecoveryRequired), n.Label)
			}
			fly(t, c.URL, q).wantText(t)
		})
	}
}

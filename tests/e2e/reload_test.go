package e2e

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// A node that is added to pd.json serves with those that run, once all have read the
// file again; nothing that runs is disturbed.
func TestNodeThatIsAddedServesWithoutARestart(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	c := cluster.Start(t, cluster.Options{PLayout: "dp1tp1", DLayout: "dp1tp1", DecodeFlags: []string{"--sim-decode-rate", "6"}, ExpectErrors: true})
	long := cluster.Completion{Prompt: cluster.Prompt("long", 100), Max: 80, Stream: true}
	want := combined.Text(t, long)
	var running sync.WaitGroup
	running.Go(func() {
		a, err := cluster.Complete(t.Context(), c.URL, long)
		if assert.NoError(t, err) && assert.NoError(t, a.Check(long)) {
			assert.Equal(t, want, a.Text)
		}
	})
	await(t, c.Decode[0], handoff(t, c.Decode[0], 0), journal.HandoffReserved)

	all := func() (out []*cluster.Process) {
		for _, n := range c.Nodes() {
			out = append(out, n.Process)
		}
		return append(out, c.Router) // last: it sends requests to new pairs at once
	}
	const applied, refused = "pd.json read again", "stays as it was"
	decode := c.Add(t, pd.Decode)
	cluster.ReadAgain(t, applied, all()...)
	c.WaitPairs(t, 2)
	prefill := c.Add(t, pd.Prefill)
	cluster.ReadAgain(t, applied, all()...)
	c.WaitPairs(t, 4)
	for i := range 8 {
		q := cluster.Completion{Prompt: cluster.Prompt("added", 40+i), Max: 3, Stream: i%2 == 0}
		require.Equal(t, combined.Text(t, q), cluster.MustComplete(t, c.URL, q).Text)
	}
	for _, n := range []*cluster.Node{decode, prefill} {
		require.Positive(t, n.Count(t, journal.HandoffCreated), "%s has served", n.Label)
	}
	running.Wait()

	// What cannot change without a restart is refused by all, and changes nothing.
	c.Rewrite(t, func(runtime map[string]any) { runtime["capacity"] = 3 })
	for _, p := range all() {
		cluster.ReadAgain(t, refused, p)
	}
	q := cluster.Completion{Prompt: "still here", Max: 3}
	require.Equal(t, combined.Text(t, q), cluster.MustComplete(t, c.URL, q).Text)

	// A node that is gone from the file gets nothing new; the others go on.
	first := c.Decode[0]
	c.Rewrite(t, func(runtime map[string]any) {
		delete(runtime, "capacity")
		runtime["decode"] = runtime["decode"].([]any)[1:]
	})
	cluster.ReadAgain(t, "this is, is no longer in it", first.Process)
	cluster.ReadAgain(t, applied, c.Prefill[0].Process, prefill.Process, decode.Process, c.Router)
	c.WaitPairs(t, 2)
	before := first.Count(t, journal.HandoffCreated)
	for i := range 4 {
		q := cluster.Completion{Prompt: cluster.Prompt("left", 40+i), Max: 3}
		require.Equal(t, combined.Text(t, q), cluster.MustComplete(t, c.URL, q).Text)
	}
	require.Equal(t, before, first.Count(t, journal.HandoffCreated))
}

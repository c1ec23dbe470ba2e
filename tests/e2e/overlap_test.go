package e2e

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// chunkEvents are a handoff's events of one name by chunk.
func chunkEvents(t *testing.T, n *cluster.Node, id, name string) map[int]journal.Event {
	t.Helper()
	out := map[int]journal.Event{}
	for _, e := range n.EventsOf(t, id) {
		if e.Event == name {
			require.NotNil(t, e.Chunk)
			out[*e.Chunk] = e
		}
	}
	return out
}

// Behaviour 151: while a chunk moves, the next one is computed.
func TestTransferOfAChunkOverlapsTheComputationOfTheNext(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	c := cluster.Start(t, cluster.Options{
		PLayout: "dp2tp2", DLayout: "dp4tp1",
		PrefillFlags: []string{"--sim-prefill-rate", "1000", "--sim-link-rate", "50000"},
	})
	for number, size := range []int{257, 896} {
		q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint(number), size), Max: 4}
		known := c.Prefill[0].Count(t, journal.HandoffCreated)
		require.Equal(t, combined.Text(t, q), cluster.MustComplete(t, c.URL, q).Text)
		id := handoff(t, c.Prefill[0], known)
		await(t, c.Prefill[0], id, journal.HandoffCompleted)
		computed := chunkEvents(t, c.Prefill[0], id, journal.Compute)
		moved := chunkEvents(t, c.Prefill[0], id, journal.Transfer)
		chunks := (size + 127) / 128
		require.Len(t, computed, chunks)
		require.Len(t, moved, chunks)
		for k := range chunks - 1 {
			assert.Positive(t, moved[k].Overlap(computed[k+1]), "%d tokens: chunk %d moved [%d,%d), chunk %d was computed [%d,%d)",
				size, k, moved[k].BeganNanos, moved[k].EndedNanos, k+1, computed[k+1].BeganNanos, computed[k+1].EndedNanos)
		}
		for k := range chunks {
			assert.GreaterOrEqual(t, moved[k].BeganNanos, computed[k].EndedNanos, "chunk %d moved before it was computed", k)
		}
	}
	c.AssertIdle(t)
}

// Behaviour 152, 182: requests that are computed in one prefill batch have the
// texts that they have alone.
func TestRequestsInOnePrefillBatchHaveTheirOwnTexts(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	c := cluster.Start(t, cluster.Options{
		PLayout: "dp2tp2", DLayout: "dp4tp1", PrefillFlags: []string{"--sim-prefill-rate", "1000"},
	})
	// The first one occupies the engine for two seconds, in which the others arrive
	// and wait for the same next step.
	first := cluster.Completion{Prompt: cluster.Prompt("first", 2048), Max: 16}
	others := []cluster.Completion{
		{Prompt: cluster.Prompt("second", 300), Max: 24, Stream: true},
		{Prompt: cluster.Prompt("third", 129), Max: 24},
		{Prompt: cluster.Prompt("fourth", 7), Max: 24, Stream: true},
	}
	var all sync.WaitGroup
	want := map[string]string{}
	for _, q := range append(others, first) {
		want[q.Prompt] = combined.Text(t, q)
	}
	ask := func(q cluster.Completion) {
		all.Go(func() {
			a, err := cluster.Complete(t.Context(), c.URL, q)
			if assert.NoError(t, err) && assert.NoError(t, a.Check(q)) {
				assert.Equal(t, want[q.Prompt], a.Text)
			}
		})
	}
	ask(first)
	id := handoff(t, c.Prefill[0], 0)
	await(t, c.Prefill[0], id, journal.HandoffReserved)
	for _, q := range others {
		ask(q)
	}
	all.Wait()
	// One step has one beginning: chunks with the same one were one batch.
	together := map[int64]int{}
	for _, e := range c.Prefill[0].Events(t) {
		if e.Event == journal.Compute {
			together[e.BeganNanos]++
		}
	}
	most := 0
	for _, n := range together {
		most = max(most, n)
	}
	require.GreaterOrEqual(t, most, 2, "no two requests were in one batch")
	c.AssertIdle(t)
}

// Behaviour 152: sixteen streams at once through one pair.
func TestSixteenStreamsAtOnceHaveTheirOwnTexts(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	c := cluster.Start(t, cluster.Options{
		DLayout: "dp16tp1", Capacity: 16,
		DecodeFlags: []string{"--sim-decode-rate", "40"},
	})
	var all sync.WaitGroup
	for i := range 16 {
		q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprintf("stream %d ", i), 40+73*i), Max: 160, Stream: true}
		want := combined.Text(t, q)
		all.Go(func() {
			a, err := cluster.Complete(t.Context(), c.URL, q)
			if assert.NoError(t, err) && assert.NoError(t, a.Check(q)) {
				assert.Equal(t, want, a.Text)
			}
		})
	}
	all.Wait()
	c.AssertIdle(t)
	require.Greater(t, peak(c.Decode[0].Events(t)), 8, "they did not run at once")
}

// peak is how many handoffs a decode node had admitted at a time.
func peak(events []journal.Event) int {
	running, most := 0, 0
	for _, e := range events { // in order of time
		switch e.Event {
		case journal.DecodeAdmitted:
			running++
		case journal.HandoffCompleted:
			running--
		}
		most = max(most, running)
	}
	return most
}

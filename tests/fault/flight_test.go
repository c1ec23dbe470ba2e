package fault

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// flight is a request that is on its way while something happens to it.
type flight struct {
	q cluster.Completion
	// headed is closed when the head of the answer is there, or none will come.
	headed, over chan struct{}
	// valid once over is closed
	answer cluster.Answer
	err    error
	landed time.Time
}

// fly sends a request. It ends with the test, if not before.
func fly(t *testing.T, url string, q cluster.Completion) *flight {
	t.Helper()
	f := &flight{q: q, headed: make(chan struct{}), over: make(chan struct{})}
	go func() {
		defer close(f.over)
		r, err := cluster.Send(t.Context(), url, q)
		close(f.headed)
		if f.err = err; err == nil {
			f.answer, f.err = cluster.Read(r)
		}
		f.landed = time.Now()
	}()
	t.Cleanup(func() { <-f.over })
	return f
}

// head waits for the head of the answer.
func (f *flight) head(t *testing.T) {
	t.Helper()
	f.wait(t, f.headed, "head")
}

func (f *flight) wait(t *testing.T, what <-chan struct{}, name string) {
	t.Helper()
	select {
	case <-what:
	case <-time.After(cluster.Patience):
		t.Fatalf("no %s of the answer within %v", name, cluster.Patience)
	}
}

// land waits for the end of the answer.
func (f *flight) land(t *testing.T) {
	t.Helper()
	f.wait(t, f.over, "end")
}

// wantText waits for a full answer with the right text.
func (f *flight) wantText(t *testing.T) {
	t.Helper()
	f.land(t)
	require.NoError(t, f.err)
	require.NoError(t, f.answer.Check(f.q))
	require.Equal(t, cluster.SharedCombined(t).Text(t, f.q), f.answer.Text)
}

// wantError waits for an explicit error: a status with a JSON body, or one error
// event as the end of a stream. What had come before is the right beginning.
func (f *flight) wantError(t *testing.T) {
	t.Helper()
	f.land(t)
	require.NoError(t, f.err, "the answer has not the form of the API")
	a := f.answer
	require.NotNil(t, a.Failure, "no error in the answer: %d %s", a.Status, a.Raw)
	require.NotEmpty(t, a.Failure.Message)
	require.NotEmpty(t, a.Failure.Code)
	if a.Status == 200 {
		require.True(t, f.q.Stream, "an error as a whole answer of status 200: %s", a.Raw)
	} else {
		require.Contains(t, a.Header.Get("Content-Type"), "application/json")
		require.GreaterOrEqual(t, a.Status, 500, "%s", a.Raw)
	}
	require.Empty(t, a.Finish, "an error after the end of the text")
	require.Contains(t, cluster.SharedCombined(t).Text(t, f.q), a.Text)
}

// wantCut waits for the end of a connection whose server has died: no form of an
// answer, and never a whole one.
func (f *flight) wantCut(t *testing.T) {
	t.Helper()
	f.land(t)
	require.Error(t, f.err, "a whole answer of a router that is dead: %d %s", f.answer.Status, f.answer.Raw)
}

// handoff waits until a node knows one handoff more than so many and gives its
// id.
func handoff(t *testing.T, n *cluster.Node, known int) string {
	t.Helper()
	id := ""
	cluster.Eventually(t, func() error {
		count := 0
		for _, e := range n.Events(t) {
			if e.Event == journal.HandoffCreated {
				if count++; count > known {
					id = e.Handoff
					return nil
				}
			}
		}
		return fmt.Errorf("%s knows %d handoffs, want %d", n.Label, count, known+1)
	})
	return id
}

// has says that a node's journal has an event of a handoff.
func has(t *testing.T, n *cluster.Node, id, event string) bool {
	t.Helper()
	for _, e := range n.EventsOf(t, id) {
		if e.Event == event {
			return true
		}
	}
	return false
}

func await(t *testing.T, n *cluster.Node, id, event string) {
	t.Helper()
	cluster.Eventually(t, func() error {
		if !has(t, n, id, event) {
			return fmt.Errorf("%s has no %s of handoff %s", n.Label, event, id)
		}
		return nil
	})
}

// stage is a moment in the life of a request, and what makes it last.
type stage struct {
	name string
	// prompt and max are the request's sizes.
	prompt, max int
	// prefill and decode are the nodes' flags.
	prefill, decode []string
	// reached waits for the moment. It says whether the moment has passed before
	// this process had its turn to look.
	reached func(t *testing.T, c *cluster.Cluster, id string) (passed bool)
}

// The stages last for about a second and more. A transfer has to end before the
// data plane gives it up, which is half of the hasty nodes' patience.
var (
	computes = stage{
		name: "while prefill computes", prompt: 128, max: 16,
		prefill: []string{"--sim-prefill-rate", "50"},
		reached: func(t *testing.T, c *cluster.Cluster, id string) bool {
			await(t, c.Prefill[0], id, journal.HandoffReserved)
			return has(t, c.Decode[0], id, "CHUNK_REGISTERED")
		},
	}
	transfers = stage{
		name: "while a transfer is in flight", prompt: 128, max: 16,
		prefill: []string{"--sim-link-rate", "40000"},
		reached: func(t *testing.T, c *cluster.Cluster, id string) bool {
			await(t, c.Prefill[0], id, journal.ChunkSubmitted)
			return has(t, c.Prefill[0], id, journal.Transfer)
		},
	}
	streams = stage{
		name: "while decode streams", prompt: 64, max: 400,
		decode: []string{"--sim-decode-rate", "40"},
		reached: func(t *testing.T, c *cluster.Cluster, id string) bool {
			await(t, c.Decode[0], id, journal.DecodeAdmitted)
			return has(t, c.Decode[0], id, journal.HandoffCompleted)
		},
	}
	stages = []stage{computes, transfers, streams}
)

// The nodes' patience with each other, in seconds. Where a timeout has no part
// in what is tested they are patient: longer than a busy machine ever leaves a
// process without a turn. Where its end is what is tested they are hasty.
const (
	patient        = 60
	hasty          = 10
	handoffSeconds = hasty
)

// start starts the pair to which a stage will happen.
func (s stage) start(t *testing.T, handoffSeconds int) *cluster.Cluster {
	t.Helper()
	prefill := s.prefill
	if s.name == transfers.name && handoffSeconds == patient {
		prefill = []string{"--sim-link-rate", "16000"} // there is time
	}
	return cluster.Start(t, cluster.Options{
		PLayout: "dp2tp1", DLayout: "dp2tp1", HandoffSeconds: handoffSeconds, RequestSeconds: 60, ExpectErrors: true,
		PrefillFlags: prefill, DecodeFlags: s.decode,
	})
}

// tries bounds how often a moment is tried to be met.
const tries = 5

// fly sends a request and waits until it is in the stage. A request whose moment
// has passed unseen is let through, and another one is sent.
func (s stage) fly(t *testing.T, c *cluster.Cluster, seed string, stream bool) (*flight, string) {
	t.Helper()
	for try := range tries {
		known := c.Prefill[0].Count(t, journal.HandoffCreated)
		q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint(seed, " ", try, " "), s.prompt), Max: s.max, Stream: stream}
		// Asked for now: it would take its time when the answer is there.
		cluster.SharedCombined(t).Text(t, q)
		f := fly(t, c.URL, q)
		id := handoff(t, c.Prefill[0], known)
		if stream {
			// Decode answers with its head as soon as it has memory, and nothing
			// orders that head and prefill's next steps but this.
			f.head(t)
		}
		if !s.reached(t, c, id) {
			return f, id
		}
		f.wantText(t)
		c.AssertIdle(t)
	}
	t.Fatalf("the moment %q has passed unseen in %d requests", s.name, tries)
	panic("unreachable")
}

// tenOfTen sends ten requests, of which every one must be answered.
func tenOfTen(t *testing.T, c *cluster.Cluster, seed string) {
	t.Helper()
	for range 2 {
		var all []*flight
		for i := range 5 {
			q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint(i, seed), 8), Max: 6, Stream: i%2 == 0}
			all = append(all, fly(t, c.URL, q))
		}
		for _, f := range all {
			f.wantText(t)
		}
		c.AssertIdle(t)
	}
}

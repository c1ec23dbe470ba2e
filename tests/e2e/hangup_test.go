package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// stage is a moment in the life of a request at which its client leaves.
type stage struct {
	name string
	// prompt and max are so large that the stage lasts for more than a second.
	prompt, max int
	// whole: the stage exists without a stream, too.
	whole bool
	// reached waits for the moment.
	reached func(t *testing.T, c *cluster.Cluster, seen seen, client *cluster.Connection)
	// after, if set, looks at what must have come of it.
	after func(t *testing.T, c *cluster.Cluster, seen seen)
}

// seen is how many handoffs the nodes knew before the request.
type seen struct{ prefill, decode int }

// handoff waits until a node knows one handoff more and gives its id.
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

// find gives the first event of a name, and whether there is one.
func find(events []journal.Event, name string) (journal.Event, bool) {
	for _, e := range events {
		if e.Event == name {
			return e, true
		}
	}
	return journal.Event{}, false
}

// await waits for an event of a handoff.
func await(t *testing.T, n *cluster.Node, id, event string) journal.Event {
	t.Helper()
	var got journal.Event
	cluster.Eventually(t, func() error {
		e, ok := find(n.EventsOf(t, id), event)
		if !ok {
			return fmt.Errorf("%s has no %s of handoff %s", n.Label, event, id)
		}
		got = e
		return nil
	})
	return got
}

var stages = []stage{
	{
		name: "at once", prompt: 300, max: 64, whole: true,
		reached: func(*testing.T, *cluster.Cluster, seen, *cluster.Connection) {},
	},
	{
		name: "once decode has reserved", prompt: 1024, max: 64, whole: true,
		reached: func(t *testing.T, c *cluster.Cluster, s seen, _ *cluster.Connection) {
			await(t, c.Decode[0], handoff(t, c.Decode[0], s.decode), journal.HandoffReserved)
		},
	},
	{
		name: "while prefill computes", prompt: 1024, max: 64, whole: true,
		reached: func(t *testing.T, c *cluster.Cluster, s seen, _ *cluster.Connection) {
			await(t, c.Prefill[0], handoff(t, c.Prefill[0], s.prefill), journal.Compute)
		},
		after: func(t *testing.T, c *cluster.Cluster, s seen) {
			id := handoff(t, c.Prefill[0], s.prefill)
			await(t, c.Prefill[0], id, journal.HandoffFailed)
			for _, e := range c.Prefill[0].EventsOf(t, id) {
				require.False(t, e.Event == journal.Compute && e.Span.End == 1024, "prefill went on to the end for nobody")
			}
		},
	},
	{
		name: "while a transfer is in flight", prompt: 128, max: 64, whole: true,
		reached: func(t *testing.T, c *cluster.Cluster, s seen, _ *cluster.Connection) {
			id := handoff(t, c.Prefill[0], s.prefill)
			await(t, c.Prefill[0], id, journal.ChunkSubmitted)
			_, over := find(c.Prefill[0].EventsOf(t, id), journal.Transfer)
			require.False(t, over, "the transfer was over before the client could leave")
		},
		after: func(t *testing.T, c *cluster.Cluster, s seen) {
			id := handoff(t, c.Prefill[0], s.prefill)
			await(t, c.Prefill[0], id, journal.HandoffFailed)
			_, settled := find(c.Prefill[0].EventsOf(t, id), journal.Transfer)
			require.True(t, settled, "prefill let its pages go before the write had settled")
			await(t, c.Decode[0], handoff(t, c.Decode[0], s.decode), journal.HandoffFailed)
		},
	},
	{
		name: "before the first byte", prompt: 64, max: 400, whole: true,
		reached: func(t *testing.T, c *cluster.Cluster, s seen, _ *cluster.Connection) {
			await(t, c.Decode[0], handoff(t, c.Decode[0], s.decode), journal.DecodeAdmitted)
		},
	},
	{
		name: "while decode streams", prompt: 64, max: 400,
		reached: func(t *testing.T, _ *cluster.Cluster, _ seen, client *cluster.Connection) {
			for range 3 {
				client.Line(t, "data: ")
			}
		},
	},
}

// Case B03. Behaviours 134, 153, 170: a client that leaves, in whatever stage, costs
// nothing: both nodes are soon idle, not gated, and the next text is exact.
func TestClientThatLeavesCostsNothing(t *testing.T) {
	t.Parallel()
	for _, stage := range stages {
		t.Run(stage.name, func(t *testing.T) {
			t.Parallel()
			combined := cluster.SharedCombined(t)
			c := cluster.Start(t, cluster.Options{
				PLayout: "dp2tp2", DLayout: "dp2tp2",
				PrefillFlags: []string{"--sim-prefill-rate", "500", "--sim-link-rate", "15000"},
				DecodeFlags:  []string{"--sim-decode-rate", "40"},
			})
			number := 0
			for _, stream := range []bool{true, false} {
				for _, leave := range []struct {
					name string
					end  func(*cluster.Connection)
				}{{"closes", (*cluster.Connection).Close}, {"resets", (*cluster.Connection).Reset}} {
					if !stream && !stage.whole {
						continue
					}
					number++
					t.Logf("client %d: stream %t, %s", number, stream, leave.name)
					known := seen{c.Prefill[0].Count(t, journal.HandoffCreated), c.Decode[0].Count(t, journal.HandoffCreated)}
					client := cluster.Dial(t, c.URL, cluster.Completion{
						Prompt: cluster.Prompt(fmt.Sprint("left ", number, " "), stage.prompt), Max: stage.max, Stream: stream,
					})
					stage.reached(t, c, known, client)
					leave.end(client)
					if stage.after != nil {
						stage.after(t, c, known)
					}
					c.AssertIdle(t)
					next := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint("next ", number, " "), 33), Max: 8, Stream: stream}
					require.Equal(t, combined.Text(t, next), cluster.MustComplete(t, c.URL, next).Text)
				}
			}
			c.AssertIdle(t)
		})
	}
}

package fault

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// A router that ends under load, killed or with its patience over, takes its
// requests along: both nodes are idle and every page is free. Its next life
// serves.
func TestRouterThatEndsUnderLoad(t *testing.T) {
	t.Parallel()
	const load = 6
	c := cluster.Start(t, cluster.Options{
		PLayout: "dp2tp1", DLayout: "dp2tp1", Capacity: 8, ExpectErrors: true,
		PrefillFlags: []string{"--sim-prefill-rate", "1000", "--sim-link-rate", "400000", "--no-enable-prefix-caching"},
		DecodeFlags:  []string{"--sim-decode-rate", "40", "--no-enable-prefix-caching"},
		RouterFlags:  []string{"--drain-timeout=10ms"},
	})
	var atStart []int
	for _, n := range c.Nodes() {
		atStart = append(atStart, freePages(t, n))
	}
	for _, kill := range []bool{true, false, true} {
		known := c.Prefill[0].Count(t, journal.HandoffCreated)
		admitted := c.Decode[0].Count(t, journal.DecodeAdmitted)
		var all []*flight
		for i := range load {
			all = append(all, fly(t, c.URL, cluster.Completion{
				Prompt: cluster.Prompt(fmt.Sprintf("load %d %d ", known, i), 60+60*i), Max: 2000, Stream: i%2 == 0,
			}))
		}
		// Some decode by now, others compute or move.
		cluster.Eventually(t, func() error {
			created, decode := c.Prefill[0].Count(t, journal.HandoffCreated)-known, c.Decode[0].Count(t, journal.DecodeAdmitted)-admitted
			if created < load || decode < 1 {
				return fmt.Errorf("prefill knows %d of %d requests, decode is at %d", created, load, decode)
			}
			return nil
		})
		ended := time.Now()
		if kill {
			c.Router.Kill()
		} else {
			c.Router.Stop(t)
		}
		for _, f := range all {
			f.land(t)
			// A router that stops says so; one that is killed cuts the line.
			require.False(t, f.err == nil && f.answer.Failure == nil, "a whole answer from a router that has ended: %s", f.answer.Raw)
			require.True(t, kill == (f.err != nil), "killed %t: %v %d %s", kill, f.err, f.answer.Status, f.answer.Raw)
		}
		for i, n := range c.Nodes() {
			wantOpen(t, n)
			cluster.Eventually(t, func() error {
				if free := freePages(t, n); free != atStart[i] {
					return fmt.Errorf("%s has %d free pages, want %d", n.Label, free, atStart[i])
				}
				return nil
			})
			require.Zero(t, n.Count(t, journal.RecoveryRequired), n.Label)
		}
		t.Logf("killed %t: %v from the router's end to all pages free", kill, time.Since(ended).Round(time.Millisecond))
		c.StartRouter(t)
		c.WaitPairs(t, 1)
	}
	tenOfTen(t, c, "after")
}

// A slot is taken until its node has said that the request is over there: a node
// that stands still is asked again and again, one with a new life has no slot of
// the old.
func TestSlotIsTakenUntilItsNodeHasAnswered(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart ", restart), func(t *testing.T) {
			t.Parallel()
			c := streams.start(t, hasty)
			decode := c.Decode[0]
			known := decode.Count(t, journal.HandoffCreated)
			client := cluster.Dial(t, c.URL, cluster.Completion{Prompt: cluster.Prompt("left", 64), Max: 400, Stream: true})
			client.Line(t, "data: ")
			id := handoff(t, decode, known)
			stop(t, decode.Process)
			client.Close()
			cluster.Eventually(t, func() error {
				h, err := c.RouterHealth()
				if err == nil && (h.Active != 0 || h.Nodes[0].Active != 0 || h.Nodes[1].Unconfirmed != 1) {
					err = fmt.Errorf("/health is %+v", h)
				}
				return err
			})
			// Asked once without an answer.
			cluster.Eventually(t, func() error {
				if routerLine(c, `msg="abort unconfirmed"`, "node="+string(decode.Entry.NodeID)) == "" {
					return errors.New("the router has not given a question up")
				}
				return nil
			})
			h, err := c.RouterHealth()
			require.NoError(t, err)
			require.Equal(t, 1, h.Nodes[1].Unconfirmed, "nobody has said that it is over")
			if restart {
				decode.Kill()
				again(t, c, decode)
			} else {
				decode.Signal(syscall.SIGCONT)
				require.GreaterOrEqual(t, number(t, receiptOf(t, c, "decode", id), "asked"), 2)
			}
			c.AssertIdle(t)
			c.WaitPairs(t, 1)
			tenOfTen(t, c, "after")
		})
	}
}

// Two routers that know nothing of each other share a pool: no node ever runs
// more than its capacity, what is beyond is refused with a time to try again,
// and what is answered is right.
func TestTwoRoutersShareAPool(t *testing.T) {
	t.Parallel()
	const capacity, clients, rounds = 4, 12, 3
	c := cluster.Start(t, cluster.Options{
		PLayout: "dp2tp1", DLayout: "dp2tp1", Capacity: capacity, DecodeFlags: []string{"--sim-decode-rate", "100"},
	})
	_, other := c.AnotherRouter(t)
	rest := func() error { return atRest(other) }
	cluster.Eventually(t, func() error {
		status, body, err := cluster.Get(other + "/health")
		if err == nil && status != 200 {
			err = fmt.Errorf("%d %s", status, body)
		}
		return err
	})
	combined := cluster.SharedCombined(t)
	most := watchActive(t, c, capacity)
	answered, refused := 0, 0
	for round := range rounds {
		var all []*flight
		for i := range clients {
			q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint("shared ", round, " ", i, " "), 30+20*i), Max: 120, Stream: i%2 == 0}
			combined.Text(t, q)
			all = append(all, fly(t, []string{c.URL, other}[i%2], q))
		}
		for _, f := range all {
			if f.land(t); f.answer.Status != 503 {
				f.wantText(t)
				answered++
				continue
			}
			require.NoError(t, f.err)
			require.Equal(t, "1", f.answer.Header.Get("Retry-After"))
			require.Contains(t, []any{"node_busy", "no_eligible_pair"}, f.answer.Failure.Code, "%s", f.answer.Raw)
			refused++
		}
		c.AssertIdle(t)
		cluster.Eventually(t, rest)
	}
	t.Logf("%d requests answered, %d refused, at most %d at once on a node of capacity %d", answered, refused, most(), capacity)
	require.NotZero(t, answered)
	require.NotZero(t, refused)
}

// atRest reports the slots that a router counts.
func atRest(url string) error {
	m, err := cluster.Metrics(url)
	if err != nil {
		return err
	}
	if n := m.Sum("pypto_router_node_active_requests", "", "") + m.Sum("pypto_router_node_unconfirmed_slots", "", ""); n > 0 {
		return fmt.Errorf("the router at %s counts %v slots", url, n)
	}
	return nil
}

// watchActive asks the nodes all the time how much they run, until the end of
// the test; more than their capacity is an error. It gives the most so far.
func watchActive(t *testing.T, c *cluster.Cluster, capacity int) (most func() int) {
	t.Helper()
	var mu sync.Mutex
	seen := 0
	over := make(chan struct{})
	var watching sync.WaitGroup
	for _, n := range c.Nodes() {
		watching.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				said, err := n.Describe()
				if err != nil {
					t.Errorf("%s: %v", n.Label, err)
					return
				}
				mu.Lock()
				seen = max(seen, said.Capacity.Active)
				mu.Unlock()
				if said.Capacity.Active > capacity {
					t.Errorf("%s runs %d requests, its capacity is %d", n.Label, said.Capacity.Active, capacity)
					return
				}
			}
		})
	}
	stop := sync.OnceFunc(func() { close(over); watching.Wait() })
	t.Cleanup(stop)
	return func() int {
		stop()
		return seen
	}
}

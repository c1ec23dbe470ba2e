package e2e

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// answering sends a request and gives a function that waits for its answer and
// checks its text.
func answering(t *testing.T, c *cluster.Cluster, q cluster.Completion) (wait func()) {
	t.Helper()
	want := cluster.SharedCombined(t).Text(t, q)
	over := make(chan struct{})
	go func() {
		defer close(over)
		a, err := cluster.Complete(t.Context(), c.URL, q)
		if assert.NoError(t, err) && assert.NoError(t, a.Check(q)) {
			assert.Equal(t, want, a.Text)
		}
	}()
	return func() {
		t.Helper()
		select {
		case <-over:
		case <-time.After(cluster.Patience):
			t.Fatal("the request was not answered")
		}
	}
}

// Behaviours 80 and 179: a node that is told to stop lets the request in flight finish
// and then exits with 0: prefill, then decode, then the router.
func TestStoppingNodesLetTheRequestInFlightFinish(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{
		PLayout: "dp2tp1", DLayout: "dp2tp1",
		PrefillFlags: []string{"--sim-prefill-rate", "500", "--sim-link-rate", "100000"}, DecodeFlags: []string{"--sim-decode-rate", "40"},
	})
	prefill, decode := c.Prefill[0], c.Decode[0]
	wait := answering(t, c, cluster.Completion{Prompt: cluster.Prompt("in flight", 512), Max: 200, Stream: true})
	await(t, prefill, handoff(t, prefill, 0), journal.Compute)
	prefill.Signal(syscall.SIGTERM)
	require.Zero(t, prefill.Wait(t), "%s", prefill.Tail())
	// Prefill has handed over; decode is still at it.
	_, admitted := find(decode.Events(t), journal.DecodeAdmitted)
	require.True(t, admitted, "prefill ended before decode had the request")
	decode.Signal(syscall.SIGTERM)
	require.Zero(t, decode.Wait(t), "%s", decode.Tail())
	wait()
	require.Zero(t, c.Router.Stop(t), "%s", c.Router.Tail())
	for _, n := range c.Nodes() {
		events := n.Events(t)
		_, completed := find(events, journal.HandoffCompleted)
		require.True(t, completed, n.Label)
		require.Equal(t, journal.ServiceStopped, events[len(events)-1].Event, n.Label)
	}
}

// A router that is told to stop takes nothing new, lets what runs finish and
// exits with 0.
func TestStoppingRouterLetsTheRequestInFlightFinish(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{PLayout: "dp2tp1", DLayout: "dp2tp1", DecodeFlags: []string{"--sim-decode-rate", "40"}})
	q := cluster.Completion{Prompt: cluster.Prompt("in flight", 64), Max: 400, Stream: true}
	wait := answering(t, c, q)
	await(t, c.Decode[0], handoff(t, c.Decode[0], 0), journal.DecodeAdmitted)
	c.Router.Signal(syscall.SIGTERM)
	cluster.Eventually(t, func() error {
		h, err := c.RouterHealth()
		if err == nil && (h.Status != "draining" || h.Code != 503) {
			err = fmt.Errorf("/health is %+v", h)
		}
		return err
	})
	a, err := cluster.Complete(t.Context(), c.URL, cluster.Completion{Prompt: "late", Max: 4})
	require.NoError(t, err)
	require.Equal(t, 503, a.Status)
	wait()
	require.Zero(t, c.Router.Wait(t), "%s", c.Router.Tail())
	for _, n := range c.Nodes() {
		require.Zero(t, n.Stop(t), "%s", n.Tail())
		_, failed := find(n.Events(t), journal.HandoffFailed)
		require.False(t, failed, n.Label)
	}
}

// The second signal ends a process at once, whatever is in flight.
func TestSecondSignalEndsAProcessAtOnce(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{
		PLayout: "dp2tp1", DLayout: "dp2tp1", ExpectErrors: true,
		PrefillFlags: []string{"--sim-prefill-rate", "10"},
	})
	client := cluster.Dial(t, c.URL, cluster.Completion{Prompt: cluster.Prompt("long", 4000), Max: 4})
	prefill := c.Prefill[0]
	await(t, prefill, handoff(t, prefill, 0), journal.HandoffReserved)
	for _, p := range []*cluster.Process{prefill.Process, c.Router} {
		p.Signal(syscall.SIGTERM)
		cluster.Eventually(t, func() error { return contains(p.Stderr(), "signal terminated") })
		require.True(t, p.Alive(), "%s did not wait for the request", p.Label)
		p.Signal(syscall.SIGTERM)
		require.Equal(t, 1, p.Wait(t), "%s", p.Tail())
		require.Contains(t, p.Stderr(), "second signal")
	}
	client.Close()
}

// Behaviour 179: interrupting the whole process group at once, as Ctrl-C does,
// still lets the request finish on both nodes.
func TestStoppingEverythingAtOnceLetsTheRequestFinish(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{
		PLayout: "dp2tp1", DLayout: "dp2tp1",
		PrefillFlags: []string{"--sim-prefill-rate", "500"}, DecodeFlags: []string{"--sim-decode-rate", "40"},
	})
	wait := answering(t, c, cluster.Completion{Prompt: cluster.Prompt("in flight", 512), Max: 40})
	await(t, c.Prefill[0], handoff(t, c.Prefill[0], 0), journal.Compute)
	all := []*cluster.Process{c.Prefill[0].Process, c.Decode[0].Process, c.Router}
	for _, p := range all {
		p.Signal(syscall.SIGINT)
	}
	wait()
	for _, p := range all {
		require.Zero(t, p.Wait(t), "%s", p.Tail())
	}
}

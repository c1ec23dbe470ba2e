package fault

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// owned are nodes whose two ranks are processes of their own and both take part
// in every transfer.
func owned(t *testing.T, nodes int) *cluster.Cluster {
	t.Helper()
	return cluster.Start(t, cluster.Options{
		Prefills: nodes, Decodes: nodes, PLayout: "dp1tp2", DLayout: "dp1tp2", HandoffSeconds: handoffSeconds, RequestSeconds: 60, ExpectErrors: true,
		PrefillFlags: []string{"--owners", "child", "--sim-link-rate", "40000"}, DecodeFlags: []string{"--owners", "child"},
	})
}

// ownerOf is the process of a rank of a node.
func ownerOf(t *testing.T, n *cluster.Node, rank int) int {
	t.Helper()
	h, err := n.Health()
	require.NoError(t, err)
	require.Greater(t, len(h.OwnerPIDs), rank)
	return h.OwnerPIDs[rank]
}

// ends waits until a process is gone.
func ends(t *testing.T, pid int) {
	t.Helper()
	cluster.Eventually(t, func() error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("process %d has not ended: %s %w", pid, b, err)
	})
}

// onTheWay sends a request and waits until its bytes are on their way; it says
// between which nodes.
func onTheWay(t *testing.T, c *cluster.Cluster, seed string) (f *flight, id string, prefill, decode *cluster.Node) {
	t.Helper()
	q := cluster.Completion{Prompt: cluster.Prompt(seed, transfers.prompt), Max: transfers.max, Stream: true}
	cluster.SharedCombined(t).Text(t, q) // asked for now: it would take its time later
	f = fly(t, c.URL, q)
	cluster.Eventually(t, func() error {
		for _, n := range c.Prefill {
			for _, e := range n.Events(t) {
				if e.Event == journal.ChunkSubmitted {
					prefill, id = n, e.Handoff
				}
			}
		}
		if prefill == nil {
			return errors.New("nothing moves")
		}
		return nil
	})
	require.False(t, has(t, prefill, id, journal.Transfer), "the transfer was over before anything could happen")
	for _, n := range c.Decode {
		if has(t, n, id, journal.HandoffReserved) {
			decode = n
		}
	}
	require.NotNil(t, decode)
	return f, id, prefill, decode
}

// wantLost waits until a node says everywhere which owner it has lost and why,
// and checks that it takes nothing in.
func wantLost(t *testing.T, c *cluster.Cluster, n *cluster.Node, why ...string) {
	t.Helper()
	why = append(why, "the owner of rank 1 is gone", "restart the node")
	missing := func(text string) error {
		for _, w := range why {
			if !strings.Contains(text, w) {
				return fmt.Errorf("%s does not say %q: %s", n.Label, w, text)
			}
		}
		return nil
	}
	cluster.Eventually(t, func() error {
		h, err := n.Health()
		if err == nil && (h.Code != 503 || h.State != "RECOVERY_REQUIRED") {
			err = fmt.Errorf("%s: /health is %+v", n.Label, h)
		}
		return errors.Join(err, missing(h.Reason))
	})
	said, err := n.Describe()
	require.NoError(t, err)
	require.Equal(t, pd.RecoveryRequired, said.Health)
	for _, order := range []string{"status", "gates"} {
		var rest []string
		if order == "gates" {
			rest = append(rest, string(n.Entry.NodeID))
		}
		_, printed := pdctl(t, c, order, rest...)
		require.NoError(t, missing(printed), order)
	}
	require.Equal(t, 1, n.Count(t, "OWNER_LOST"))
}

// othersServe sends ten requests, of which every one must be answered by the
// nodes that are left.
func othersServe(t *testing.T, c *cluster.Cluster, pairs int) {
	t.Helper()
	c.WaitPairs(t, pairs)
	for i := range 5 {
		var two []*flight
		for j := range 2 {
			two = append(two, fly(t, c.URL, cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint("others ", i, j), 8), Max: 6, Stream: j == 0}))
		}
		for _, f := range two {
			f.wantText(t)
		}
	}
}

// restart ends what is left of a node and starts it anew.
func restart(t *testing.T, n *cluster.Node) {
	t.Helper()
	h, err := n.Health()
	require.NoError(t, err)
	n.Kill()
	for _, pid := range h.OwnerPIDs {
		ends(t, pid)
	}
	n.Start(t)
	n.Ready(t)
}

// B05, B12: one of two owner processes is killed while it moves or takes in a
// request's bytes. That request is an explicit error, the node that has lost it
// says which rank and why and takes nothing new, memory that may still be written
// is held, and the other nodes serve on. A restart opens the node.
func TestKilledOwnerProcess(t *testing.T) {
	t.Parallel()
	t.Run("of prefill", func(t *testing.T) {
		t.Parallel()
		c := owned(t, 2)
		f, id, prefill, decode := onTheWay(t, c, "doomed")
		pid := ownerOf(t, prefill, 1)
		killed := time.Now()
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		f.wantError(t)
		inTime(t, f, killed)
		wantLost(t, c, prefill, fmt.Sprintf("process %d was ended by signal 9 (killed)", pid))
		h, err := prefill.Health()
		require.NoError(t, err)
		require.NotZero(t, h.Pins, "the source of a write that nobody can answer for was let go")
		wantGated(t, c, decode, id)
		othersServe(t, c, 1)
		// Decode was written to by a process that is dead; a fence says so, and its
		// memory is free. Prefill has to start anew.
		fence(t, c, decode)
		othersServe(t, c, 2)
		restart(t, prefill)
		c.WaitPairs(t, 4)
		tenOfTen(t, c, "after")
	})
	t.Run("of decode", func(t *testing.T) {
		t.Parallel()
		c := owned(t, 2)
		f, _, prefill, decode := onTheWay(t, c, "doomed")
		pid := ownerOf(t, decode, 1)
		killed := time.Now()
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		f.wantError(t)
		inTime(t, f, killed)
		wantLost(t, c, decode, fmt.Sprintf("process %d was ended by signal 9 (killed)", pid))
		code, printed := pdctl(t, c, "fence", string(decode.Entry.NodeID))
		require.NotZero(t, code, "%s", printed)
		require.Contains(t, printed, "a fence proves nothing without every owner")
		// Prefill's source is free, and it serves the other decode node.
		wantOpen(t, prefill)
		othersServe(t, c, 2)
		restart(t, decode)
		c.WaitPairs(t, 4)
		tenOfTen(t, c, "after")
	})
}

// An owner that dies while nothing moves costs no request, and still the node
// takes nothing more.
func TestKilledIdleOwnerProcess(t *testing.T) {
	t.Parallel()
	c := owned(t, 1)
	tenOfTen(t, c, "before")
	for _, n := range c.Nodes() {
		require.NoError(t, syscall.Kill(ownerOf(t, n, 1), syscall.SIGKILL))
		wantLost(t, c, n, "signal 9")
		c.WaitPairs(t, 0)
		f := fly(t, c.URL, cluster.Completion{Prompt: cluster.Prompt("nobody", 8), Max: 4})
		f.wantError(t)
		require.Equal(t, 503, f.answer.Status)
		restart(t, n)
		c.WaitPairs(t, 1)
		tenOfTen(t, c, "after "+n.Label)
	}
	for _, n := range c.Nodes() {
		require.Zero(t, n.Count(t, journal.RecoveryRequired), "%s: no write was under way", n.Label)
	}
}

// What decodes has all it needs: the memory outlives the process that took it in.
func TestKilledOwnerProcessWhileDecodeStreams(t *testing.T) {
	t.Parallel()
	child := []string{"--owners", "child"}
	c := cluster.Start(t, cluster.Options{
		PLayout: "dp1tp2", DLayout: "dp1tp2", HandoffSeconds: handoffSeconds, RequestSeconds: 60, ExpectErrors: true,
		PrefillFlags: child, DecodeFlags: append(child, streams.decode...),
	})
	f, _ := streams.fly(t, c, "survives", true)
	require.NoError(t, syscall.Kill(ownerOf(t, c.Decode[0], 1), syscall.SIGKILL))
	wantLost(t, c, c.Decode[0], "signal 9")
	f.wantText(t)
}

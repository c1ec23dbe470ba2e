package fault

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// halt stops an owner process. It goes on with the test, if not before.
func halt(t *testing.T, pid int) {
	t.Helper()
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // it may have ended
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
}

// An owner process that stands still is given up when an attempt's time is over:
// what it had is uncertain. That it goes on later heals nothing, and it ends by
// itself.
func TestStoppedOwnerProcess(t *testing.T) {
	t.Parallel()
	t.Run("of prefill", func(t *testing.T) {
		t.Parallel()
		c := owned(t, 1)
		f, id, prefill, decode := onTheWay(t, c, "halted")
		pid := ownerOf(t, prefill, 1)
		halt(t, pid)
		f.wantError(t)
		wantLost(t, c, prefill, "has not answered for")
		wantGated(t, c, decode, id)
		require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
		ends(t, pid)
		wantLost(t, c, prefill, "has not answered for")
		wantGated(t, c, decode, id)
		fence(t, c, decode)
		restart(t, prefill)
		c.WaitPairs(t, 1)
		tenOfTen(t, c, "after")
	})
	t.Run("of decode", func(t *testing.T) {
		t.Parallel()
		c := owned(t, 1)
		f, _, prefill, decode := onTheWay(t, c, "halted")
		pid := ownerOf(t, decode, 1)
		halt(t, pid)
		f.wantError(t)
		wantLost(t, c, decode, "has not answered for")
		wantOpen(t, prefill)
		require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
		ends(t, pid)
		wantLost(t, c, decode, "has not answered for")
		restart(t, decode)
		c.WaitPairs(t, 1)
		tenOfTen(t, c, "after")
	})
}

// A pause that is shorter than an attempt costs nothing.
func TestShortPauseOfAnOwnerProcess(t *testing.T) {
	t.Parallel()
	c := owned(t, 1)
	f, _, prefill, decode := onTheWay(t, c, "pauses")
	for _, n := range []*cluster.Node{prefill, decode} {
		pid := ownerOf(t, n, 1)
		halt(t, pid)
		// Both nodes still answer for themselves.
		_, err := n.Health()
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	}
	f.wantText(t)
	tenOfTen(t, c, "after")
	for _, n := range c.Nodes() {
		require.Zero(t, n.Count(t, "OWNER_LOST"), n.Label)
	}
}

// A service manager tells every process of a node to stop: the owners stay for as
// long as the node needs them, and end with it.
func TestOwnerProcessesOutliveTheSignalToStop(t *testing.T) {
	t.Parallel()
	c := owned(t, 1)
	f, _, prefill, decode := onTheWay(t, c, "stops")
	var owners []int
	for _, n := range []*cluster.Node{prefill, decode} {
		for rank := range 2 {
			pid := ownerOf(t, n, rank)
			owners = append(owners, pid)
			require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
		}
		n.Signal(syscall.SIGTERM)
	}
	f.wantText(t)
	for _, n := range []*cluster.Node{prefill, decode} {
		require.Zero(t, n.Wait(t), n.Label)
		require.Zero(t, n.Count(t, "OWNER_LOST"), n.Label)
	}
	for _, pid := range owners {
		ends(t, pid)
	}
}

package fault

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// Behaviour 179: SIGTERM to both nodes at once, in every stage of a request: it
// is finished, nothing is uncertain, and both exit with 0.
func TestTerminatingBothNodesAtOnceLetsTheRequestFinish(t *testing.T) {
	t.Parallel()
	for _, s := range stages {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			c := s.start(t, patient)
			for i, order := range [][]*cluster.Node{{c.Prefill[0], c.Decode[0]}, {c.Decode[0], c.Prefill[0]}} {
				f, id := s.fly(t, c, fmt.Sprint("finishes ", i, " "), i == 0)
				for _, n := range order {
					n.Signal(syscall.SIGTERM)
				}
				f.wantText(t)
				for _, n := range order {
					require.Zero(t, n.Wait(t), "%s", n.Tail())
					require.True(t, has(t, n, id, journal.HandoffCompleted), n.Label)
					require.Zero(t, n.Count(t, journal.RecoveryRequired), n.Label)
				}
				for _, n := range order {
					n.Start(t)
					n.Ready(t)
				}
				c.WaitPairs(t, 1)
			}
		})
	}
}

// A second SIGTERM to both nodes leaves the request: its client is told, both
// exit with 1 and their next lives serve.
func TestSecondSignalToBothNodesLeavesTheRequest(t *testing.T) {
	t.Parallel()
	for _, s := range stages {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			c := s.start(t, patient)
			f, _ := s.fly(t, c, "left", s.name != transfers.name)
			nodes := c.Nodes()
			if s.name == streams.name {
				nodes = c.Decode // prefill is through and would end by itself
			}
			for _, n := range nodes {
				n.Signal(syscall.SIGTERM)
				cluster.Eventually(t, func() error {
					said, err := n.Describe()
					if err == nil && said.Health.String() != "DRAINING" {
						err = fmt.Errorf("%s is %v", n.Label, said.Health)
					}
					return err
				})
			}
			for _, n := range nodes {
				n.Signal(syscall.SIGTERM)
			}
			f.wantError(t)
			for _, n := range nodes {
				require.Equal(t, 1, n.Wait(t), "%s", n.Tail())
				n.Start(t)
				n.Ready(t)
			}
			c.WaitPairs(t, 1)
			tenOfTen(t, c, "after")
		})
	}
}

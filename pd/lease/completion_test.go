package lease_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
)

// two is a lease with one acknowledged chunk of two units.
func two(t *testing.T) *lease.Ledger {
	l := ledger()
	_, err := l.Reserve(lease.Demand{Owner: "h", Tokens: 8})
	require.NoError(t, err)
	require.NoError(t, l.Authorize("h", 0, true, []pd.Unit{{Target: 0, Component: "a"}, {Target: 0, Component: "b"}}))
	return l
}

func fact(c pd.ComponentID, s pd.Settlement) pd.UnitResult {
	return pd.UnitResult{Component: c, Settlement: s}
}

// Behaviours 39, 43 and 95: a missing component keeps a commit out; a late success
// after an uncertain fact does not let it in.
func TestCommitNeedsEveryComponent(t *testing.T) {
	l := two(t)
	require.NoError(t, l.Settle("h", fact("a", pd.Done)))
	require.ErrorIs(t, l.Commit("h", nil), pd.CodeIncomplete)
	require.NoError(t, l.Settle("h", fact("b", pd.Done)))
	require.NoError(t, l.Commit("h", nil))

	l = two(t)
	require.NoError(t, l.Settle("h", fact("a", pd.Uncertain)))
	require.NoError(t, l.Settle("h", fact("a", pd.Done)))
	require.NoError(t, l.Settle("h", fact("b", pd.Done)))
	require.Error(t, l.Commit("h", nil))
	v, _ := l.Lease("h")
	require.Equal(t, lease.Quarantined, v.State)
	require.Equal(t, 1, v.Unsettled)
}

// Behaviours 42, 94 and 96: a fact is stated once; the same again is fine,
// another is a conflict.
func TestFactsAreFinal(t *testing.T) {
	for _, first := range []pd.Settlement{pd.Done, pd.Failed} {
		for _, second := range []pd.Settlement{pd.Done, pd.Failed, pd.Uncertain} {
			l := two(t)
			require.NoError(t, l.Settle("h", fact("a", first)))
			err := l.Settle("h", fact("a", second))
			v, _ := l.Lease("h")
			if first == second {
				require.NoError(t, err)
				require.Equal(t, lease.Constructing, v.State)
				continue
			}
			require.ErrorIs(t, err, pd.CodeConflict, "%v then %v", first, second)
			require.Equal(t, lease.Quarantined, v.State)
			require.NoError(t, l.Check())
		}
	}
}

package mooncake

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/cgo/te"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// row is one line of the table in docs/mooncake.md.
func row(p *proof) string {
	yes := map[bool]string{true: "yes", false: "no"}
	return fmt.Sprintf("| %s | %s | %s | %s | %s |", p.native, p.settlement, yes[p.tcpSource], yes[p.ascendSource], p.reason)
}

// TestProofsAreDocumented: the page says what the table says, and nothing of
// what is enforced is left out.
func TestProofsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/mooncake.md")
	require.NoError(t, err)
	for i := range proofs {
		require.Contains(t, string(text), row(&proofs[i]))
	}
	for _, f := range forced {
		require.Contains(t, string(text), fmt.Sprintf("| `%s` | %s |", f.name, f.value))
	}
	for _, b := range banned {
		require.Contains(t, string(text), fmt.Sprintf("| `%s` | unset |", b.name))
	}
}

// TestOnlyCompletedIsCertain: every status, code and count that is not a whole
// COMPLETED is Uncertain, and what does not end a task frees no source.
func TestOnlyCompletedIsCertain(t *testing.T) {
	all := te.Report{Ended: true, Tasks: 4, Completed: 4}
	certain := endingOf(&all, TCP, 0, 0)
	require.Equal(t, allCompleted, certain)
	require.Equal(t, pd.Done, proofOf(certain).settlement)
	for _, p := range []Protocol{TCP, Ascend} {
		require.True(t, proofOf(certain).sourceFree(p))
	}
	require.Equal(t, completedLate, endingOf(&all, Ascend, DefaultTransferTimeout+1, DefaultTransferTimeout), "a second try may hide behind it")
	require.Equal(t, allCompleted, endingOf(&all, TCP, DefaultTransferTimeout+1, DefaultTransferTimeout), "TCP makes no second try")

	for want, r := range map[ending]te.Report{
		completedShort: {Ended: true, Tasks: 4, Completed: 3, Short: 1},
		taskFailed:     {Ended: true, Tasks: 4, Completed: 2, Short: 1, Failed: 1},
		taskTimeout:    {Tasks: 4, Status: te.Timeout},
		taskCanceled:   {Tasks: 4, Status: te.Canceled},
		taskInvalid:    {Tasks: 4, Status: te.Invalid},
		taskUnknown:    {Tasks: 4, Status: 99},
		statusRefused:  {Ended: true, Tasks: 4, Completed: 3, Absent: 1},
		submitBroken:   {Ended: true, Tasks: 4, Completed: 4, Call: "submitTransfer", Code: 200},
	} {
		got := endingOf(&r, TCP, 0, 0)
		require.Equal(t, want, got, "%+v", r)
		require.Equal(t, pd.Uncertain, proofOf(got).settlement)
		if !r.Ended {
			require.False(t, proofOf(got).sourceFree(TCP))
		}
		require.False(t, proofOf(got).sourceFree(Ascend))
	}
	// A library that loses count is not believed.
	require.Equal(t, completedShort, endingOf(&te.Report{Ended: true, Tasks: 4, Completed: 3}, TCP, 0, 0))
	seen := map[ending]bool{}
	for i := range proofs {
		require.False(t, seen[proofs[i].ending], "one row for each ending")
		seen[proofs[i].ending] = true
		require.NotEmpty(t, proofs[i].reason)
		require.NotEqual(t, pd.Failed, proofs[i].settlement)
	}
	require.Len(t, proofs, int(engineGone))
}

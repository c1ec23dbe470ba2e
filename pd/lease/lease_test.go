package lease_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
	"github.com/hw-native-sys/pypto-pd/pd/pages"
)

func ledger() *lease.Ledger {
	return lease.New(pages.New(pages.Config{
		Groups:     []pd.CacheGroup{{Name: "full", Kind: pd.Full, PageTokens: 4}},
		Partitions: 1, PoolPages: map[pd.GroupName]int{"full": 8}, Slots: 4,
	}))
}

var unit = pd.Unit{Target: 0, Component: "c", Bytes: 64}

func settle(s pd.Settlement) pd.UnitResult {
	return pd.UnitResult{Chunk: 0, Target: 0, Component: "c", Settlement: s}
}

// events drive every event of the table once.
var events = map[string]func(*lease.Ledger, string) error{
	"Reserve": func(l *lease.Ledger, _ string) error {
		_, err := l.Reserve(lease.Demand{Owner: "h", Tokens: 8})
		return err
	},
	"Authorize": func(l *lease.Ledger, _ string) error {
		return l.Authorize("h", 0, true, []pd.Unit{unit})
	},
	"Settle": func(l *lease.Ledger, next string) error {
		if next == "Quarantined" {
			return l.Settle("h", settle(pd.Uncertain))
		}
		return l.Settle("h", settle(pd.Done))
	},
	"Stopped":    func(l *lease.Ledger, _ string) error { return l.Stopped("h") },
	"Commit":     func(l *lease.Ledger, _ string) error { return l.Commit("h", nil) },
	"Adopt":      func(l *lease.Ledger, _ string) error { return l.Adopt("h") },
	"Release":    func(l *lease.Ledger, _ string) error { return l.Release("h") },
	"Quarantine": func(l *lease.Ledger, _ string) error { return l.Quarantine("h") },
	"Resolve":    func(l *lease.Ledger, _ string) error { return l.Resolve("h") },
	"Free":       func(l *lease.Ledger, _ string) error { return l.Free("h") },
}

// bring puts the lease of a fresh ledger into a state in which event is ready
// to happen if the table allows it.
func bring(t *testing.T, state, event string) *lease.Ledger {
	l := ledger()
	do := func(names ...string) {
		for _, n := range names {
			require.NoError(t, events[n](l, ""), n)
		}
	}
	switch state {
	case "-":
	case "Constructing":
		do("Reserve")
		switch event {
		case "Settle":
			do("Authorize")
		case "Commit":
			do("Authorize", "Settle")
		}
	case "Ready":
		do("Reserve", "Authorize", "Settle", "Commit")
	case "InUse":
		do("Reserve", "Authorize", "Settle", "Commit", "Adopt")
	case "Quarantined":
		do("Reserve", "Authorize", "Quarantine")
	case "Released":
		do("Reserve", "Release")
	}
	return l
}

func stateOf(l *lease.Ledger) string {
	v, ok := l.Lease("h")
	if !ok {
		return "-"
	}
	return v.State.String()
}

// The table in doc.go is the behaviour: every listed move happens, and every
// pair that is not listed is refused and changes nothing.
func TestTableIsTheBehaviour(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	rows := regexp.MustCompile(`(?m)^//\t(-|[A-Z]\w+)\s+([A-Z]\w+)\s+(-|[A-Z]\w+)(?:\s|$)`).FindAllStringSubmatch(string(doc), -1)
	require.Len(t, rows, 16)
	listed := map[string]bool{}
	for _, r := range rows {
		listed[r[1]+" "+r[2]] = true
		t.Run(r[1]+" "+r[2]+" "+r[3], func(t *testing.T) {
			l := bring(t, r[1], r[2])
			require.NoError(t, events[r[2]](l, r[3]))
			require.Equal(t, r[3], stateOf(l))
			require.NoError(t, l.Check())
		})
	}
	for _, state := range []string{"-", "Constructing", "Ready", "InUse", "Quarantined", "Released"} {
		for event := range events {
			if listed[state+" "+event] || (event == "Settle" && (state == "Ready" || state == "InUse")) {
				continue // a repeated fact is taken in every state; see below
			}
			t.Run(state+" refuses "+event, func(t *testing.T) {
				l := bring(t, state, event)
				require.Error(t, events[event](l, ""))
				require.Equal(t, state, stateOf(l))
				require.NoError(t, l.Check())
			})
		}
	}
}

func TestReleaseIsRefusedWhileAWriterMayLive(t *testing.T) {
	l := bring(t, "Constructing", "Settle")
	require.ErrorContains(t, l.Release("h"), "native writer")
	require.NoError(t, l.Settle("h", settle(pd.Failed)))
	require.NoError(t, l.Release("h"))
	require.NoError(t, l.Free("h"))
	require.NoError(t, l.Check())
}

func TestStopFactEndsTheWriters(t *testing.T) {
	l := bring(t, "Constructing", "Settle")
	require.NoError(t, l.Stopped("h"))
	require.ErrorIs(t, l.Commit("h", nil), pd.CodeTransferFailed, "an aborted handoff is never committed")
	require.NoError(t, l.Release("h"))
}

func TestUncertainIsAbsorbing(t *testing.T) {
	l := bring(t, "Constructing", "Settle")
	require.NoError(t, l.Settle("h", settle(pd.Uncertain)))
	require.NoError(t, l.Settle("h", settle(pd.Done)), "a late success is taken in")
	require.Equal(t, "Quarantined", stateOf(l), "and changes nothing")
	require.Error(t, l.Release("h"))
	require.Error(t, l.Commit("h", nil))
	held, quarantined := l.Counts()
	require.Equal(t, []int{1, 1}, []int{held, quarantined})
}

func TestConflictingFactQuarantinesInEveryState(t *testing.T) {
	for _, state := range []string{"Ready", "InUse"} {
		l := bring(t, state, "")
		require.NoError(t, l.Settle("h", settle(pd.Done)), "the same fact again")
		require.Equal(t, state, stateOf(l))
		require.ErrorIs(t, l.Settle("h", settle(pd.Uncertain)), pd.CodeConflict)
		require.Equal(t, "Quarantined", stateOf(l))
		require.NoError(t, l.Check())
	}
}

func TestChunksAreAuthorizedInOrder(t *testing.T) {
	l := bring(t, "Constructing", "")
	require.ErrorIs(t, l.Authorize("h", 1, false, []pd.Unit{unit}), pd.CodeOutOfOrder)
	require.ErrorIs(t, l.Authorize("h", 0, false, nil), pd.CodeInvalidPlan)
	require.ErrorIs(t, l.Authorize("h", 0, false, []pd.Unit{unit, unit}), pd.CodeInvalidPlan)
	require.NoError(t, l.Authorize("h", 0, true, []pd.Unit{unit}))
	require.ErrorIs(t, l.Authorize("h", 1, false, []pd.Unit{unit}), pd.CodeConflict, "after the final chunk")
	require.ErrorIs(t, l.Settle("h", pd.UnitResult{Chunk: 5, Component: "c", Settlement: pd.Done}), pd.CodeConflict, "never authorized")
}

func TestPinOutlivesItsOwner(t *testing.T) {
	l := bring(t, "Constructing", "")
	key := lease.PinKey{Owner: "h", Chunk: 0}
	_, err := l.Pin(key)
	require.NoError(t, err)
	_, err = l.Pin(key)
	require.ErrorIs(t, err, pd.CodeConflict)
	require.NoError(t, l.Release("h"))
	require.NoError(t, l.Free("h"))
	require.NoError(t, l.Check())
	require.Equal(t, 1, l.Pins("h"))
	require.NoError(t, l.Unpin(key))
	require.ErrorIs(t, l.Unpin(key), pd.CodeUnknownKey)
	require.NoError(t, l.Check())
}

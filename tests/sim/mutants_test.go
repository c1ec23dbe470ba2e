//go:build mutants

package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/mutant"
)

func switchOff(t *testing.T, r mutant.Rule) error {
	t.Cleanup(mutant.Switch(r))
	return nil
}

// Each rule is switched off once; then a world must fail, and name an invariant
// that the rule is there for. The faults are those that need the rule.
func TestEveryRuleIsNeeded(t *testing.T) {
	for _, m := range []struct {
		name       string
		off        Options
		invariants []string
	}{
		{
			"no quarantine",
			Options{Mutant: mutant.Quarantine, Faults: Set(LateWriteAfterFailed, LateWriteAfterHiddenRetry)},
			[]string{"NoFreeWithLiveWriter"},
		},
		{
			"free at timeout",
			Options{Mutant: mutant.HoldAtTimeout, Faults: Set(SenderDeadBytesInFlight, TargetOwnerPaused), Intensity: 2},
			[]string{"NoFreeWithLiveWriter"},
		},
		{
			"gate ends with the sender's death and settle time",
			Options{Broken: DeathSuffices, Faults: Set(TargetOwnerPaused, SenderDeadBytesInFlight)},
			[]string{"NoFreeWithLiveWriter"},
		},
		{
			"stop fact from the router",
			Options{Mutant: mutant.FactFromSource, Faults: Set(ClientCancelAtEveryState, DoubleApply)},
			[]string{"NoFreeWithLiveWriter"},
		},
		{
			"ack at reserve",
			Options{Mutant: mutant.AckFirst},
			[]string{"AckBeforeSubmit"},
		},
		{
			"no seal",
			Options{Mutant: mutant.SealFirst, Faults: Set(ClientCancelAtEveryState, SealVsSubmitRace)},
			[]string{"FactOnlyFromSealedOwner"},
		},
		{
			"port reuse",
			Options{Broken: PortReuse, Faults: Set(StaleWriteToNewBoot, LateWriteAfterFailed)},
			[]string{"BootMatchesAtLanding"},
		},
		{
			"publication by floor",
			Options{Mutant: mutant.PublishKnown, Faults: Set(PrefixEvictUnderLoad)},
			[]string{"PublishedBytesMatchHash"},
		},
		{
			"commit with an unacknowledged completion",
			Options{Broken: Unacknowledged, Unacknowledged: true},
			[]string{"NoReadOfUnsettledPage"},
		},
		{
			"start beside owners of the last boot",
			Options{Broken: NoBootLock, Faults: Set(PredecessorAliveAtStart, LateWriteAfterFailed)},
			[]string{"BootMatchesAtLanding", "SourceStableUntilSourceDone"},
		},
	} {
		t.Run(m.name, func(t *testing.T) {
			m.off.Seed, m.off.Handoffs, m.off.Exact = 1, 25, true
			options := worlds(m.off, 200)
			good := m.off
			good.Mutant, good.Broken = 0, Nothing
			if !good.Unacknowledged {
				for _, r := range runAll(worlds(good, 10), nil) {
					require.NoError(t, r.Err(), "with the rule on: %s", r.Replay())
				}
			}
			require.NoError(t, switchOff(t, m.off.Mutant))
			worldsRun := 0
			for _, r := range runAll(options, Result.Failed) {
				if r.Lines > 0 {
					worldsRun++
				}
				if r.Failed() {
					require.Contains(t, m.invariants, r.Name(), "%v\n%s", r.Err(), r.Replay())
					t.Logf("seen after %d worlds: %v\n%s", worldsRun, r.Err(), r.Replay())
					return
				}
			}
			t.Fatalf("%d worlds, and nobody misses the rule", worldsRun)
		})
	}
}

// The shrinker keeps the failure and makes its world smaller.
func TestShrinkKeepsTheFailure(t *testing.T) {
	require.NoError(t, switchOff(t, mutant.Quarantine))
	for _, r := range runAll(worlds(Options{Seed: 1, Handoffs: perWorld, Faults: Tolerated(), Mutant: mutant.Quarantine}, 100), Result.Failed) {
		if !r.Failed() {
			continue
		}
		small := Shrink(r, shrinkRuns)
		require.Equal(t, r.Name(), small.Name())
		require.Less(t, small.Options.Handoffs, r.Options.Handoffs)
		require.Less(t, len(small.Options.Faults.Kinds()), len(r.Active.Kinds()))
		require.Less(t, small.Lines, r.Lines)
		again := Run(small.Options)
		require.Equal(t, small.Digest, again.Digest)
		t.Logf("%d faults, %d handoffs, %d events became %d, %d, %d\n%s", len(r.Active.Kinds()), r.Options.Handoffs, r.Lines,
			len(small.Options.Faults.Kinds()), small.Options.Handoffs, small.Lines, small.Replay())
		return
	}
	t.Fatal("no world fails")
}

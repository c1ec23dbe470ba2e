package fleet

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/hw-native-sys/pypto-pd/pd"
)

var testPolicy = Policy{
	Ceiling: 3, HealthInterval: 5 * time.Second, ConnectTimeout: 5 * time.Second, LaunchTimeout: 600 * time.Second,
	DrainTimeout: 300 * time.Second, ReplaceAfter: 30 * time.Second, Strikes: 3, Backoff: 10 * time.Second, Stability: 600 * time.Second,
}

// fleetClock is a machine with a time that the test moves.
type fleetClock struct {
	*Machine
	t   testing.TB
	now time.Time
}

func newFleet(t testing.TB, slots int, p Policy) *fleetClock {
	var list []Slot
	for i := range slots {
		list = append(list, Slot{Name: fmt.Sprintf("s%d", i), HostName: "s", Machine: localAddress, Devices: []int{i}, Address: localAddress, Port: 8001 + i})
	}
	return &fleetClock{Machine: NewMachine(list, p, "b"), t: t, now: time.Unix(1000, 0)}
}

func kinds(effects []Effect) string {
	var words []string
	for _, e := range effects {
		words = append(words, e.Kind.String())
	}
	return strings.Join(words, " ")
}

// do steps slot i with its own instance.
func (f *fleetClock) do(i int, k EventKind) string {
	f.t.Helper()
	effects, err := f.Step(Event{Kind: k, Slot: f.slots[i].Name, Instance: f.slots[i].instance}, f.now)
	require.NoError(f.t, err)
	return kinds(effects)
}

func (f *fleetClock) run(i int, events ...EventKind) {
	f.t.Helper()
	for _, k := range events {
		f.do(i, k)
	}
}

func (f *fleetClock) after(d time.Duration) string {
	f.now = f.now.Add(d)
	return kinds(f.Tick(f.now))
}

func (f *fleetClock) state(i int) State { return f.slots[i].state }

// reach brings slot 0 into a state by events alone.
func (f *fleetClock) reach(s State) {
	f.t.Helper()
	up := []EventKind{LaunchOrdered, LaunchAccepted, ProbeOK}
	switch s {
	case Free:
	case Launching:
		f.run(0, up[:1]...)
	case Starting:
		f.run(0, up[:2]...)
	case Ready:
		f.run(0, up...)
	case Failed:
		f.run(0, append(up, RequestFailed)...)
	case Draining:
		f.run(0, append(up, RemoveOrdered)...)
	case Stopping:
		f.run(0, append(up, RemoveOrdered, Drained)...)
	case Unconfirmed:
		_, err := f.Restore([]Hold{{Slot: "s0", Reason: UnreachableReason, Instance: "x", Since: f.now}})
		require.NoError(f.t, err)
	case Backoff:
		f.run(0, append(up, RequestFailed)...)
		f.after(30 * time.Second)
		f.run(0, Drained, StopConfirmed)
	case Abandoned:
		f.reach(Backoff)
		f.lose(1)
		f.lose(2)
	}
	require.Equal(f.t, s, f.state(0))
}

// lose lets the replacement of slot 0 fail once the wait is over.
func (f *fleetClock) lose(strikes int) {
	f.t.Helper()
	assert.Equal(f.t, strikes, f.slots[0].strikes)
	assert.Empty(f.t, f.after(testPolicy.Backoff<<(strikes-1)-1), "not before the wait is over")
	assert.Equal(f.t, "Persist StartLaunch", f.after(1))
	f.run(0, LaunchRefused)
}

// TestTable holds every line of doc.go, and that what it does not list is
// refused.
func TestTable(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	table := map[string]string{}
	for line := range strings.Lines(string(text)) {
		row, ok := strings.CutPrefix(line, "//\t")
		if cells := strings.Fields(row); ok && len(cells) >= 3 && cells[0] != "state" && !strings.HasPrefix(cells[0], "F-") {
			table[cells[0]+" "+cells[1]] = cells[2]
		}
	}
	require.Greater(t, len(table), 40)
	for s := Free; s < stateEnd; s++ {
		for k := LaunchOrdered; k < eventEnd; k++ {
			name := s.String() + " " + k.String()
			t.Run(name, func(t *testing.T) {
				f := newFleet(t, 1, testPolicy)
				f.reach(s)
				if k == TimePassed {
					if due, ok := f.Due(); ok {
						f.now = due
					}
				}
				if s == Ready && (k == ProbeFailed || k == ProbeAnswered) {
					f.run(0, k) // the first of two
					require.Equal(t, Ready, f.state(0))
				}
				_, err := f.Step(Event{Kind: k, Slot: "s0", Instance: f.slots[0].instance}, f.now)
				want, listed := table[name]
				delete(table, name)
				if !listed {
					require.ErrorIs(t, err, pd.CodeConflict)
					require.ErrorContains(t, err, "slot s0 is "+s.String()+" and takes no "+k.String())
					require.Equal(t, s, f.state(0))
					return
				}
				require.NoError(t, err)
				require.Equal(t, want, f.state(0).String())
			})
		}
	}
	assert.Empty(t, slices.Collect(maps.Keys(table)), "lines of doc.go that name no state and event")
}

func TestSlotsAreFilledInOrder(t *testing.T) {
	f := newFleet(t, 4, testPolicy)
	// Fleet behaviour 63
	// Fleet behaviour 81
	for i := range 3 {
		v, effects, err := f.Launch(false, f.now)
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprintf("s%d", i), v.Name)
		assert.Equal(t, fmt.Sprintf("b-%d", i+1), v.Instance)
		assert.Equal(t, "Persist StartLaunch", kinds(effects))
	}
	// Fleet behaviour 65
	// Fleet behaviour 82
	before := f.Slots()
	_, _, err := f.Launch(true, f.now)
	require.ErrorIs(t, err, ErrPoolFull)
	_, err = f.Step(Event{Kind: LaunchOrdered, Slot: "s3"}, f.now)
	require.ErrorIs(t, err, ErrPoolFull)
	assert.Equal(t, before, f.Slots())
	// Fleet behaviour 64
	// Fleet behaviour 83
	f.run(1, LaunchRefused)
	v, _, err := f.Launch(false, f.now)
	require.NoError(t, err)
	assert.Equal(t, "s1", v.Name)
}

func TestLaunch(t *testing.T) {
	// Fleet behaviour 80
	f := newFleet(t, 1, testPolicy)
	f.run(0, LaunchOrdered)
	assert.Equal(t, "", f.state(0).Phase())
	assert.Equal(t, "Persist Register", f.do(0, LaunchAccepted))
	assert.Equal(t, "starting", f.state(0).Phase())
	// Fleet behaviour 85
	assert.Empty(t, f.after(599*time.Second))
	assert.Equal(t, "Persist MarkReady", f.do(0, ProbeOK))
	assert.Empty(t, f.after(time.Hour))
	assert.Equal(t, Ready, f.state(0))

	// Fleet behaviour 84
	f = newFleet(t, 1, testPolicy)
	f.run(0, LaunchOrdered, LaunchAccepted)
	assert.Equal(t, "Deregister StartStop", f.after(600*time.Second), "without drain")
	assert.Equal(t, "Persist Retired", f.do(0, StopConfirmed))
	assert.Equal(t, Free, f.state(0), "an operator's launch is not repeated")
}

func TestUncertainLaunchHoldsTheSlot(t *testing.T) {
	f := newFleet(t, 1, testPolicy)
	f.run(0, LaunchOrdered)
	assert.Equal(t, "StartStop", f.do(0, LaunchUncertain))
	f.run(0, StopUnconfirmed)
	assert.Equal(t, LaunchUnconfirmedReason, f.slots[0].reason)
	assert.Equal(t, 1, f.Reserved())
	// An operator's retry, then his word.
	assert.Equal(t, "StartStop", f.do(0, RemoveOrdered))
	f.run(0, StopUnconfirmed)
	assert.Equal(t, LaunchUnconfirmedReason, f.slots[0].reason)
	f.run(0, ForceReleased)
	assert.Equal(t, Free, f.state(0))
}

func TestProbes(t *testing.T) {
	f := newFleet(t, 2, testPolicy)
	for i := range 2 {
		f.run(i, LaunchOrdered, LaunchAccepted, ProbeOK)
	}
	// Fleet behaviour 38
	f.run(0, ProbeAnswered)
	assert.Equal(t, Ready, f.state(0))
	f.run(0, ProbeOK, ProbeFailed)
	assert.Equal(t, Ready, f.state(0), "a success begins the count anew")
	assert.Equal(t, "MarkFailed", f.do(0, ProbeFailed))
	assert.Equal(t, Ready, f.state(1))
	// Fleet behaviour 39
	assert.Equal(t, "MarkReady", f.do(0, ProbeOK))
	f.run(0, ProbeFailed)
	assert.Equal(t, Ready, f.state(0))
	// Fleet behaviour 53
	assert.Equal(t, "MarkFailed", f.do(0, RequestFailed), "at once")
}

func TestRetirement(t *testing.T) {
	f := newFleet(t, 1, testPolicy)
	f.run(0, LaunchOrdered, LaunchAccepted, ProbeOK)
	// Fleet behaviour 86
	assert.Equal(t, "StartDrain", f.do(0, RemoveOrdered))
	assert.Equal(t, "draining", f.state(0).Phase())
	assert.Empty(t, f.do(0, RemoveOrdered), "two who ask share one retirement")
	// Fleet behaviour 87
	assert.Empty(t, f.after(299*time.Second))
	assert.Equal(t, "Deregister StartStop", f.after(time.Second))
	// Fleet behaviour 91
	assert.Equal(t, 1, f.Reserved(), "held until the stop is confirmed")
	// Fleet behaviour 93
	assert.Equal(t, "Persist Retired", f.do(0, StopUnconfirmed))
	assert.Equal(t, StopUnconfirmedReason, f.slots[0].reason)
	_, _, err := f.Launch(true, f.now)
	require.ErrorIs(t, err, ErrPoolFull)
	// Fleet behaviour 90
	_, err = f.Step(Event{Kind: RemoveOrdered, Slot: "nobody"}, f.now)
	require.ErrorIs(t, err, pd.CodeNotFound)
}

func TestReplacement(t *testing.T) {
	f := newFleet(t, 1, testPolicy)
	f.run(0, LaunchOrdered, LaunchAccepted, ProbeOK, RequestFailed)
	assert.Empty(t, f.after(29*time.Second))
	f.run(0, ProbeOK)
	assert.Empty(t, f.after(time.Hour), "ready again before the threshold: nothing happens")
	f.run(0, RequestFailed)
	assert.Equal(t, "StartDrain", f.after(30*time.Second))
	f.run(0, Drained, StopConfirmed)
	assert.Equal(t, Backoff, f.state(0))
	_, _, err := f.Launch(true, f.now)
	require.ErrorIs(t, err, ErrPoolFull, "a slot that waits is nobody else's")
	f.lose(1)
	f.lose(2)
	assert.Equal(t, Abandoned, f.state(0), "at the third loss in a row")
	assert.Empty(t, f.after(24*time.Hour))
	_, _, err = f.Launch(false, f.now)
	require.ErrorIs(t, err, ErrPoolFull)
	_, _, err = f.Launch(true, f.now)
	require.NoError(t, err)
	assert.Zero(t, f.slots[0].strikes)
}

func TestUnconfirmedStopIsNeverLaunchedOnto(t *testing.T) {
	f := newFleet(t, 1, testPolicy)
	f.run(0, LaunchOrdered, LaunchAccepted, ProbeOK, RequestFailed)
	f.after(30 * time.Second)
	f.run(0, Drained, StopUnconfirmed)
	assert.Empty(t, f.after(24*time.Hour))
	assert.Equal(t, Unconfirmed, f.state(0))
}

func TestStrikesNeedStability(t *testing.T) {
	for _, c := range []struct {
		ready time.Duration
		want  int
	}{{599 * time.Second, 2}, {600 * time.Second, 1}} {
		f := newFleet(t, 1, testPolicy)
		f.reach(Backoff)
		f.after(10 * time.Second)
		f.run(0, LaunchAccepted, ProbeOK)
		f.now = f.now.Add(c.ready)
		f.run(0, RequestFailed)
		f.after(30 * time.Second)
		f.run(0, Drained, StopConfirmed)
		assert.Equal(t, c.want, f.slots[0].strikes)
	}
}

func TestRemovalCancelsReplacement(t *testing.T) {
	f := newFleet(t, 1, testPolicy)
	f.reach(Backoff)
	f.run(0, RemoveOrdered)
	assert.Equal(t, Free, f.state(0))
	f = newFleet(t, 1, testPolicy)
	f.reach(Failed)
	f.after(30 * time.Second)
	f.run(0, RemoveOrdered, Drained, StopConfirmed)
	assert.Equal(t, Free, f.state(0), "asked for while the dead one was being retired")
}

func TestReplacementCanBeOff(t *testing.T) {
	p := testPolicy
	p.ReplaceAfter = 0
	f := newFleet(t, 1, p)
	f.reach(Failed)
	assert.Empty(t, f.after(24*time.Hour))
	assert.Equal(t, "failed", f.state(0).Phase())
}

func TestGuard(t *testing.T) {
	up := func(t *testing.T) *fleetClock {
		f := newFleet(t, 2, testPolicy)
		for i := range 2 {
			f.run(i, LaunchOrdered, LaunchAccepted, ProbeOK)
		}
		return f
	}
	t.Run("all at once", func(t *testing.T) {
		f := up(t)
		f.run(0, ProbeFailed, ProbeFailed)
		f.now = f.now.Add(5 * time.Second)
		f.run(1, ProbeFailed, ProbeFailed)
		assert.True(t, f.Held(f.now))
		assert.Empty(t, f.after(149*time.Second))
		assert.Equal(t, "StartDrain StartDrain", f.after(time.Second), "a longer bound")
	})
	t.Run("one answers", func(t *testing.T) {
		f := up(t)
		f.run(0, RequestFailed)
		f.run(1, RequestFailed)
		assert.Empty(t, f.after(60*time.Second))
		f.run(1, ProbeOK)
		assert.False(t, f.Held(f.now))
		assert.Equal(t, "StartDrain", f.after(0))
		assert.Equal(t, Ready, f.state(1))
	})
	t.Run("one after the other", func(t *testing.T) {
		f := up(t)
		f.run(0, RequestFailed)
		f.now = f.now.Add(11 * time.Second)
		f.run(1, RequestFailed)
		assert.Equal(t, "StartDrain", f.after(19*time.Second))
		assert.Equal(t, "StartDrain", f.after(11*time.Second))
	})
	t.Run("one alone", func(t *testing.T) {
		f := newFleet(t, 1, testPolicy)
		f.reach(Failed)
		assert.Equal(t, "StartDrain", f.after(30*time.Second))
	})
	t.Run("a replica of the file counts", func(t *testing.T) {
		f := newFleet(t, 1, testPolicy)
		f.Observe("static", true, f.now)
		f.reach(Failed)
		f.Observe("static", false, f.now)
		assert.Empty(t, f.after(60*time.Second))
		f.Observe("static", true, f.now)
		assert.Equal(t, "StartDrain", f.after(0))
	})
}

func TestShutdown(t *testing.T) {
	// Fleet behaviour 89
	f := newFleet(t, 3, testPolicy)
	f.reach(Backoff)
	f.run(1, LaunchOrdered, LaunchAccepted, ProbeOK)
	f.run(2, LaunchOrdered)
	assert.Equal(t, "Persist Retired StartDrain", kinds(f.Shutdown(f.now)))
	assert.Equal(t, []State{Free, Draining, Launching}, []State{f.state(0), f.state(1), f.state(2)})
	assert.Equal(t, "Persist Register StartDrain", f.do(2, LaunchAccepted), "a launch that ran is retired, not orphaned")
	_, _, err := f.Launch(true, f.now)
	require.Equal(t, pd.CodeDraining, pd.CodeOf(err))
}

func TestLateEventsOfAnOldInstanceDoNothing(t *testing.T) {
	f := newFleet(t, 1, testPolicy)
	f.run(0, LaunchOrdered)
	old := f.slots[0].instance
	f.run(0, LaunchRefused, LaunchOrdered, LaunchAccepted)
	before := f.Slots()
	for k := LaunchOrdered; k < eventEnd; k++ {
		effects, err := f.Step(Event{Kind: k, Slot: "s0", Instance: old}, f.now)
		require.NoError(t, err)
		require.Empty(t, effects)
	}
	assert.Equal(t, before, f.Slots())
}

// Hazard 12: a launch time-out, a DELETE and a replacement may want one slot at
// once.
//
// TestInvariantsHold drives a machine at random, with a world beside it that
// knows which processes exist.
func TestInvariantsHold(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		f := newFleet(t, 4, testPolicy)
		alive := map[string]string{} // slot → instance that may exist
		written := map[string]string{}
		apply := func(effects []Effect) {
			for _, e := range effects {
				switch e.Kind {
				case Persist:
					clear(written)
					for _, s := range f.Slots() {
						if s.Instance != "" {
							written[s.Name] = s.Instance
						}
					}
				case StartLaunch:
					if old := alive[e.Slot]; old != "" {
						r.Fatalf("%s is launched onto %s", e.Slot, old)
					}
					if written[e.Slot] != e.Instance {
						r.Fatalf("%s is launched and not in the file", e.Instance)
					}
					alive[e.Slot] = e.Instance
				}
			}
		}
		for range rapid.IntRange(1, 120).Draw(r, "steps") {
			i := rapid.IntRange(0, 3).Draw(r, "slot")
			f.now = f.now.Add(time.Duration(rapid.IntRange(0, 40).Draw(r, "seconds")) * time.Second)
			if rapid.IntRange(0, 9).Draw(r, "tick") == 0 {
				apply(f.Tick(f.now))
				continue
			}
			s := f.slots[i]
			k := EventKind(rapid.IntRange(int(LaunchOrdered), int(eventEnd)-1).Draw(r, "event"))
			instance := s.instance
			effects, err := f.Step(Event{Kind: k, Slot: s.Name, Instance: instance}, f.now)
			if err != nil {
				if !errors.Is(err, pd.CodeConflict) && !errors.Is(err, ErrPoolFull) {
					r.Fatal(err)
				}
				continue
			}
			if k == LaunchRefused || k == StopConfirmed || k == ForceReleased {
				delete(alive, s.Name)
			}
			apply(effects)
			if err := f.Check(); err != nil {
				r.Fatal(err)
			}
			for _, s := range f.Slots() {
				if alive[s.Name] != "" && alive[s.Name] != s.Instance {
					r.Fatalf("%s is %s and forgot %s", s.Name, s.State, alive[s.Name])
				}
			}
			if f.Reserved() > 3 {
				r.Fatalf("%d slots are reserved", f.Reserved())
			}
		}
	})
}

func TestFreeSlotsComeBeforeAbandonedOnes(t *testing.T) {
	f := newFleet(t, 2, testPolicy)
	f.reach(Abandoned)
	v, _, err := f.Launch(true, f.now)
	require.NoError(t, err)
	assert.Equal(t, "s1", v.Name)
	v, _, err = f.Launch(true, f.now)
	require.NoError(t, err)
	assert.Equal(t, "s0", v.Name)
}

func TestARetiredReplicaIsNoEvidenceForTheGuard(t *testing.T) {
	f := newFleet(t, 2, testPolicy)
	for i := range 2 {
		f.run(i, LaunchOrdered, LaunchAccepted, ProbeOK)
	}
	f.run(0, RequestFailed, RemoveOrdered)
	f.run(1, RequestFailed)
	assert.False(t, f.Held(f.now))
}

func TestNothingIsAdoptedDuringShutdown(t *testing.T) {
	f := newFleet(t, 1, testPolicy)
	f.reach(Unconfirmed)
	f.Shutdown(f.now)
	assert.Empty(t, f.do(0, ProbeOK))
	assert.Equal(t, Unconfirmed, f.state(0))
}

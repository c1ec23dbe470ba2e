package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

func slotsOf(f *fleetClock) []Slot {
	var out []Slot
	for _, s := range f.Slots() {
		out = append(out, s.Slot)
	}
	return out
}

func TestReloadAddsAndDropsSlots(t *testing.T) {
	f := newFleet(t, 3, testPolicy)
	f.run(0, LaunchOrdered, LaunchAccepted, ProbeOK)
	f.run(1, LaunchOrdered, LaunchAccepted, ProbeOK)
	all := slotsOf(f)
	added := Slot{Name: "t0", HostName: "t", Machine: "far", Devices: []int{0}, Address: "far", Port: 8001}
	effects, err := f.Reload([]Slot{added, all[0]}, 2, nil, f.now)
	require.NoError(t, err)
	assert.Equal(t, "StartDrain", kinds(effects), "a slot in use is drained, a free one is gone")
	var names []string
	for _, s := range f.Slots() {
		names = append(names, s.Name)
	}
	assert.Equal(t, []string{"t0", "s0", "s1"}, names)
	assert.Equal(t, []State{Free, Ready, Draining}, []State{f.state(0), f.state(1), f.state(2)})

	_, _, err = f.Launch(true, f.now)
	require.ErrorIs(t, err, ErrPoolFull, "what leaves still counts")
	f.run(2, Drained)
	assert.Equal(t, "Persist Retired", f.do(2, StopConfirmed))
	assert.Len(t, f.Slots(), 2)
	v, _, err := f.Launch(true, f.now)
	require.NoError(t, err)
	assert.Equal(t, "t0", v.Name)
}

func TestReloadRefusesWhatIsInTheWay(t *testing.T) {
	f := newFleet(t, 2, testPolicy)
	f.run(0, LaunchOrdered, LaunchAccepted)
	before := f.Slots()
	recut := Slot{Name: "s0", HostName: "s", Machine: localAddress, Devices: []int{0, 1}, Address: localAddress, Port: 8001}
	sharing := Slot{Name: "u7", HostName: "u", Machine: localAddress, Devices: []int{7, 0}, Address: localAddress, Port: 9000}
	for _, s := range []Slot{recut, sharing} {
		_, err := f.Reload([]Slot{s}, 1, nil, f.now)
		require.Equal(t, pd.CodeConflict, pd.CodeOf(err))
		require.ErrorContains(t, err, "s0 is starting and clashes with the new "+s.Name)
	}
	assert.Equal(t, before, f.Slots())
	_, err := f.Reload([]Slot{before[0].Slot, {Name: "s1", HostName: "s", Machine: localAddress, Devices: []int{5}, Address: localAddress, Port: 8006}}, 2, nil, f.now)
	require.NoError(t, err, "a free slot may change")
	assert.Equal(t, []int{5}, f.Slots()[1].Devices)
}

func TestReloadHoldsWhatARecordOverlaps(t *testing.T) {
	f := newFleet(t, 1, testPolicy)
	kept := []StateEntry{{Slot: "w-d1", Host: "w", Devices: []int{1, 2}, Address: "far", Port: 9000, Instance: "i", Reason: NotDeclaredReason, Since: f.now}}
	added := Slot{Name: "w-d2", HostName: "w", Machine: "far", Devices: []int{2}, Address: "far", Port: 8003}
	effects, err := f.Reload(append(slotsOf(f), added), 2, kept, f.now)
	require.NoError(t, err)
	assert.Equal(t, "Persist", kinds(effects))
	assert.Equal(t, NotDeclaredReason, f.Slots()[1].Reason)
}

func TestALeavingSlotIsNotAdopted(t *testing.T) {
	f := newFleet(t, 1, testPolicy)
	f.reach(Unconfirmed)
	_, err := f.Reload(nil, 0, nil, f.now)
	require.NoError(t, err)
	require.Len(t, f.Slots(), 1, "it may hold a card")
	assert.Empty(t, f.do(0, ProbeOK))
	_, err = f.Step(Event{Kind: ForceReleased, Slot: "s0"}, f.now.Add(time.Second))
	require.NoError(t, err)
	assert.Empty(t, f.Slots())
}

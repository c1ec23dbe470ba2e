package fleet

import (
	"fmt"
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Action is what a restart makes of one recorded group.
type Action int

// The actions of a restart.
const (
	// Hold keeps the slot reserved with a reason.
	Hold Action = iota + 1
	// AdoptStarting and AdoptReady make the replica the router's own again.
	AdoptStarting
	AdoptReady
)

// String is the name as logs, metrics and tests have it.
func (a Action) String() string {
	if a < Hold || a > AdoptReady {
		return "invalid"
	}
	return [...]string{"hold", "adopt starting", "adopt ready"}[a-1]
}

// Decision is what a restart does with one declared slot.
type Decision struct {
	Slot     string
	Action   Action
	Reason   Reason
	Instance string
	// LaunchedAt, EverReady and Strikes are what was recorded, Since when a hold
	// began.
	LaunchedAt time.Time
	EverReady  bool
	Strikes    int
	Since      time.Time
}

// Restore puts the decisions of a restart into a machine that has done nothing
// yet. The effects register what was adopted and write the state file.
func (m *Machine) Restore(decisions []Decision, now time.Time) ([]Effect, error) {
	var out []Effect
	for _, d := range decisions {
		s := m.find(d.Slot)
		if s == nil || s.state != Free {
			return nil, fmt.Errorf("restore slot %q: it is not declared or not free", d.Slot)
		}
		out = append(out, m.adopt(s, d, now)...)
	}
	m.bound = max(m.bound, m.Reserved())
	m.check(out)
	return out, nil
}

func (m *Machine) adopt(s *slotState, d Decision, now time.Time) []Effect {
	s.instance, s.launchedAt, s.strikes, s.everReady = d.Instance, d.LaunchedAt, d.Strikes, d.EverReady
	if d.Action == Hold {
		s.enter(Unconfirmed, d.Since)
		s.reason = d.Reason
		return []Effect{s.effect(Persist)}
	}
	effects := m.start(s, now)
	if d.Action == AdoptReady {
		effects = append(effects, m.ready(s, now)...)
	}
	return effects
}

// ReleaseRecord takes an operator's word that nothing is left of a kept record,
// by the name of its slot. It gives the records that remain; slots that none of
// them overlaps are free. The error is a record that does not exist.
func (m *Machine) ReleaseRecord(c *Config, kept []StateEntry, slot string, now time.Time) ([]StateEntry, []Effect, error) {
	i := slices.IndexFunc(kept, func(e StateEntry) bool { return e.Slot == slot })
	if i < 0 {
		return kept, nil, pd.Errorf(pd.CodeNotFound, "release record", "there is no record of a launch slot %q", slot)
	}
	gone, left := kept[i], slices.Delete(slices.Clone(kept), i, i+1)
	var out []Effect
	for _, s := range m.slots {
		if s.state != Unconfirmed || s.instance != heldInstance(gone, s.Name) {
			continue
		}
		if j := slices.IndexFunc(left, func(e StateEntry) bool { return overlaps(c, s.Slot, e) }); j >= 0 {
			s.instance = heldInstance(left[j], s.Name)
			continue
		}
		out = append(out, m.vacate(s, now)...)
	}
	m.check(out)
	return left, out, nil
}

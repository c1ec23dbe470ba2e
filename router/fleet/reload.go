package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Reload takes in the slots of a new configuration. New ones are free, or held if
// a kept record overlaps them. Ones that are no longer declared go: at once if
// they are empty, else they are retired and go then. Nothing changes after an
// error, which names every slot that is in use and in the way: one of the same
// name with other devices or another address, or one that leaves and shares
// devices or an address with a new one.
func (m *Machine) Reload(slots []Slot, ceiling int, kept []StateEntry, now time.Time) ([]Effect, error) {
	if m.stopping {
		return nil, pd.Errorf(pd.CodeDraining, "reload slots", "the router is shutting down")
	}
	var inTheWay []string
	for _, old := range m.slots {
		if !old.state.occupied() {
			continue
		}
		for _, s := range slots {
			if s.Name == old.Name && !s.sameGroup(old.Slot) || s.Name != old.Name && s.clashes(old.Slot) {
				inTheWay = append(inTheWay, fmt.Sprintf("%s is %s and clashes with the new %s", old.Name, old.state, s.Name))
			}
		}
	}
	if len(inTheWay) > 0 {
		return nil, pd.Errorf(pd.CodeConflict, "reload slots", "%s; delete what is in the way first", strings.Join(inTheWay, "; "))
	}
	m.policy.Ceiling = ceiling
	var next []*slotState
	var out []Effect
	for _, s := range slots {
		old := m.find(s.Name)
		if old == nil {
			old = &slotState{state: Free, since: now}
		}
		old.Slot, old.leaving = s, false
		next = append(next, old)
	}
	for _, old := range m.slots {
		if slices.Contains(next, old) {
			continue
		}
		old.leaving = true
		next = append(next, old)
	}
	m.slots = next
	for _, s := range m.slots {
		switch {
		case !s.leaving && s.state == Free:
			if i := slices.IndexFunc(kept, func(e StateEntry) bool { return overlaps(s.Slot, e) }); i >= 0 {
				out = append(out, m.hold(s, heldBy(kept[i], s.Name)))
			}
		case s.leaving && s.state != Free && s.state != Abandoned && s.state != Unconfirmed:
			effects, err := m.remove(s, now)
			if err != nil {
				panic(fmt.Sprintf("fleet: reload: %v", err)) // the table allows it in every other state
			}
			out = append(out, effects...)
		}
	}
	m.bound = max(m.policy.Ceiling, m.Reserved())
	m.check(out)
	m.depart()
	return out, nil
}

// depart drops the slots that are no longer declared and hold nothing.
func (m *Machine) depart() {
	m.slots = slices.DeleteFunc(m.slots, func(s *slotState) bool { return s.leaving && (s.state == Free || s.state == Abandoned) })
}

// sameGroup says that two slots are one place for a process.
func (s Slot) sameGroup(o Slot) bool {
	return s.HostName == o.HostName && s.Machine == o.Machine && slices.Equal(s.Devices, o.Devices) && s.Address == o.Address && s.Port == o.Port
}

// clashes says that processes of both slots would be in each other's way.
func (s Slot) clashes(o Slot) bool {
	if s.Address == o.Address && s.Port == o.Port {
		return true
	}
	return s.Machine == o.Machine && slices.ContainsFunc(s.Devices, func(d int) bool { return slices.Contains(o.Devices, d) })
}

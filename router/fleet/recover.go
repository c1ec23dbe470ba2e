package fleet

import (
	"fmt"
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Hold is a declared slot that a restart keeps reserved because of a record.
// What then answers there is adopted, if the reason is UnreachableReason.
type Hold struct {
	Slot     string
	Reason   Reason
	Instance string
	// LaunchedAt, ServerID, EverReady and Strikes are what was recorded, Since when
	// the hold began.
	LaunchedAt time.Time
	ServerID   string
	EverReady  bool
	Strikes    int
	Since      time.Time
}

// Recover decides what a restart makes of a state file: every recorded group is
// held or kept, before anything is asked, so that nothing that may hold a card is
// lost. kept are groups that the configuration no longer declares as they were;
// declared slots that overlap their devices are held.
func Recover(slots []Slot, f StateFile, now time.Time) (holds []Hold, kept []StateEntry) {
	add := func(h Hold) {
		// Two records may overlap one slot; the first holds it already, and both
		// are in the file.
		if !slices.ContainsFunc(holds, func(o Hold) bool { return o.Slot == h.Slot }) {
			holds = append(holds, h)
		}
	}
	decide := func(e StateEntry, reason Reason) {
		if e.Since.IsZero() {
			e.Since = now
		}
		if slices.ContainsFunc(slots, func(s Slot) bool { return s.Name == e.Slot && same(s, e) }) {
			add(Hold{Slot: e.Slot, Reason: reason, Instance: e.Instance, LaunchedAt: e.LaunchedAt, ServerID: e.ServerID, EverReady: e.EverReady, Strikes: e.Strikes, Since: e.Since})
			return
		}
		e.Reason = NotDeclaredReason
		kept = append(kept, e)
		for _, s := range slots {
			if overlaps(s, e) {
				add(heldBy(e, s.Name))
			}
		}
	}
	for _, e := range f.Unconfirmed {
		decide(e, e.Reason)
	}
	for _, e := range f.Replicas {
		decide(e, UnreachableReason)
	}
	return holds, kept
}

// heldBy is the hold of a declared slot because of a record that is not its own.
func heldBy(e StateEntry, slot string) Hold {
	return Hold{Slot: slot, Reason: NotDeclaredReason, Instance: heldInstance(e, slot), Since: e.Since}
}

// overlaps says that a record that is not the slot's keeps it from use. The name
// counts beside the devices: a file can record a slot once only.
func overlaps(s Slot, e StateEntry) bool {
	return s.Name == e.Slot || s.HostName == e.Host && slices.ContainsFunc(s.Devices, func(d int) bool { return slices.Contains(e.Devices, d) })
}

// heldInstance names what may be in a declared slot because of a record.
func heldInstance(e StateEntry, slot string) string { return e.Instance + "@" + slot }

// same says that a declared slot is the recorded one.
func same(s Slot, e StateEntry) bool {
	return s.HostName == e.Host && slices.Equal(s.Devices, e.Devices) && s.Address == e.Address && s.Port == e.Port
}

// Restore puts the holds of a restart into a machine that has done nothing yet.
// The effects write the state file. The error is a slot that is not free.
func (m *Machine) Restore(holds []Hold) ([]Effect, error) {
	var out []Effect
	for _, h := range holds {
		s := m.find(h.Slot)
		if s == nil || s.state != Free {
			return nil, fmt.Errorf("restore slot %q: it is not declared or not free", h.Slot)
		}
		out = append(out, m.hold(s, h))
	}
	m.bound = max(m.bound, m.Reserved())
	m.check(out)
	return out, nil
}

func (m *Machine) hold(s *slotState, h Hold) Effect {
	s.enter(Unconfirmed, h.Since)
	s.instance, s.reason, s.launchedAt, s.serverID, s.strikes, s.everReady = h.Instance, h.Reason, h.LaunchedAt, h.ServerID, h.Strikes, h.EverReady
	return s.effect(Persist)
}

// ReleaseRecord takes an operator's word that nothing is left of a kept record,
// by the name of its slot. It gives the records that remain; slots that none of
// them overlaps are free. The error is a record that does not exist.
func (m *Machine) ReleaseRecord(kept []StateEntry, slot string, now time.Time) ([]StateEntry, []Effect, error) {
	i := slices.IndexFunc(kept, func(e StateEntry) bool { return e.Slot == slot })
	if i < 0 {
		return kept, nil, pd.Errorf(pd.CodeNotFound, "release record", "there is no record of a launch slot %q", slot)
	}
	gone, left := kept[i], slices.Delete(slices.Clone(kept), i, i+1)
	out := []Effect{{Kind: Persist}}
	for _, s := range m.slots {
		if s.state != Unconfirmed || s.instance != heldInstance(gone, s.Name) {
			continue
		}
		if j := slices.IndexFunc(left, func(e StateEntry) bool { return overlaps(s.Slot, e) }); j >= 0 {
			s.instance = heldInstance(left[j], s.Name)
			continue
		}
		out = append(out, m.vacate(s, now)...)
	}
	m.check(out)
	return left, out, nil
}

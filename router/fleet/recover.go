package fleet

import (
	"slices"
	"time"
)

// Answer is what a recorded replica said to the one probe at the start.
type Answer int

// The answers of a probe.
const (
	// Silent: nothing answered, or it was not asked.
	Silent Answer = iota
	// Unready: some HTTP answer that is not 200.
	Unready
	// Healthy: /health answered 200.
	Healthy
)

// Recover decides what a restart makes of a state file and of what answered, by
// slot. Every recorded group is in the decisions or kept: nothing that may hold
// a card is lost. kept are groups that the configuration no longer declares as
// they were; declared slots that overlap their devices are held.
func Recover(c *Config, f StateFile, answers map[string]Answer, now time.Time) (decisions []Decision, kept []StateEntry) {
	for _, e := range f.Unconfirmed {
		decide(c, e, Silent, e.Reason, now, &decisions, &kept)
	}
	for _, e := range f.Replicas {
		decide(c, e, answers[e.Slot], UnreachableReason, now, &decisions, &kept)
	}
	return decisions, kept
}

func decide(c *Config, e StateEntry, answer Answer, reason Reason, now time.Time, decisions *[]Decision, kept *[]StateEntry) {
	if e.Since.IsZero() {
		e.Since = now
	}
	add := func(d Decision) {
		// Two records may overlap one slot; the first holds it already, and both
		// are in the file.
		if !slices.ContainsFunc(*decisions, func(o Decision) bool { return o.Slot == d.Slot }) {
			*decisions = append(*decisions, d)
		}
	}
	i := slices.IndexFunc(c.Slots, func(s Slot) bool { return s.Name == e.Slot })
	if i >= 0 && same(c, c.Slots[i], e) {
		d := Decision{Slot: e.Slot, Action: Hold, Reason: reason, Instance: e.Instance, LaunchedAt: e.LaunchedAt, EverReady: e.EverReady, Strikes: e.Strikes, Since: e.Since}
		switch answer {
		case Healthy:
			d.Action, d.Reason = AdoptReady, ""
		case Unready:
			d.Action, d.Reason = AdoptStarting, ""
		}
		add(d)
		return
	}
	e.Reason = NotDeclaredReason
	*kept = append(*kept, e)
	for _, s := range c.Slots {
		if overlaps(c, s, e) {
			add(Decision{Slot: s.Name, Action: Hold, Reason: NotDeclaredReason, Instance: heldInstance(e, s.Name), Since: e.Since})
		}
	}
}

// overlaps says that a record that is not the slot's keeps it from use. The name
// counts beside the devices: a file can record a slot once only.
func overlaps(c *Config, s Slot, e StateEntry) bool {
	return s.Name == e.Slot || c.Hosts[s.Host].Name == e.Host && slices.ContainsFunc(s.Devices, func(d int) bool { return slices.Contains(e.Devices, d) })
}

// heldInstance names what may be in a declared slot because of a record.
func heldInstance(e StateEntry, slot string) string { return e.Instance + "@" + slot }

// same says that a declared slot is the recorded one.
func same(c *Config, s Slot, e StateEntry) bool {
	return c.Hosts[s.Host].Name == e.Host && slices.Equal(s.Devices, e.Devices) && s.Address == e.Address && s.Port == e.Port
}

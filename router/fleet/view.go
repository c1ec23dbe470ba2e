package fleet

import (
	"time"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// ReplicaView is one replica of the table as others see it.
type ReplicaView struct {
	Name, URL string
	// Phase is starting, ready, draining or failed.
	Phase                  string
	Ready, Draining, Owned bool
	Outstanding            int
	Routed                 int64
	// Since is when the phase began, zero for a replica of the file.
	Since time.Time

	address string
	trust   *edge.Trust
}

// Snapshot is a pool at one moment.
type Snapshot struct {
	Replicas []ReplicaView
	Slots    []SlotView
	Counts   Counts
	Sessions int
	// Owned is how many slots are reserved, Ceiling how many may be.
	Owned, Ceiling int
	FreeSlots      []string
	// Unconfirmed are the slots that stay reserved without a replica, and the
	// records of another configuration, each with its reason. Abandoned ones lost
	// too many.
	Unconfirmed map[string]Reason
	Abandoned   []string
	// Held: replacements wait, because the router's own network is suspected.
	Held bool
	// StateError is why the state file could not be written last, "" if it could.
	StateError string
	Stats      PoolStats
}

// Snapshot is what /health, /replicas and /metrics show.
func (p *Pool) Snapshot() Snapshot {
	p.slots.Lock()
	defer p.slots.Unlock()
	out := Snapshot{
		Slots: p.machine.Slots(), Owned: p.machine.Reserved(), Ceiling: p.machine.policy.Ceiling, FreeSlots: []string{},
		Unconfirmed: map[string]Reason{}, Abandoned: []string{}, Held: p.machine.Held(time.Now()), Stats: p.stats,
	}
	if p.stateErr != nil {
		out.StateError = p.stateErr.Error()
	}
	states := map[string]SlotView{}
	for _, s := range out.Slots {
		switch {
		case s.State == Free && !s.Leaving:
			out.FreeSlots = append(out.FreeSlots, s.Name)
		case s.State == Unconfirmed:
			out.Unconfirmed[s.Name] = s.Reason
		case s.State == Abandoned:
			out.Abandoned = append(out.Abandoned, s.Name)
		}
		states[s.Name] = s
	}
	for _, e := range p.kept {
		out.Unconfirmed[e.Slot] = e.Reason
	}
	p.table.Lock()
	defer p.table.Unlock()
	out.Counts, out.Sessions = p.table.Counts(), p.table.Sessions()
	for _, m := range p.table.Members() {
		v := ReplicaView{Name: m.Name, URL: m.URL, Ready: m.ready, Draining: m.draining, Owned: m.Owned, Outstanding: m.outstanding, Routed: m.routed, address: m.Address, trust: m.Trust}
		switch s := states[m.Name]; {
		case m.Owned:
			v.Phase, v.Since = s.State.Phase(), s.Since
		case m.ready:
			v.Phase = Ready.Phase()
		default:
			v.Phase = Failed.Phase()
		}
		out.Replicas = append(out.Replicas, v)
	}
	return out
}

package fleet

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Policy is the machine's times and bounds.
type Policy struct {
	Ceiling        int
	HealthInterval time.Duration
	ConnectTimeout time.Duration
	LaunchTimeout  time.Duration
	DrainTimeout   time.Duration
	// ReplaceAfter is 0 where nothing is replaced.
	ReplaceAfter time.Duration
	// Strikes is how many losses in a row give a slot up. Backoff is the wait after
	// the first of them, doubled after each.
	Strikes int
	Backoff time.Duration
	// Stability is how long a replica must be ready before its slot's strikes are
	// forgotten; forgetting at the first ready would let a crash loop go on for ever.
	Stability time.Duration
}

// guardFactor times ReplaceAfter is how long a suspicion against the router's own
// network holds replacements back.
const guardFactor = 5

// Policy takes the machine's part of the options.
func (o Options) Policy() Policy {
	return Policy{
		Ceiling: o.Ceiling, HealthInterval: o.HealthInterval, ConnectTimeout: o.ConnectTimeout, LaunchTimeout: o.LaunchTimeout,
		DrainTimeout: o.DrainTimeout, ReplaceAfter: o.ReplaceAfter,
		Strikes: o.ReplaceStrikes, Backoff: o.ReplaceBackoff, Stability: o.StableAfter,
	}
}

// ErrPoolFull is the cause of a launch that finds no slot.
var ErrPoolFull = pd.Errorf(pd.CodeCapacityExhausted, "launch replica", "the pool is full")

// Machine is the launch slots as a value: Step takes an event and the time and
// gives orders. It has no lock and no clock; its owner guards it.
type Machine struct {
	policy Policy
	boot   string
	slots  []*slotState
	// launches numbers the instances of this boot.
	launches int
	// bound is the ceiling, or more if a restart found more.
	bound    int
	stopping bool
	guard    guard
}

// NewMachine makes a machine of declared slots, all free. boot is this life of
// the router, which makes its instances different from those of others.
func NewMachine(slots []Slot, p Policy, boot string) *Machine {
	m := &Machine{policy: p, boot: boot, bound: p.Ceiling, guard: guard{down: map[string]time.Time{}, up: map[string]bool{}}}
	for _, s := range slots {
		m.slots = append(m.slots, &slotState{Slot: s, state: Free})
	}
	return m
}

// SlotView is one slot as others see it.
type SlotView struct {
	Slot
	State    State
	Instance string
	Reason   Reason
	Since    time.Time
	Strikes  int
	// LaunchedAt, ServerID and EverReady are of the instance.
	LaunchedAt time.Time
	ServerID   string
	EverReady  bool
	// Leaving: the slot is no longer declared and goes when it is empty.
	Leaving bool
}

// Slots are all slots in their order.
func (m *Machine) Slots() []SlotView {
	out := make([]SlotView, len(m.slots))
	for i, s := range m.slots {
		out[i] = s.view()
	}
	return out
}

func (s *slotState) view() SlotView {
	return SlotView{
		Slot: s.Slot, State: s.state, Instance: s.instance, Reason: s.reason, Since: s.since, Strikes: s.strikes,
		LaunchedAt: s.launchedAt, ServerID: s.serverID, EverReady: s.everReady, Leaving: s.leaving,
	}
}

// Slot is one slot by its name; false if there is none.
func (m *Machine) Slot(name string) (SlotView, bool) {
	s := m.find(name)
	if s == nil {
		return SlotView{}, false
	}
	return s.view(), true
}

func (m *Machine) find(name string) *slotState {
	if i := slices.IndexFunc(m.slots, func(s *slotState) bool { return s.Name == name }); i >= 0 {
		return m.slots[i]
	}
	return nil
}

// Reserved counts the slots that count against the ceiling.
func (m *Machine) Reserved() int {
	n := 0
	for _, s := range m.slots {
		if s.state.Reserved() {
			n++
		}
	}
	return n
}

// Due is the earliest time at which Tick has something to do; false if there is
// none.
func (m *Machine) Due() (time.Time, bool) {
	var first time.Time
	for _, s := range m.slots {
		due := m.due(s)
		if !due.IsZero() && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	return first, !first.IsZero()
}

// Launch reserves the first free slot, by an operator's order also an abandoned
// one, and orders its launch. The error wraps ErrPoolFull, or says that the
// router stops.
func (m *Machine) Launch(operator bool, now time.Time) (SlotView, []Effect, error) {
	if err := m.mayLaunch(); err != nil {
		return SlotView{}, nil, err
	}
	var chosen *slotState
	for _, s := range m.slots {
		if s.leaving {
			continue
		}
		if s.state == Free || s.state == Abandoned && operator && chosen == nil {
			if chosen = s; s.state == Free {
				break
			}
		}
	}
	if chosen == nil {
		return SlotView{}, nil, m.full()
	}
	chosen.strikes = 0
	effects := m.launch(chosen, now)
	m.check(effects)
	return chosen.view(), effects, nil
}

// mayLaunch says why nothing may be launched now.
func (m *Machine) mayLaunch() error {
	switch {
	case m.stopping:
		return pd.Errorf(pd.CodeDraining, "launch replica", "the router is shutting down")
	case m.Reserved() >= m.policy.Ceiling:
		return m.full()
	}
	return nil
}

func (m *Machine) full() error {
	return fmt.Errorf("%w: %d of %d slots are in use", ErrPoolFull, m.Reserved(), m.policy.Ceiling)
}

// Shutdown retires every replica that this router launched and launches no more.
// A launch that runs is retired when it has ended.
func (m *Machine) Shutdown(now time.Time) []Effect {
	m.stopping = true
	var out []Effect
	for _, s := range m.slots {
		switch s.state {
		case Free, Abandoned, Unconfirmed:
			continue
		}
		effects, err := m.remove(s, now)
		if err != nil {
			panic(fmt.Sprintf("fleet: shutdown: %v", err)) // the table allows it in every other state
		}
		out = append(out, effects...)
	}
	m.check(out)
	return out
}

// Tick lets time pass for every slot.
func (m *Machine) Tick(now time.Time) []Effect {
	var out []Effect
	for _, s := range m.slots {
		out = append(out, m.pass(s, now)...)
	}
	m.check(out)
	m.depart()
	return out
}

// Identify notes what an instance calls this start of itself, and says whether
// that is new.
func (m *Machine) Identify(slot, instance, serverID string) bool {
	s := m.find(slot)
	if s == nil || s.instance != instance || s.serverID == serverID {
		return false
	}
	s.serverID = serverID
	return true
}

// Step takes an event in. The error is an unknown slot, or an event that its
// state does not know; nothing has changed then. An event of an instance that is
// gone is no error and does nothing.
func (m *Machine) Step(e Event, now time.Time) ([]Effect, error) {
	s := m.find(e.Slot)
	if s == nil {
		return nil, pd.Errorf(pd.CodeNotFound, "step slot", "there is no launch slot %q", e.Slot)
	}
	// Invariant F-4.
	if e.Instance != s.instance && (e.Instance != "" || !e.Kind.order()) {
		return nil, nil
	}
	effects, err := m.step(s, e.Kind, now)
	if err != nil {
		return nil, err
	}
	m.check(effects)
	m.depart()
	return effects, nil
}

// order says that an event is an order and not a fact.
func (k EventKind) order() bool {
	return k == RemoveOrdered || k == ForceReleased || k == LaunchOrdered || k == TimePassed
}

// Observe tells the guard of a replica of the file, which has no slot.
func (m *Machine) Observe(name string, ready bool, now time.Time) {
	m.observe(name, ready, now)
}

func (m *Machine) observe(name string, ready bool, now time.Time) {
	m.guard.observe(name, ready, now, m.policy.HealthInterval+m.policy.ConnectTimeout)
}

// Held says that replacements wait because the router's own network is suspected.
func (m *Machine) Held(now time.Time) bool {
	return m.guard.holds(now, guardFactor*m.policy.ReplaceAfter)
}

// newInstance names the next launch.
func (m *Machine) newInstance() string {
	m.launches++
	return m.boot + "-" + strconv.Itoa(m.launches)
}

// check panics where an invariant does not hold: then nothing that the machine
// says can be trusted with a card.
func (m *Machine) check(effects []Effect) {
	if err := m.Check(); err != nil {
		panic("fleet: " + err.Error())
	}
	persisted := false
	for _, e := range effects {
		if e.Kind == Persist {
			persisted = true // of the whole machine, whatever slot asked for it
			continue
		}
		s := m.find(e.Slot)
		if s == nil {
			panic("fleet: F-5: " + e.Slot + " is no launch slot")
		}
		if e.Kind == StartLaunch {
			if !persisted {
				panic("fleet: F-6: " + e.Slot + " is launched before its reservation is written")
			}
			if s.state != Launching || s.instance != e.Instance {
				panic("fleet: F-2: " + e.Slot + " is launched in state " + s.state.String())
			}
		}
	}
}

// Check reports the first invariant that does not hold; see doc.go.
func (m *Machine) Check() error {
	seen := map[string]string{}
	for _, s := range m.slots {
		if (s.instance != "") != s.state.occupied() {
			return fmt.Errorf("F-2: slot %s is %s with instance %q", s.Name, s.state, s.instance)
		}
		if (s.reason != "") != (s.state == Unconfirmed) {
			return fmt.Errorf("F-2: slot %s is %s with reason %q", s.Name, s.state, s.reason)
		}
		if other, ok := seen[s.instance]; ok && s.instance != "" {
			return fmt.Errorf("F-1: slots %s and %s both hold instance %s", other, s.Name, s.instance)
		}
		seen[s.instance] = s.Name
	}
	if n := m.Reserved(); n > m.bound {
		return fmt.Errorf("F-3: %d slots are reserved, the bound is %d", n, m.bound)
	}
	return nil
}

package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// PoolOptions are what a pool is made of.
type PoolOptions struct {
	Config   *Config
	Options  Options
	Launcher Launcher
	// Store is nil where nothing is remembered. State is what it held.
	Store *StateStore
	State StateFile
	// Boot is this life of the router.
	Boot pd.BootID
	// TrustOf gives the trust with which an https replica is dialled; nil where
	// none is https.
	TrustOf func(Static) (*edge.Trust, error)
	Log     *slog.Logger
}

// Pool is the living fleet: the table of replicas, the slots, what probes them
// and what launches and stops them. Its methods are safe for concurrent use once
// Run runs.
type Pool struct {
	// constant
	options  PoolOptions
	launcher Launcher
	log      *slog.Logger
	started  time.Time
	probes   *edge.Client
	// base ends with Run, and everything that the pool started with it.
	base context.Context
	stop context.CancelFunc
	// kick tells the timer that something may be due earlier.
	kick  chan struct{}
	tasks sync.WaitGroup

	// slots guards the machine and all that belongs to it; taken before table.
	slots sync.Mutex
	// guarded by slots
	machine *Machine
	hosts   map[string]*Host // by slot
	statics []*static
	kept    []StateEntry
	members map[string]*Member // by instance
	probers map[string]*prober // by instance, or by the key of a static
	// launching and retiring are who waits for an instance.
	launching map[string]*outcome
	retiring  map[string]*outcome
	// exited are processes that ended before their launch was known to be accepted.
	exited   map[string]error
	stateErr error
	stats    PoolStats

	// table guards what requests need: it is never held over a system call.
	table struct {
		sync.Mutex
		*Table
		// idle is closed when a draining member runs nothing any more.
		idle map[*Member]chan struct{}
	}
}

// outcome is what several may wait for.
type outcome struct {
	done chan struct{}
	// written before done is closed
	err error
}

func newOutcome() *outcome { return &outcome{done: make(chan struct{})} }

func (o *outcome) settle(err error) {
	o.err = err
	close(o.done)
}

// PoolStats count since the start.
type PoolStats struct {
	LaunchesAccepted, LaunchesRefused, LaunchesUncertain, LaunchTimeouts int64
	StopsConfirmed, StopsUnconfirmed                                     int64
	Adopted, Replaced                                                    int64
	ProbesOK, ProbesAnswered, ProbesFailed, ProbesSkipped                int64
	StateWriteErrors                                                     int64
}

// NewPool makes a pool in which every recorded group is reserved. The error is a
// configuration that does not fit the state.
func NewPool(o PoolOptions) (*Pool, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	table, err := NewTable(AffinityOptions{TTL: o.Options.SessionTTL, MaxSessions: o.Options.MaxSessions, Slack: o.Options.AffinitySlack})
	if err != nil {
		return nil, err
	}
	base, stop := context.WithCancel(context.Background())
	p := &Pool{
		options: o, launcher: o.Launcher, log: o.Log, started: time.Now(), base: base, stop: stop, kick: make(chan struct{}, 1),
		// Probes have a client of their own and a connection each: a probe that
		// waited behind streams would call a busy replica dead.
		probes:    edge.NewClient(edge.ClientConfig{DialTimeout: o.Options.ConnectTimeout, MaxIdle: -1}),
		machine:   NewMachine(o.Config.Slots, o.Options.Policy(), string(o.Boot)),
		members:   map[string]*Member{},
		probers:   map[string]*prober{},
		launching: map[string]*outcome{},
		retiring:  map[string]*outcome{},
		exited:    map[string]error{},
	}
	p.hosts = hostsOf(o.Config, nil)
	p.table.Table, p.table.idle = table, map[*Member]chan struct{}{}
	for _, s := range o.Config.Replicas {
		if err := p.addStatic(s); err != nil {
			return nil, err
		}
	}
	holds, kept := Recover(o.Config.Slots, o.State, time.Now())
	p.kept = kept
	effects, err := p.machine.Restore(holds)
	if err != nil {
		return nil, err
	}
	for _, h := range holds {
		p.log.Info("slot reserved by the state file", "slot", h.Slot, "instance", h.Instance, "reason", h.Reason)
	}
	for _, e := range kept {
		p.log.Warn("the state file holds a group that is not declared as it was; it stays reserved until it is released", "slot", e.Slot, "host", e.Host, "devices", e.Devices, "instance", e.Instance)
	}
	p.do(effects)
	return p, nil
}

// hostsOf maps the slots of a configuration to copies of their hosts. Slots that
// it does not have keep the host from before.
func hostsOf(c *Config, before map[string]*Host) map[string]*Host {
	out := map[string]*Host{}
	for name, h := range before {
		out[name] = h
	}
	for _, s := range c.Slots {
		out[s.Name] = &c.Hosts[s.Host]
	}
	return out
}

// Run adopts what answers, launches the initial replicas, and then lets time
// pass until ctx ends. It stops no replica; Shutdown does. It returns when
// everything that it started has ended.
func (p *Pool) Run(ctx context.Context) {
	stopped := context.AfterFunc(ctx, p.stop)
	defer stopped()
	p.slots.Lock()
	p.reconcile()
	p.slots.Unlock()
	p.tasks.Go(p.launchInitial)
	p.passTime()
	p.slots.Lock()
	for key := range p.probers {
		p.endProber(key)
	}
	p.slots.Unlock()
	p.tasks.Wait()
	p.probes.Close()
}

// passTime gives the machine the time when something is due, and sweeps pins.
func (p *Pool) passTime() {
	sweep := time.NewTicker(max(p.options.Options.HealthInterval, time.Millisecond))
	defer sweep.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-p.base.Done():
			return
		case <-p.kick:
		case <-timer.C:
		case <-sweep.C:
			p.table.Lock()
			p.table.Sweep(p.now())
			p.table.Unlock()
			continue
		}
		if due, ok := p.tick(); ok {
			// A millisecond above, so that what is due then is due.
			timer.Reset(time.Until(due) + time.Millisecond)
		}
	}
}

// tick does what is due, and says when the next thing is. It wakes nobody: who
// calls it waits for that time himself.
func (p *Pool) tick() (due time.Time, ok bool) {
	p.slots.Lock()
	defer p.slots.Unlock()
	now := time.Now() // one for both, or a time-out could be missed by the count
	p.countTimeouts(now)
	p.carryOut(p.machine.Tick(now))
	return p.machine.Due()
}

// countTimeouts notes the launches that the next tick ends.
func (p *Pool) countTimeouts(now time.Time) {
	for _, s := range p.machine.slots {
		if due := p.machine.due(s); s.state == Starting && !due.IsZero() && !now.Before(due) {
			p.stats.LaunchTimeouts++
			p.log.Error("replica was not ready in time and is stopped; raise --launch-timeout if the model takes longer", "slot", s.Name,
				"instance", s.instance, "launch_timeout", p.options.Options.LaunchTimeout)
		}
	}
}

// now is the pool's monotonic clock.
func (p *Pool) now() time.Duration { return time.Since(p.started) }

// fact tells the machine what was seen. What comes too late is no error.
func (p *Pool) fact(e Event) {
	p.slots.Lock()
	defer p.slots.Unlock()
	p.factLocked(e)
}

func (p *Pool) factLocked(e Event) {
	if err := p.step(e); err != nil {
		p.log.Debug("fact came late", "slot", e.Slot, "event", e.Kind.String(), "error", err)
	}
}

func (p *Pool) step(e Event) error {
	effects, err := p.machine.Step(e, time.Now())
	p.do(effects)
	return err
}

// do carries effects out and has the timer look again at what is due.
func (p *Pool) do(effects []Effect) {
	p.carryOut(effects)
	p.rearm()
}

// rearm has the timer look again at what is due.
func (p *Pool) rearm() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// carryOut carries effects out, in order. What takes time goes to a task, which
// comes back with a fact.
func (p *Pool) carryOut(effects []Effect) {
	saved := false
	for len(effects) > 0 {
		e := effects[0]
		effects = effects[1:]
		var next *Event
		switch e.Kind {
		case Persist:
			// The machine is through with its step: one write holds all of it.
			if !saved {
				p.save()
				saved = true
			}
		case Register:
			p.register(e)
		case Deregister:
			p.deregister(e)
		case StartDrain:
			next = p.startDrain(e)
		case MarkReady:
			p.mark(e, true)
		case MarkFailed:
			p.mark(e, false)
		case StartLaunch:
			p.startLaunch(e)
		case StartStop:
			l := p.launchOf(e)
			p.log.Info("stopping replica", "slot", e.Slot, "instance", e.Instance)
			p.tasks.Go(func() { p.stopReplica(l) })
		case Retired:
			p.retired(e)
		}
		if next != nil {
			more, err := p.machine.Step(*next, time.Now())
			if err != nil {
				panic(fmt.Sprintf("fleet: %s in answer to %s: %v", next.Kind, e.Kind, err))
			}
			effects, saved = append(effects, more...), false
		}
	}
	p.reconcile()
}

func (p *Pool) launchOf(e Effect) Launch {
	s, _ := p.machine.Slot(e.Slot)
	return Launch{Slot: s.Slot, Host: p.hosts[e.Slot], Instance: e.Instance, Grace: p.options.Options.StopGrace}
}

// save writes the state file. A failure is shown by /health and refuses launches
// until a write succeeds: a process that no file knows would be lost in a crash.
func (p *Pool) save() {
	if p.options.Store == nil {
		return
	}
	err := p.options.Store.Save(p.machine.Snapshot(p.kept))
	if err != nil {
		p.stats.StateWriteErrors++
		p.log.Error("cannot write the state file; nothing is launched until it can be written", "error", err)
	}
	p.stateErr = err
}

func (p *Pool) register(e Effect) {
	s, _ := p.machine.Slot(e.Slot)
	m := NewMember(s.Name, s.URL(), e.Instance)
	p.members[e.Instance] = m
	p.table.Lock()
	defer p.table.Unlock()
	if err := p.table.Add(m); err != nil {
		panic(fmt.Sprintf("fleet: register %s: %v", e.Instance, err)) // Parse refuses clashing names
	}
}

func (p *Pool) deregister(e Effect) {
	m := p.members[e.Instance]
	delete(p.members, e.Instance)
	p.table.Lock()
	defer p.table.Unlock()
	p.table.Remove(m)
	if n := m.Outstanding(); n > 0 {
		p.log.Warn("replica is stopped with requests running", "slot", e.Slot, "instance", e.Instance, "outstanding", n)
	}
}

// startDrain takes no new requests; the event, if any, says that none runs.
func (p *Pool) startDrain(e Effect) *Event {
	m := p.members[e.Instance]
	drained := Event{Kind: Drained, Slot: e.Slot, Instance: e.Instance}
	p.table.Lock()
	defer p.table.Unlock()
	p.table.Drain(m)
	p.log.Info("draining replica", "slot", e.Slot, "instance", e.Instance, "outstanding", m.Outstanding())
	if m.Outstanding() == 0 {
		return &drained
	}
	idle := make(chan struct{})
	p.table.idle[m] = idle
	p.tasks.Go(func() {
		select {
		case <-idle:
			p.fact(drained)
		case <-p.base.Done():
		}
	})
	return nil
}

func (p *Pool) mark(e Effect, ready bool) {
	m := p.members[e.Instance]
	p.table.Lock()
	p.table.SetReady(m, ready)
	p.table.Unlock()
	if ready {
		p.log.Info("replica is ready", "slot", e.Slot, "instance", e.Instance)
	} else {
		p.log.Warn("replica does not answer any more", "slot", e.Slot, "instance", e.Instance)
	}
}

// Choose gives a generation of a conversation to a replica and counts it as
// outstanding there, until Done. The miss and the error are those of Table.Choose.
func (p *Pool) Choose(session string) (*Member, Miss, error) {
	p.table.Lock()
	defer p.table.Unlock()
	return p.table.Choose(session, p.now())
}

// Sent counts a request as routed to the member that Choose gave; one that goes on
// to another replica is counted there alone.
func (p *Pool) Sent(m *Member, miss Miss) {
	p.table.Lock()
	defer p.table.Unlock()
	p.table.Count(m, miss)
}

// Done ends a request on the member that Choose gave, and renews the pin of its
// conversation.
func (p *Pool) Done(session string, m *Member) {
	p.table.Lock()
	defer p.table.Unlock()
	p.table.Touch(session, m, p.now())
	p.table.Release(m)
	p.rest(m)
}

// rest notes that a member may run nothing any more.
func (p *Pool) rest(m *Member) {
	if idle, ok := p.table.idle[m]; ok && m.Outstanding() == 0 {
		close(idle)
		delete(p.table.idle, m)
	}
}

// Unreachable takes a member out of rotation that could not be dialled.
func (p *Pool) Unreachable(m *Member) {
	p.table.Lock()
	p.table.SetReady(m, false)
	p.table.Unlock()
	p.slots.Lock()
	defer p.slots.Unlock()
	if m.Owned {
		p.factLocked(Event{Kind: RequestFailed, Slot: m.Name, Instance: m.Instance})
	} else if s := p.static(m); s != nil {
		p.observeStatic(s, RequestFailed)
	}
	p.probeNow(m)
}

// Suspect probes a member now: a deadline, or a break in the middle of an answer,
// is no proof of its death.
func (p *Pool) Suspect(m *Member) {
	p.slots.Lock()
	defer p.slots.Unlock()
	p.probeNow(m)
}

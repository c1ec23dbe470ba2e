package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// ErrStopUnconfirmed: whether the replica is gone could not be confirmed; its slot
// stays reserved.
var ErrStopUnconfirmed = errors.New("the stop could not be confirmed, so the slot stays reserved")

// LaunchError is a launch command that failed.
type LaunchError struct {
	Slot string
	Err  error
}

// Error says why.
func (e *LaunchError) Error() string { return fmt.Sprintf("launch failed: %v", e.Err) }

// Unwrap is the cause.
func (e *LaunchError) Unwrap() error { return e.Err }

// Launch reserves a slot, the next one if the name is "", and waits until its
// launch command was accepted; the launch goes on when ctx ends. Errors:
// ErrPoolFull; pd.CodeDraining; pd.CodeNotFound and pd.CodeConflict for a chosen
// slot; a *LaunchError.
func (p *Pool) Launch(ctx context.Context, slot string) (ReplicaView, error) {
	s, launched, err := p.order(slot, true)
	if err != nil {
		return ReplicaView{}, err
	}
	select {
	case <-launched.done:
	case <-ctx.Done():
		return ReplicaView{}, context.Cause(ctx)
	}
	if launched.err != nil {
		return ReplicaView{}, &LaunchError{Slot: s.Name, Err: launched.err}
	}
	return ReplicaView{Name: s.Name, URL: s.URL(), Phase: Starting.Phase(), Owned: true}, nil
}

// order orders a launch and gives what tells its end.
func (p *Pool) order(slot string, operator bool) (SlotView, *outcome, error) {
	p.slots.Lock()
	defer p.slots.Unlock()
	var (
		s       SlotView
		effects []Effect
		err     error
	)
	if slot == "" {
		s, effects, err = p.machine.Launch(operator, time.Now())
	} else {
		effects, err = p.machine.Step(Event{Kind: LaunchOrdered, Slot: slot}, time.Now())
		s, _ = p.machine.Slot(slot)
	}
	if err != nil {
		return SlotView{}, nil, err
	}
	launched := newOutcome()
	p.launching[s.Instance] = launched
	p.do(effects)
	return s, launched, nil
}

func (p *Pool) startLaunch(e Effect) {
	l := p.launchOf(e)
	if s, _ := p.machine.Slot(e.Slot); s.Strikes > 0 {
		p.stats.Replaced++
	}
	p.log.Info("launching replica", "slot", e.Slot, "instance", e.Instance, "url", l.Slot.URL())
	unwritten := p.stateErr
	p.tasks.Go(func() {
		if unwritten != nil {
			p.launched(l, fmt.Errorf("the state file cannot be written: %w", unwritten))
			return
		}
		p.launched(l, p.launcher.Launch(p.base, l, func(err error) { p.processExited(l, err) }))
	})
}

// launched takes in how a launch command ended.
func (p *Pool) launched(l Launch, err error) {
	e := Event{Kind: LaunchAccepted, Slot: l.Slot.Name, Instance: l.Instance}
	p.slots.Lock()
	defer p.slots.Unlock()
	switch {
	case err == nil:
		p.stats.LaunchesAccepted++
	case errors.Is(err, ErrLaunchUncertain):
		p.stats.LaunchesUncertain++
		e.Kind = LaunchUncertain
	default:
		p.stats.LaunchesRefused++
		e.Kind = LaunchRefused
	}
	if err != nil {
		p.log.Error("launch failed", "slot", e.Slot, "instance", e.Instance, "error", err)
	}
	// Who waits is told after the step, so that what he then asks shows it.
	p.factLocked(e)
	if o := p.launching[l.Instance]; o != nil {
		delete(p.launching, l.Instance)
		o.settle(err)
	}
	if ended, ok := p.exited[l.Instance]; ok {
		delete(p.exited, l.Instance)
		if err == nil {
			p.exitedLocked(l, ended)
		}
	}
}

func (p *Pool) processExited(l Launch, err error) {
	p.slots.Lock()
	defer p.slots.Unlock()
	if s, ok := p.machine.Slot(l.Slot.Name); ok && s.Instance == l.Instance && s.State == Launching {
		p.exited[l.Instance] = err
		return
	}
	p.exitedLocked(l, err)
}

func (p *Pool) exitedLocked(l Launch, err error) {
	p.log.Error("replica's process ended", "slot", l.Slot.Name, "instance", l.Instance, "error", err)
	p.factLocked(Event{Kind: Exited, Slot: l.Slot.Name, Instance: l.Instance})
}

// launchInitial adopts what a restart found and launches what is missing, all at
// once: three replicas cost one load of a model.
func (p *Pool) launchInitial() {
	p.adopt()
	p.slots.Lock()
	missing := p.options.Options.Initial
	for _, s := range p.machine.Slots() {
		if s.State.listed() || s.State == Launching {
			missing--
		}
	}
	p.slots.Unlock()
	for range missing {
		// In the order of the slots: each reservation is made before the next one.
		if _, _, err := p.order("", false); err != nil {
			p.log.Error("initial launch", "error", err)
			return
		}
	}
}

// Retire drains and stops a replica, or tries again to stop what an unconfirmed
// slot may hold, and waits for the end; concurrent callers share one retirement,
// which goes on when ctx ends. Errors: pd.CodeNotFound; pd.CodeConflict for a
// replica that this router did not launch; ErrStopUnconfirmed.
func (p *Pool) Retire(ctx context.Context, name string) error {
	o, err := p.orderRetirement(name)
	if err != nil || o == nil {
		return err
	}
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// orderRetirement gives what tells its end, nil if it has ended already.
func (p *Pool) orderRetirement(name string) (*outcome, error) {
	p.slots.Lock()
	defer p.slots.Unlock()
	if slices.ContainsFunc(p.statics, func(s *static) bool { return s.member.Name == name }) {
		return nil, pd.Errorf(pd.CodeConflict, "retire replica", "replica %s was not launched by this router", name)
	}
	if p.recorded(name) {
		return nil, pd.Errorf(pd.CodeConflict, "retire replica", "%s is a record of another configuration, whose commands are not known; release it with force=true once it is gone", name)
	}
	s, ok := p.machine.Slot(name)
	if !ok || !s.State.Reserved() {
		return nil, pd.Errorf(pd.CodeNotFound, "retire replica", "there is no replica %q", name)
	}
	// The waiter is there before the step, which may be the end already.
	var o *outcome
	if s.Instance != "" {
		o = p.retirement(s.Instance)
	}
	if err := p.step(Event{Kind: RemoveOrdered, Slot: name}); err != nil {
		return nil, err
	}
	return o, nil
}

// retirement is what all who wait for the end of an instance share.
func (p *Pool) retirement(instance string) *outcome {
	o := p.retiring[instance]
	if o == nil {
		o = newOutcome()
		p.retiring[instance] = o
	}
	return o
}

// retired tells who waits how the retirement of an instance has ended.
func (p *Pool) retired(e Effect) {
	var err error
	if s, ok := p.machine.Slot(e.Slot); ok && s.State == Unconfirmed {
		err = fmt.Errorf("%w: slot %s is %s", ErrStopUnconfirmed, e.Slot, s.Reason)
	}
	if o := p.retiring[e.Instance]; o != nil && e.Instance != "" {
		delete(p.retiring, e.Instance)
		o.settle(err)
	}
	if s, ok := p.machine.Slot(e.Slot); ok {
		p.log.Info("replica is retired", "slot", e.Slot, "instance", e.Instance, "state", s.State.String(), "reason", s.Reason, "strikes", s.Strikes)
	}
}

func (p *Pool) recorded(name string) bool {
	return slices.ContainsFunc(p.kept, func(e StateEntry) bool { return e.Slot == name })
}

// Release frees an unconfirmed slot, or a record of another configuration, by the
// operator's word that nothing is left of it. Errors: pd.CodeNotFound, and
// pd.CodeConflict for a slot that is not unconfirmed.
func (p *Pool) Release(name string) error {
	p.slots.Lock()
	defer p.slots.Unlock()
	if p.recorded(name) {
		kept, effects, err := p.machine.ReleaseRecord(p.kept, name, time.Now())
		if err != nil {
			return err
		}
		p.kept = kept
		p.do(effects)
	} else if err := p.step(Event{Kind: ForceReleased, Slot: name}); err != nil {
		return err
	}
	p.log.Warn("slot released by the operator's word", "slot", name)
	return nil
}

// stopReplica runs the stop and its confirmation: the command succeeds and then
// the address is silent.
func (p *Pool) stopReplica(l Launch) {
	e := Event{Kind: StopConfirmed, Slot: l.Slot.Name, Instance: l.Instance}
	err := p.launcher.Stop(p.base, l)
	if err == nil {
		err = p.silent(l.Slot, l.Grace)
	}
	p.slots.Lock()
	defer p.slots.Unlock()
	if err != nil {
		e.Kind = StopUnconfirmed
		p.stats.StopsUnconfirmed++
		p.log.Error("stop is not confirmed; the slot stays reserved", "slot", e.Slot, "instance", e.Instance, "error", err)
	} else {
		p.stats.StopsConfirmed++
	}
	p.factLocked(e)
}

// Log is the end of a slot's start-up log, at most limit bytes. The error is a
// slot that does not exist (pd.CodeNotFound), or what reading it ran into.
func (p *Pool) Log(ctx context.Context, name string, limit int) ([]byte, error) {
	p.slots.Lock()
	s, ok := p.machine.Slot(name)
	l := Launch{Slot: s.Slot, Host: p.hosts[name], Instance: s.Instance}
	p.slots.Unlock()
	if !ok {
		return nil, pd.Errorf(pd.CodeNotFound, "read log", "there is no launch slot %q", name)
	}
	return p.launcher.Log(ctx, l, limit)
}

// Reload takes in a new configuration with its options, of which only the
// ceiling is used. What is no longer declared is drained, and nothing changes
// after an error.
func (p *Pool) Reload(c *Config, o Options) error {
	p.slots.Lock()
	defer p.slots.Unlock()
	fresh, err := p.freshStatics(c)
	if err != nil {
		return err
	}
	for _, s := range c.Replicas {
		if held, ok := p.machine.Slot(s.Name); ok && held.State.occupied() {
			return pd.Errorf(pd.CodeConflict, "reload", "the name of replica %s is that of a launched one; delete it first", s.Name)
		}
	}
	effects, err := p.machine.Reload(c.Slots, o.Ceiling, p.kept, time.Now())
	if err != nil {
		return err
	}
	p.hosts = hostsOf(c, p.hosts)
	p.replaceStatics(c, fresh)
	p.do(effects)
	return nil
}

// Shutdown retires every replica that this router launched, launches no more and
// waits for the end. Its time is bounded by those of a launch command, a drain
// and a stop. The error names what could not be confirmed.
func (p *Pool) Shutdown(ctx context.Context) error {
	p.slots.Lock()
	var all []*outcome
	for _, s := range p.machine.Slots() {
		if s.Instance == "" || s.State == Unconfirmed {
			continue
		}
		all = append(all, p.retirement(s.Instance))
	}
	p.do(p.machine.Shutdown(time.Now()))
	p.slots.Unlock()
	var failed []error
	for _, o := range all {
		select {
		case <-o.done:
			failed = append(failed, o.err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return errors.Join(failed...)
}

// adopt asks every held slot once, all at the same time.
func (p *Pool) adopt() {
	p.slots.Lock()
	var held []*prober
	for _, s := range p.machine.Slots() {
		if pr := p.probers[s.Instance]; pr != nil && s.State == Unconfirmed {
			held = append(held, pr)
		}
	}
	p.slots.Unlock()
	for _, pr := range held {
		select {
		case <-pr.asked:
		case <-p.base.Done():
		}
	}
}

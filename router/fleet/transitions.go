package fleet

import (
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// step is the table of doc.go.
func (m *Machine) step(s *slotState, k EventKind, now time.Time) ([]Effect, error) {
	if s.reason == NotDeclaredReason && k.order() && k != TimePassed {
		// The slot's own commands know nothing of what another configuration
		// started there.
		return nil, pd.Errorf(pd.CodeConflict, "step slot", "slot %s is held by a record of another configuration; release the record", s.Name)
	}
	switch k {
	case TimePassed:
		switch s.state {
		case Starting, Ready, Failed, Draining, Backoff:
			return m.pass(s, now), nil
		}
		return nil, refuse(s, k)
	case RemoveOrdered:
		return m.remove(s, now)
	}
	switch s.state {
	case Free, Abandoned:
		if k == LaunchOrdered {
			if err := m.mayLaunch(); err != nil {
				return nil, err
			}
			s.strikes = 0
			return m.launch(s, now), nil
		}
	case Launching:
		switch k {
		case LaunchAccepted:
			return m.start(s, now), nil
		case LaunchRefused:
			return m.vacate(s, now), nil
		case LaunchUncertain:
			return m.stop(s, LaunchUnconfirmedReason, now), nil
		}
	case Starting:
		switch k {
		case ProbeOK:
			return m.ready(s, now), nil
		case ProbeAnswered, ProbeFailed, RequestFailed:
			return nil, nil
		case Exited:
			return m.stop(s, StopUnconfirmedReason, now), nil
		}
	case Ready:
		switch k {
		case ProbeOK:
			s.failures = 0
			m.observe(s.Name, true, now)
			m.forgive(s, now)
			return nil, nil
		case ProbeAnswered, ProbeFailed:
			if s.failures++; s.failures < failuresMax {
				return nil, nil
			}
			return m.fail(s, now), nil
		case RequestFailed, Exited:
			return m.fail(s, now), nil
		}
	case Failed:
		switch k {
		case ProbeOK:
			return m.ready(s, now), nil
		case ProbeAnswered, ProbeFailed, RequestFailed, Exited:
			return nil, nil
		}
	case Draining:
		switch k {
		case Drained:
			return m.stop(s, StopUnconfirmedReason, now), nil
		case ProbeOK, ProbeAnswered, ProbeFailed, RequestFailed, Exited:
			return nil, nil
		}
	case Stopping:
		switch k {
		case StopConfirmed:
			return m.vacate(s, now), nil
		case StopUnconfirmed:
			return m.unconfirm(s, s.stopReason, now), nil
		case ProbeOK, ProbeAnswered, ProbeFailed, RequestFailed, Exited:
			return nil, nil
		}
	case Unconfirmed:
		switch k {
		case ProbeOK, ProbeAnswered:
			if s.reason != UnreachableReason || m.stopping || s.leaving {
				return nil, nil
			}
			effects := m.start(s, now)
			if k == ProbeOK {
				effects = append(effects, m.ready(s, now)...)
			}
			return effects, nil
		case ProbeFailed:
			return nil, nil
		case ForceReleased:
			s.replacing, s.replacement = false, false
			return m.vacate(s, now), nil
		}
	}
	return nil, refuse(s, k)
}

func refuse(s *slotState, k EventKind) error {
	return pd.Errorf(pd.CodeConflict, "step slot", "slot %s is %s and takes no %s", s.Name, s.state, k)
}

func (m *Machine) due(s *slotState) time.Time {
	switch s.state {
	case Starting, Draining, Backoff:
		return s.due
	case Failed:
		if m.policy.ReplaceAfter == 0 || m.stopping {
			return time.Time{}
		}
		due := s.due
		if !m.guard.since.IsZero() {
			if held := m.guard.since.Add(guardFactor * m.policy.ReplaceAfter); held.After(due) {
				due = held
			}
		}
		return due
	}
	return time.Time{}
}

// pass does what is due.
func (m *Machine) pass(s *slotState, now time.Time) []Effect {
	if s.state == Ready {
		m.forgive(s, now)
		return nil
	}
	due := m.due(s)
	if due.IsZero() || now.Before(due) {
		return nil
	}
	switch s.state {
	case Starting:
		return m.stop(s, StopUnconfirmedReason, now)
	case Failed:
		s.replacing = true
		return m.drain(s, now)
	case Draining:
		return m.stop(s, StopUnconfirmedReason, now)
	case Backoff:
		s.replacement = true
		return m.launch(s, now)
	}
	return nil
}

// remove retires whatever is in the slot, for good.
func (m *Machine) remove(s *slotState, now time.Time) ([]Effect, error) {
	switch s.state {
	case Free, Abandoned:
		return nil, refuse(s, RemoveOrdered)
	case Launching:
		s.replacing, s.replacement, s.removing = false, false, true
		return nil, nil
	case Backoff:
		s.replacing, s.replacement = false, false
		return m.vacate(s, now), nil
	case Starting, Ready, Failed:
		s.replacing, s.replacement = false, false
		return m.drain(s, now), nil
	case Unconfirmed:
		return m.stop(s, s.reason, now), nil
	}
	// Draining and Stopping: who asks waits for the retirement that runs.
	s.replacing, s.replacement = false, false
	return nil, nil
}

func (s *slotState) enter(state State, now time.Time) {
	s.state, s.since, s.due = state, now, time.Time{}
}

func (s *slotState) effect(k EffectKind) Effect {
	return Effect{Kind: k, Slot: s.Name, Instance: s.instance}
}

// launch reserves and orders, in this order: what exists is in the file.
func (m *Machine) launch(s *slotState, now time.Time) []Effect {
	s.enter(Launching, now)
	s.instance, s.serverID = m.newInstance(), ""
	s.launchedAt, s.failures, s.everReady, s.removing, s.replacing = now, 0, false, false, false
	return []Effect{s.effect(Persist), s.effect(StartLaunch)}
}

func (m *Machine) start(s *slotState, now time.Time) []Effect {
	s.enter(Starting, now)
	s.reason = ""
	s.due = now.Add(m.policy.LaunchTimeout)
	effects := []Effect{s.effect(Persist), s.effect(Register)}
	if s.removing {
		s.removing = false
		effects = append(effects, m.drain(s, now)...)
	}
	return effects
}

func (m *Machine) ready(s *slotState, now time.Time) []Effect {
	first := !s.everReady
	s.enter(Ready, now)
	s.failures, s.everReady, s.readyAt = 0, true, now
	m.observe(s.Name, true, now)
	if first {
		return []Effect{s.effect(Persist), s.effect(MarkReady)}
	}
	return []Effect{s.effect(MarkReady)}
}

// forgive forgets strikes after a long enough time of service.
func (m *Machine) forgive(s *slotState, now time.Time) {
	if s.strikes > 0 && now.Sub(s.readyAt) >= m.policy.Stability {
		s.strikes = 0
	}
}

func (m *Machine) fail(s *slotState, now time.Time) []Effect {
	m.forgive(s, now)
	s.enter(Failed, now)
	s.due = now.Add(m.policy.ReplaceAfter)
	m.observe(s.Name, false, now)
	return []Effect{s.effect(MarkFailed)}
}

func (m *Machine) drain(s *slotState, now time.Time) []Effect {
	s.enter(Draining, now)
	s.due = now.Add(m.policy.DrainTimeout)
	m.guard.forget(s.Name)
	return []Effect{s.effect(StartDrain)}
}

// stop ends an instance; otherwise is what the slot is if that is not confirmed.
func (m *Machine) stop(s *slotState, otherwise Reason, now time.Time) []Effect {
	var effects []Effect
	if s.state.listed() {
		effects = append(effects, s.effect(Deregister))
		m.guard.forget(s.Name)
	}
	s.enter(Stopping, now)
	s.reason, s.stopReason = "", otherwise
	return append(effects, s.effect(StartStop))
}

func (m *Machine) unconfirm(s *slotState, r Reason, now time.Time) []Effect {
	s.enter(Unconfirmed, now)
	s.reason, s.replacing, s.replacement, s.removing = r, false, false, false
	return []Effect{s.effect(Persist), s.effect(Retired)}
}

// vacate takes in that nothing of the instance is left. A loss is one of a
// replica that was to be replaced, or of a replacement that did not come up.
func (m *Machine) vacate(s *slotState, now time.Time) []Effect {
	// Persist and Retired speak of the instance that has gone.
	effects := []Effect{s.effect(Persist), s.effect(Retired)}
	lost := (s.replacing || s.replacement) && !m.stopping
	s.instance, s.reason, s.removing, s.replacing, s.replacement = "", "", false, false, false
	if !lost {
		s.enter(Free, now)
		return effects
	}
	if s.strikes++; s.strikes >= m.policy.Strikes {
		s.enter(Abandoned, now)
		return effects
	}
	s.enter(Backoff, now)
	s.due = now.Add(m.policy.Backoff << (s.strikes - 1))
	return effects
}

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// maxStartingInterval bounds how long a replica that is up waits to be noticed
// where the health interval is long.
const maxStartingInterval = 5 * time.Second

// prober asks one replica for its health, at its own pace: one that hangs delays
// nobody else's.
type prober struct {
	// constant
	address string
	trust   *edge.Trust
	// slot and instance are of a launched replica, of the file it is the static.
	slot, instance string
	static         *static
	end            context.CancelFunc
	now            chan struct{}
	// asked is closed after the first probe.
	asked chan struct{}

	// owned by the prober's goroutine
	identified bool
}

// static is a replica of the file.
type static struct {
	config Static
	member *Member
	// guarded by Pool.slots
	failures int
}

func (s *static) key() string { return "replica " + s.member.Name }

// answer is what a probe came to.
type answer int

const (
	answeredOK answer = iota + 1
	answeredOther
	silent
	// notAsked: the router itself could not ask, which says nothing of the replica.
	notAsked
)

// reconcile starts and ends probers so that there is one for each replica in the
// table and for each slot that may be adopted.
func (p *Pool) reconcile() {
	if p.base.Err() != nil {
		return
	}
	want := map[string]bool{}
	for _, s := range p.statics {
		want[s.key()] = true
		p.ensureProber(s.key(), func() *prober { return &prober{address: s.member.Address, trust: s.member.Trust, static: s} })
	}
	for _, s := range p.machine.Slots() {
		if !s.State.listed() && (s.State != Unconfirmed || s.Reason != UnreachableReason) {
			continue
		}
		want[s.Instance] = true
		p.ensureProber(s.Instance, func() *prober {
			return &prober{address: hostPort(s.Address, s.Port), slot: s.Name, instance: s.Instance}
		})
	}
	for key := range p.probers {
		if !want[key] {
			p.endProber(key)
		}
	}
}

func (p *Pool) ensureProber(key string, fresh func() *prober) {
	if p.probers[key] != nil {
		return
	}
	pr := fresh()
	ctx, end := context.WithCancel(p.base)
	pr.end, pr.now, pr.asked = end, make(chan struct{}, 1), make(chan struct{})
	p.probers[key] = pr
	p.tasks.Go(func() { p.runProber(ctx, pr) })
}

func (p *Pool) endProber(key string) {
	p.probers[key].end()
	delete(p.probers, key)
}

// probeNow makes a replica's prober ask without waiting.
func (p *Pool) probeNow(m *Member) {
	key := m.Instance
	if !m.Owned {
		s := p.static(m)
		if s == nil {
			return
		}
		key = s.key()
	}
	if pr := p.probers[key]; pr != nil {
		select {
		case pr.now <- struct{}{}:
		default:
		}
	}
}

func (p *Pool) runProber(ctx context.Context, pr *prober) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			if first {
				close(pr.asked)
			}
			return
		case <-pr.now:
		case <-timer.C:
		}
		a := p.ask(ctx, pr)
		if a == answeredOK && pr.instance != "" {
			p.identify(ctx, pr, &a)
		}
		if ctx.Err() == nil {
			p.takeIn(pr, a)
		}
		if first {
			close(pr.asked)
		}
		timer.Reset(p.pause(pr))
	}
}

// pause is the time to the next probe, with some jitter so that replicas are not
// all asked at once.
func (p *Pool) pause(pr *prober) time.Duration {
	interval := p.options.Options.HealthInterval
	p.slots.Lock()
	if s, ok := p.machine.Slot(pr.slot); ok && s.State == Starting {
		interval = max(50*time.Millisecond, min(maxStartingInterval, interval, p.options.Options.LaunchTimeout))
	}
	p.slots.Unlock()
	return interval - time.Duration(rand.Int64N(int64(interval)/10+1))
}

// get sends one GET on a connection of its own.
func (p *Pool) get(ctx context.Context, address string, trust *edge.Trust, path string) (*edge.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, p.options.Options.ConnectTimeout)
	defer cancel()
	return p.probes.Do(ctx, edge.Request{Method: "GET", Target: path, Address: address, Trust: trust})
}

func (p *Pool) ask(ctx context.Context, pr *prober) answer {
	r, err := p.get(ctx, pr.address, pr.trust, "/health")
	switch {
	case err == nil && r.Status == 200:
		return answeredOK
	case err == nil:
		return answeredOther
	case ownFault(err):
		p.log.Error("cannot probe for want of the router's own resources", "address", pr.address, "error", err)
		return notAsked
	}
	return silent
}

// ownFault says that a dial failed for reasons of this process or machine.
func ownFault(err error) bool {
	return slices.ContainsFunc([]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EADDRNOTAVAIL}, func(e error) bool { return errors.Is(err, e) })
}

// takeIn gives an answer to whom it concerns.
func (p *Pool) takeIn(pr *prober, a answer) {
	p.slots.Lock()
	defer p.slots.Unlock()
	e := Event{Slot: pr.slot, Instance: pr.instance}
	switch a {
	case answeredOK:
		p.stats.ProbesOK++
		e.Kind = ProbeOK
	case answeredOther:
		p.stats.ProbesAnswered++
		e.Kind = ProbeAnswered
	case silent:
		p.stats.ProbesFailed++
		e.Kind = ProbeFailed
	default:
		p.stats.ProbesSkipped++
		return
	}
	if pr.static != nil {
		p.observeStatic(pr.static, e.Kind)
		return
	}
	before, _ := p.machine.Slot(pr.slot)
	p.factLocked(e)
	if after, ok := p.machine.Slot(pr.slot); ok && before.State == Unconfirmed && after.State.listed() {
		p.stats.Adopted++
		p.log.Info("replica adopted", "slot", pr.slot, "instance", pr.instance, "phase", after.State.Phase())
	}
}

// identify learns what a replica calls this start of itself, and refuses a
// stranger at the address of a recorded one: adopted, he would be stopped one day.
func (p *Pool) identify(ctx context.Context, pr *prober, a *answer) {
	p.slots.Lock()
	s, ok := p.machine.Slot(pr.slot)
	p.slots.Unlock()
	held := s.State == Unconfirmed
	if !ok || s.Instance != pr.instance || pr.identified && !held {
		return
	}
	id := p.serverID(ctx, pr.address)
	if held && s.ServerID != "" && id != "" && id != s.ServerID {
		p.log.Warn("another server answers at the address of a recorded replica; it is not adopted", "slot", s.Name, "recorded", s.ServerID, "found", id)
		*a = notAsked
		return
	}
	pr.identified = true
	if id == "" {
		return
	}
	p.slots.Lock()
	defer p.slots.Unlock()
	if p.machine.Identify(pr.slot, pr.instance, id) {
		p.save()
	}
}

// serverID is "" where a replica does not tell one.
func (p *Pool) serverID(ctx context.Context, address string) string {
	r, err := p.get(ctx, address, nil, "/metrics/json")
	if err != nil || r.Status != 200 {
		return ""
	}
	var found struct {
		ServerID string `json:"server_id"`
	}
	if json.Unmarshal(r.Body, &found) != nil {
		return ""
	}
	return found.ServerID
}

// silentInterval is how often a stopped replica's address is tried.
const silentInterval = 500 * time.Millisecond

// silent waits until the slot's address refuses connections, twice running. Any
// HTTP answer is a sign of life, and a time-out proves nothing.
func (p *Pool) silent(s Slot, grace time.Duration) error {
	address := hostPort(s.Address, s.Port)
	pause := time.NewTicker(min(silentInterval, max(grace/10, time.Millisecond)))
	defer pause.Stop()
	deadline := time.Now().Add(grace)
	var last error
	for refused := 0; ; {
		_, err := p.get(p.base, address, nil, "/health")
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			if refused++; refused == 2 {
				return nil
			}
		case err == nil:
			refused, last = 0, errors.New("it still answers")
		default:
			refused, last = 0, err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not silent within %v: %w", address, grace, last)
		}
		select {
		case <-pause.C:
		case <-p.base.Done():
			return context.Cause(p.base)
		}
	}
}

// static finds the replica of the file that a member is, nil if it is gone.
func (p *Pool) static(m *Member) *static {
	if i := slices.IndexFunc(p.statics, func(s *static) bool { return s.member == m }); i >= 0 {
		return p.statics[i]
	}
	return nil
}

// observeStatic takes in a fact about a replica of the file.
func (p *Pool) observeStatic(s *static, k EventKind) {
	p.table.Lock()
	was := s.member.ready
	ready := was
	switch k {
	case ProbeOK:
		s.failures, ready = 0, true
	case RequestFailed:
		s.failures, ready = failuresMax, false
	default:
		if s.failures++; s.failures >= failuresMax {
			ready = false
		}
	}
	p.table.SetReady(s.member, ready)
	p.table.Unlock()
	if was != ready {
		p.log.Info("replica of the file changed", "replica", s.member.Name, "ready", ready)
	}
	if k == ProbeOK || !ready {
		p.machine.Observe(s.member.Name, ready, time.Now())
		p.rearm() // the guard may hold replacements no longer
	}
}

// freshStatic makes the parts of a replica of the file that can fail.
func (p *Pool) freshStatic(c Static) (*static, error) {
	var trust *edge.Trust
	if c.Scheme == "https" {
		if p.options.TrustOf == nil {
			return nil, fmt.Errorf("replica %s: https is not set up", c.Name)
		}
		var err error
		if trust, err = p.options.TrustOf(c); err != nil {
			return nil, fmt.Errorf("replica %s: %w", c.Name, err)
		}
	}
	m := NewMember(c.Name, c.URL(), "")
	m.Trust = trust
	return &static{config: c, member: m}, nil
}

func (p *Pool) addStatic(c Static) error {
	s, err := p.freshStatic(c)
	if err != nil {
		return err
	}
	p.enter(s)
	return nil
}

func (p *Pool) enter(s *static) {
	p.statics = append(p.statics, s)
	p.table.Lock()
	defer p.table.Unlock()
	if err := p.table.Add(s.member); err != nil {
		panic(fmt.Sprintf("fleet: add %s: %v", s.member.Name, err)) // Parse refuses clashing names
	}
}

// freshStatics are the replicas of a new file that are not there as they are.
func (p *Pool) freshStatics(c *Config) ([]*static, error) {
	var out []*static
	var failed []error
	for _, r := range c.Replicas {
		if slices.ContainsFunc(p.statics, func(s *static) bool { return s.config == r }) {
			continue
		}
		s, err := p.freshStatic(r)
		failed = append(failed, err)
		out = append(out, s)
	}
	return out, errors.Join(failed...)
}

// replaceStatics drops what a new file does not have; requests that run there
// end on the member itself.
func (p *Pool) replaceStatics(c *Config, fresh []*static) {
	p.statics = slices.DeleteFunc(p.statics, func(s *static) bool {
		if slices.Contains(c.Replicas, s.config) {
			return false
		}
		p.table.Lock()
		p.table.Remove(s.member)
		p.table.Unlock()
		p.machine.guard.forget(s.member.Name)
		return true
	})
	for _, s := range fresh {
		p.enter(s)
	}
}

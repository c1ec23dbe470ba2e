package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// trouble is one thing that was done to a replica: turns on it may fail while it
// lasts.
type trouble struct {
	kind     string
	fails    bool
	replica  string
	from, to time.Time
}

// bringer brings trouble to slots, to some of them at a time.
type bringer struct {
	rig *rig

	mu   sync.Mutex
	past []trouble
}

// kinds are what can happen to a replica. Each does it, and returns once it is over
// or once the router has to see to the rest.
var kinds = []struct {
	name string
	// far: only on a host that can be cut off.
	far bool
	// fails: turns that are in flight then may fail. After all else the replica
	// finishes what it has begun.
	fails bool
	// lasts: the replica never serves again.
	lasts bool
	do    func(b *bringer, ctx context.Context, s slot, r *rand.Rand)
}{
	{"killed", false, true, true, func(b *bringer, _ context.Context, s slot, _ *rand.Rand) { b.signal(s, syscall.SIGKILL) }},
	{"crashed", false, true, true, func(_ *bringer, ctx context.Context, s slot, _ *rand.Rand) { order(ctx, s.url+"/crash") }},
	{"stopped for a while", false, true, false, func(b *bringer, ctx context.Context, s slot, r *rand.Rand) {
		b.signal(s, syscall.SIGSTOP)
		wait(ctx, between(r, 50*time.Millisecond, time.Second))
		b.signal(s, syscall.SIGCONT)
	}},
	{"stopped for good", false, true, true, func(b *bringer, _ context.Context, s slot, _ *rand.Rand) { b.signal(s, syscall.SIGSTOP) }},
	{"not ready for a while", false, false, false, func(_ *bringer, ctx context.Context, s slot, r *rand.Rand) {
		order(ctx, s.url+"/toggle")
		wait(ctx, between(r, 50*time.Millisecond, 700*time.Millisecond))
		order(ctx, s.url+"/toggle")
	}},
	{"not ready for good", false, false, true, func(_ *bringer, ctx context.Context, s slot, _ *rand.Rand) { order(ctx, s.url+"/toggle") }},
	{"accepts no more", false, false, true, func(_ *bringer, ctx context.Context, s slot, _ *rand.Rand) { order(ctx, s.url+"/silence") }},
	{"answers nothing", false, true, true, func(_ *bringer, ctx context.Context, s slot, _ *rand.Rand) { order(ctx, s.url+"/hang") }},
	{"deleted", false, false, false, func(b *bringer, _ context.Context, s slot, _ *rand.Rand) { b.rig.admin("DELETE", "/replicas/"+s.name) }},
	{"cut off", true, true, false, func(b *bringer, ctx context.Context, s slot, r *rand.Rand) {
		s.host.Network.CutOff(b.rig.t)
		wait(ctx, between(r, 100*time.Millisecond, 6*time.Second))
		s.host.Network.Heal(b.rig.t)
	}},
}

func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)))
}

// wait passes time, less if the context ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// order tells a stub something. It may be in trouble already, and then hears
// nothing.
func order(ctx context.Context, url string) {
	ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, "POST", url, http.NoBody)
	if err != nil {
		return
	}
	q.Close = true
	if a, err := http.DefaultTransport.RoundTrip(q); err == nil {
		a.Body.Close()
	}
}

func (b *bringer) signal(s slot, sig syscall.Signal) {
	if pid := b.rig.process(s); pid != 0 {
		_ = syscall.Kill(-pid, sig) // it may have ended since
	}
}

// run troubles a slot now and then until the context ends, and lets the router and
// its operator put it right before the next time.
func (b *bringer) run(ctx context.Context, s slot, r *rand.Rand) {
	for {
		wait(ctx, between(r, 200*time.Millisecond, 3*time.Second))
		if ctx.Err() != nil {
			return
		}
		k := kinds[r.IntN(len(kinds))]
		if k.far && s.host == nil {
			continue
		}
		t := trouble{kind: k.name, fails: k.fails, replica: s.name, from: time.Now()}
		at := b.begin(t)
		k.do(b, ctx, s, r)
		if k.lasts {
			// A signal takes a moment; until then it looks healthy.
			for deadline := time.Now().Add(10 * time.Second); healthy(s.url) && time.Now().Before(deadline); {
				wait(ctx, time.Millisecond)
			}
		}
		b.repair(s)
		b.mu.Lock()
		b.past[at].to = time.Now()
		b.mu.Unlock()
	}
}

func (b *bringer) begin(t trouble) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.past = append(b.past, t)
	return len(b.past) - 1
}

// repair waits until the slot's replica serves again. What the router leaves to an
// operator is ordered: a second try to stop, and a launch.
func (b *bringer) repair(s slot) {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-again.C {
		v, err := b.rig.view()
		if err != nil {
			continue
		}
		ready := false
		for _, m := range v.Replicas {
			ready = ready || m.Name == s.name && m.Phase == "ready"
		}
		// What was done may not be noticed yet: the replica itself must say so, too.
		if ready && healthy(s.url) {
			return
		}
		if _, ok := v.Capacity.Unconfirmed[s.name]; ok {
			b.rig.admin("DELETE", "/replicas/"+s.name)
		}
		for _, free := range append(v.Capacity.FreeSlots, v.Capacity.Abandoned...) {
			if free == s.name {
				b.rig.admin("POST", "/replicas?slot="+s.name)
			}
		}
	}
	b.rig.t.Errorf("%s does not serve again", s.name)
}

func healthy(url string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, "GET", url+"/health", http.NoBody)
	if err != nil {
		return false
	}
	q.Close = true
	a, err := http.DefaultTransport.RoundTrip(q)
	if err != nil {
		return false
	}
	a.Body.Close()
	return a.StatusCode == 200
}

// during is the last trouble that a replica was in during a turn, if any.
func (b *bringer) during(t turn, replica string) (trouble, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range slices.Backward(b.past) {
		if p.replica == replica && !p.from.After(t.end) && (p.to.IsZero() || !p.to.Before(t.begin)) {
			return p, true
		}
	}
	return trouble{}, false
}

func clock(t time.Time) string { return t.Format("15:04:05.000") }

// of is all the trouble of one replica, for people.
func (b *bringer) of(replica string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out strings.Builder
	for _, p := range b.past {
		if p.replica == replica {
			fmt.Fprintf(&out, "[%s from %s to %s]", p.kind, clock(p.from), clock(p.to))
		}
	}
	return out.String()
}

func (b *bringer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	count := map[string]int{}
	for _, p := range b.past {
		count[p.kind]++
	}
	return fmt.Sprint(count)
}

package fleet

import "time"

// guard suspects the router's own network: when all replicas go down at about the
// same time, it is more likely that the router lost its link than that all of them
// died, and killing a healthy fleet would be the worst answer. One replica alone is
// no evidence of either.
type guard struct {
	up   map[string]bool
	down map[string]time.Time
	// since is when the suspicion began; zero without one.
	since time.Time
}

// observe takes in whether a replica serves. window is how far apart probes may
// notice one loss of the link.
func (g *guard) observe(name string, ready bool, now time.Time, window time.Duration) {
	if ready {
		delete(g.down, name)
		g.up[name] = true
		g.since = time.Time{}
		return
	}
	if !g.up[name] {
		return // it was down before, or never up
	}
	delete(g.up, name)
	g.down[name] = now
	if len(g.up) > 0 {
		return
	}
	together := 0
	for _, at := range g.down {
		if now.Sub(at) <= window {
			together++
		}
	}
	if together >= 2 {
		g.since = now
	}
}

// forget drops a replica that is being retired.
func (g *guard) forget(name string) {
	delete(g.up, name)
	delete(g.down, name)
}

func (g *guard) holds(now time.Time, limit time.Duration) bool {
	return !g.since.IsZero() && now.Sub(g.since) < limit
}

package pdrouter

import (
	"slices"
	"sync"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
)

// The results of reading pd.json again.
const (
	reloadApplied = "applied"
	reloadRefused = "refused"
)

// reload is what came of reading pd.json again, as /health shows it.
type reload struct {
	Result string    `json:"result"`
	At     time.Time `json:"at"`
	// Text lists the change, or says why it was refused.
	Text string `json:"text"`
}

// polling knows whether poll loops run, and the configuration that they are of.
type polling struct {
	mu sync.Mutex
	// guarded by mu
	on     bool
	config *config.Config // nil until it was first changed
	last   *reload
	counts map[string]int64
}

func (p *polling) begin(nodes []*node, start func(*node)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = true
	for _, n := range nodes {
		start(n)
	}
}

func (p *polling) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = false
}

func (r *Router) startPoll(n *node) { r.polls.Go(func() { r.poll(r.base, n) }) }

// Reload goes over to the next version of pd.json. New entries are asked at once
// and serve when they are ready. Removed ones get no new requests and leave when
// their last slot is free; what runs there goes on. What else may change,
// config.Config.ChangeTo says; after an error nothing has changed. The log and
// /health say what came of it. A nil configuration with why is one that could not
// be read at all.
func (r *Router) Reload(next *config.Config, why error) error {
	p := &r.polling
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.config
	if now == nil {
		now = r.config
	}
	var change config.Change
	if why == nil {
		if change, why = now.ChangeTo(next); why == nil {
			why = r.pool.conflict(change)
		}
	}
	if p.counts == nil {
		p.counts = map[string]int64{}
	}
	p.last = &reload{Result: reloadApplied, At: time.Now().UTC().Truncate(time.Second)}
	if why != nil {
		p.last.Result, p.last.Text = reloadRefused, why.Error()
		p.counts[reloadRefused]++
		return why
	}
	p.last.Text = change.String()
	p.counts[reloadApplied]++
	p.config = next
	for _, n := range r.pool.change(next, change) {
		if p.on {
			r.startPoll(n)
		}
	}
	for _, w := range next.Warnings {
		r.options.Log.Warn("pd.json", "text", w)
	}
	r.options.Log.Info("pd.json read again", "change", p.last.Text)
	return nil
}

func (r *Router) lastReload() *reload {
	r.polling.mu.Lock()
	defer r.polling.mu.Unlock()
	return r.polling.last
}

func (r *Router) reloads() map[string]int64 {
	r.polling.mu.Lock()
	defer r.polling.mu.Unlock()
	return map[string]int64{reloadApplied: r.polling.counts[reloadApplied], reloadRefused: r.polling.counts[reloadRefused]}
}

// change applies a checked change and gives the nodes that are new here. One that
// is added again before it has left stays, with its slots.
func (p *pool) change(next *config.Config, change config.Change) (added []*node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if change.Policy != "" {
		p.setPolicyLocked(change.Policy)
	}
	for _, e := range change.Removed {
		for _, n := range p.nodesLocked() {
			if n.id == e.NodeID {
				n.leaving = true
			}
		}
	}
	for _, e := range change.Added {
		list := &p.prefills
		if e.Role == pd.Decode {
			list = &p.decodes
		}
		back := slices.IndexFunc(*list, func(n *node) bool { return n.leaving && n.is(e) })
		if back >= 0 {
			(*list)[back].leaving = false
			continue
		}
		n := newNode(e)
		*list = append(*list, n)
		added = append(added, n)
	}
	p.compareLocked()
	p.leaveLocked()
	p.grantLocked()
	return added
}

// conflict refuses an entry that would share its name or address with another one
// that still has requests.
func (p *pool) conflict(change config.Change) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range change.Added {
		for _, n := range p.nodesLocked() {
			if (n.id == e.NodeID || n.address == e.HTTPAddress()) && !n.is(e) {
				return pd.Errorf(pd.CodeInvalidConfig, "read pd.json again", "%s node %s at %s still has %d requests of %s node %s at %s: add it when that one has left",
					e.Role, e.NodeID, e.HTTPAddress(), len(n.slots), n.role, n.id, n.address)
			}
		}
	}
	return nil
}

// is says that a node is what an entry says.
func (n *node) is(e config.Entry) bool {
	return n.role == e.Role && n.id == e.NodeID && n.address == e.HTTPAddress() && n.control.Address == e.ControlAddress()
}

// leaveLocked lets removed nodes without slots go.
func (p *pool) leaveLocked() {
	left := func(n *node) bool { return n.leaving && len(n.slots) == 0 }
	found := false
	for _, list := range []*[]*node{&p.prefills, &p.decodes} {
		for _, n := range *list {
			if left(n) {
				close(n.gone)
				found = true
			}
		}
		if found {
			*list = slices.DeleteFunc(*list, left)
		}
	}
	if found {
		p.compareLocked()
	}
}

func (p *pool) setPolicyLocked(name string) {
	p.policy, p.reports = name, nil
	if name == policyPrefix {
		p.reports = newReports()
	}
}

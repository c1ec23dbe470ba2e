package pdrouter

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/control"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// node is one entry of pd.json and what is known of it.
type node struct {
	// constant
	role    pd.Role
	id      pd.NodeID
	address string // of its HTTP side
	control control.Target
	// ask makes the poll loop ask at once.
	ask chan struct{}
	// gone is closed when the node has left the pool.
	gone chan struct{}

	// guarded by pool.mu
	// leaving: it is no longer in pd.json; it leaves with its last slot.
	leaving bool
	said    *wire.Node // the last descriptor that fits the configuration
	unfit   string     // why it cannot serve at all; "" if it can
	slots   map[slotKey]*slot
	failed  int // polls in a row
	heard   time.Time
	chosen  int64 // requests that it was ever given
}

// slotKey names a handoff on one life of a node.
type slotKey struct {
	boot    pd.BootID
	handoff pd.HandoffID
}

// slot is one request that a node may be running.
type slot struct {
	// unconfirmed: the request is over for the client, the node has not said so.
	unconfirmed bool
	// silent, if set, is told that the node has answered nothing since a time that
	// is handoff_timeout ago.
	silent func(since time.Time)
}

// boot is the life that the node is in, as far as known.
func (n *node) boot() pd.BootID {
	if n.said == nil {
		return ""
	}
	return n.said.Boot
}

// poke makes the poll loop ask at once.
func (n *node) poke() {
	select {
	case n.ask <- struct{}{}:
	default: // asked for already
	}
}

// pair is what one request was given.
type pair struct {
	prefill *node
	decode  *node
	fence   pd.Fence
}

// pool is all nodes, their slots, and who waits for one.
type pool struct {
	// constant
	run      pd.RunID
	capacity int
	queue    QueueOptions
	// patience is handoff_timeout.
	patience time.Duration

	mu sync.Mutex
	// guarded by mu
	prefills []*node
	decodes  []*node
	policy   string
	turn     turn
	reports  *reports
	// fits caches mismatch by prefill and decode index; it is made anew when a
	// descriptor or the list of nodes changes.
	fits    [][]string
	waiting []*waiter
	peak    int
}

// waiter is one request in the queue.
type waiter struct {
	request pd.RequestID
	leads   []lead
	// granted has room for the one pair that is ever sent.
	granted chan *pair
}

func newPool(c *config.Config, q QueueOptions) *pool {
	p := &pool{run: c.Run(), capacity: c.Capacity, queue: q, patience: c.HandoffTimeout}
	p.setPolicyLocked(c.Policy)
	for _, e := range c.Prefill {
		p.prefills = append(p.prefills, newNode(e))
	}
	for _, e := range c.Decode {
		p.decodes = append(p.decodes, newNode(e))
	}
	p.compareLocked()
	return p
}

func newNode(e config.Entry) *node {
	return &node{
		role: e.Role, id: e.NodeID, address: e.HTTPAddress(),
		control: control.Target{Node: e.NodeID, Address: e.ControlAddress()},
		ask:     make(chan struct{}, 1), gone: make(chan struct{}), unfit: "not asked yet", slots: map[slotKey]*slot{},
	}
}

func (p *pool) nodesLocked() []*node { return slices.Concat(p.prefills, p.decodes) }

func (p *pool) nodes() []*node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodesLocked()
}

// acquire takes a slot on both nodes of a pair. Errors are CodeNoPair where no
// pair serves, CodeBusy where all of them are full, or the context's cause.
//
// leads are what the policy may know of the prompt; nil if it wants nothing.
func (p *pool) acquire(ctx context.Context, request pd.RequestID, leads []lead) (*pair, error) {
	p.mu.Lock()
	if len(p.waiting) == 0 {
		if got := p.takeLocked(request, leads); got != nil {
			p.mu.Unlock()
			return got, nil
		}
	}
	if len(p.waiting) >= p.queue.Size {
		err := p.refusalLocked()
		p.mu.Unlock()
		return nil, err
	}
	w := &waiter{request: request, leads: leads, granted: make(chan *pair, 1)}
	p.waiting = append(p.waiting, w)
	p.mu.Unlock()

	timer := time.NewTimer(p.queue.Timeout)
	defer timer.Stop()
	select {
	case got := <-w.granted:
		return got, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting, w); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, p.refusalLocked()
	}
	// Granted at the same moment.
	return <-w.granted, nil
}

// takeLocked picks a pair and takes its slots; nil if there is none.
func (p *pool) takeLocked(request pd.RequestID, leads []lead) *pair {
	candidates := func(nodes []*node) []candidate {
		out := make([]candidate, len(nodes))
		for i, n := range nodes {
			active := p.activeLocked(n)
			out[i] = candidate{id: n.id, serves: p.stateLocked(n) == "", full: active >= p.capacity, active: active, hit: p.reports.hit(leads, n.id, n.boot())}
		}
		return out
	}
	q := question{
		prefills: candidates(p.prefills), decodes: candidates(p.decodes), turn: p.turn,
		fits: func(i, j int) bool { return p.fits[i][j] == "" },
	}
	if len(leads) > 0 {
		q.lead = leads[0]
	}
	i, j, ok := policies[p.policy](&q)
	if !ok {
		return nil
	}
	p.turn = turn{prefill: i + 1, decode: j + 1}
	got := &pair{prefill: p.prefills[i], decode: p.decodes[j]}
	got.fence = pd.Fence{
		Request: request, Handoff: pd.NewHandoffID(), Run: p.run,
		Prefill: pd.Peer{Node: got.prefill.id, Boot: got.prefill.boot()},
		Decode:  pd.Peer{Node: got.decode.id, Boot: got.decode.boot()},
	}
	for _, n := range []*node{got.prefill, got.decode} {
		n.slots[slotKey{n.boot(), got.fence.Handoff}] = &slot{}
		n.chosen++
		p.peak = max(p.peak, p.activeLocked(n))
	}
	return got
}

// leadsOf reads of a prompt what the policy wants to know; nil if nothing.
func (p *pool) leadsOf(body []byte) []lead {
	p.mu.Lock()
	wanted := p.reports != nil
	p.mu.Unlock()
	if !wanted {
		return nil
	}
	return leadsOf(body)
}

// report takes in how much of a prompt a node had in its cache, in tokens.
func (p *pool) report(leads []lead, at pd.Peer, hit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reports.add(leads, at, hit)
}

// activeLocked counts the slots that are taken on a node's present life.
func (p *pool) activeLocked(n *node) int { return len(n.slots) }

// stateLocked names what keeps a node from new requests, "" if nothing does. A
// node that is only full is fit.
func (p *pool) stateLocked(n *node) string {
	switch {
	case n.leaving:
		return "it is no longer in pd.json and leaves with its last request"
	case n.unfit != "":
		return n.unfit
	case n.said == nil:
		return "not asked yet"
	case n.said.Health != pd.Ready:
		if n.said.Reason != "" {
			return n.said.Health.String() + ": " + n.said.Reason
		}
		return n.said.Health.String()
	}
	return ""
}

// pairsLocked counts the pairs that serve, full or not.
func (p *pool) pairsLocked() int {
	count := 0
	for i, a := range p.prefills {
		for j, b := range p.decodes {
			if p.stateLocked(a) == "" && p.stateLocked(b) == "" && p.fits[i][j] == "" {
				count++
			}
		}
	}
	return count
}

func (p *pool) refusalLocked() error {
	if p.pairsLocked() > 0 {
		return pd.Errorf(pd.CodeBusy, "choose pair", "all nodes run %d requests, which is their capacity; try again", p.capacity)
	}
	return pd.Errorf(pd.CodeNoPair, "choose pair", "no pair of a prefill and a decode node can serve now; /health says why")
}

// heard takes a node's answer to a poll in. A new boot clears the slots of the
// old one: whatever ran there has ended with it.
func (p *pool) heard(n *node, said *wire.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n.failed, n.heard = 0, time.Now()
	n.unfit = refusal(said, n.role, n.id, p.run)
	if n.unfit != "" {
		return
	}
	changed := n.boot() != said.Boot || n.said.ContractDigest != said.ContractDigest
	n.said = said
	for k := range n.slots {
		if k.boot != said.Boot {
			delete(n.slots, k)
		}
	}
	if changed {
		p.compareLocked()
	}
	p.leaveLocked()
	p.grantLocked()
}

// compareLocked says of each pair what keeps it from being one.
func (p *pool) compareLocked() {
	p.fits = make([][]string, len(p.prefills))
	for i, a := range p.prefills {
		p.fits[i] = make([]string, len(p.decodes))
		for j, b := range p.decodes {
			if a.said != nil && b.said != nil {
				p.fits[i][j] = mismatch(a.said, b.said)
			}
		}
	}
}

// lost takes a poll or a dial that failed in. Slots stay: a node that does not
// answer has said nothing about what it runs.
func (p *pool) lost(n *node, why string) (first bool) {
	p.mu.Lock()
	n.failed++
	n.unfit = why
	first = n.failed == 1
	since := time.Now().Add(-p.patience)
	var silent []func(time.Time)
	if n.heard.Before(since) {
		for _, s := range n.slots {
			if s.silent != nil && !s.unconfirmed {
				silent = append(silent, s.silent)
			}
		}
	}
	p.mu.Unlock()
	for _, f := range silent {
		f(since)
	}
	return first
}

// watch tells a request when its node has been silent for too long; see slot.
func (p *pool) watch(n *node, boot pd.BootID, h pd.HandoffID, silent func(since time.Time)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := n.slots[slotKey{boot, h}]; s != nil {
		s.silent = silent
	}
}

// free gives a slot back. It may be called twice.
func (p *pool) free(n *node, boot pd.BootID, h pd.HandoffID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(n.slots, slotKey{boot, h})
	p.leaveLocked()
	p.grantLocked()
}

// unconfirm marks a slot whose request is over for the client. It says whether
// there is still one: not if its boot has gone.
func (p *pool) unconfirm(n *node, boot pd.BootID, h pd.HandoffID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := n.slots[slotKey{boot, h}]
	if s != nil {
		s.unconfirmed = true
	}
	return s != nil
}

// taken counts the slots of requests that run, and of those that are over for
// the client and not confirmed by their node.
func (p *pool) taken() (running, unconfirmed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.nodesLocked() {
		for _, s := range n.slots {
			if s.unconfirmed {
				unconfirmed++
			} else {
				running++
			}
		}
	}
	return running, unconfirmed
}

// holds says whether a slot is still taken.
func (p *pool) holds(n *node, boot pd.BootID, h pd.HandoffID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return n.slots[slotKey{boot, h}] != nil
}

// grantLocked gives pairs to the queue, first come first served.
func (p *pool) grantLocked() {
	for len(p.waiting) > 0 {
		got := p.takeLocked(p.waiting[0].request, p.waiting[0].leads)
		if got == nil {
			return
		}
		p.waiting[0].granted <- got
		p.waiting = p.waiting[1:]
	}
}

// nodeView is one node as /health and metrics show it.
type nodeView struct {
	Role        pd.Role   `json:"role"`
	Node        pd.NodeID `json:"node_id"`
	Boot        pd.BootID `json:"boot_id"`
	State       string    `json:"state"`
	Active      int       `json:"active"`
	Unconfirmed int       `json:"unconfirmed"`
	Capacity    int       `json:"capacity"`
	Reason      string    `json:"reason"`

	requests int64
	heard    time.Time
}

// The states of nodeView beside those that a node gives itself.
const (
	stateUnreachable = "UNREACHABLE"
	stateLeaving     = "LEAVING"
)

type poolView struct {
	Pairs   int
	Nodes   []nodeView
	Waiting int
	Peak    int
	// Mismatch is why two nodes that could serve are no pair, if no pair serves.
	Mismatch string
	Policy   string
	// Models are the served names, each once, with their limit.
	Models map[string]int
}

// unpairedLocked says why a node that could serve has no partner among those
// that could, "" if it has one or there are none.
func (p *pool) unpairedLocked(n *node) string {
	why := ""
	for i, a := range p.prefills {
		for j, b := range p.decodes {
			other := b
			if n == b {
				other = a
			}
			if n != a && n != b || p.stateLocked(other) != "" {
				continue
			}
			if p.fits[i][j] == "" {
				return ""
			}
			why = fmt.Sprintf("never paired: differs from %s in %s", other.id, p.fits[i][j])
		}
	}
	return why
}

func (p *pool) view() poolView {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := poolView{Pairs: p.pairsLocked(), Waiting: len(p.waiting), Peak: p.peak, Policy: p.policy, Models: map[string]int{}}
	for _, n := range p.nodesLocked() {
		w := nodeView{Role: n.role, Node: n.id, Boot: n.boot(), State: stateUnreachable, Active: p.activeLocked(n), Capacity: p.capacity, Reason: n.unfit, requests: n.chosen, heard: n.heard}
		for _, s := range n.slots {
			if s.unconfirmed {
				w.Unconfirmed++
			}
		}
		if n.unfit == "" && n.said != nil {
			w.State, w.Reason = n.said.Health.String(), n.said.Reason
			v.Models[n.said.ServedModel] = n.said.MaxModelTokens
		}
		switch {
		case n.leaving:
			w.State, w.Reason = stateLeaving, p.stateLocked(n)
		case p.stateLocked(n) == "":
			w.Reason = p.unpairedLocked(n)
		}
		v.Nodes = append(v.Nodes, w)
	}
	if v.Pairs == 0 {
		for i, a := range p.prefills {
			for j, b := range p.decodes {
				if p.stateLocked(a) == "" && p.stateLocked(b) == "" {
					v.Mismatch = fmt.Sprintf("%s and %s differ in %s", a.id, b.id, p.fits[i][j])
				}
			}
		}
	}
	return v
}

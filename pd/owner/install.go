package owner

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// installed is one registry of one peer, ready to be written to. It is
// constant, except that a rank becomes stale when the peer fenced it or
// started anew; what was not posted by then never is. A target that lives on is
// in the next registry of the same boot, too.
type installed struct {
	peer     pd.Peer
	registry pd.Registry
	epoch    pd.Epoch
	targets  []*target // by rank
	extents  transfer.Extents
}

// life is what is known of one peer node: its current boot, and those that
// must not come back.
type life struct {
	current *installed
	past    []pd.BootID
}

func (g *Group) newInstalled(peer pd.Peer, r pd.Registry) *installed {
	in := &installed{
		peer: peer, registry: r, epoch: r.Epoch(),
		targets: make([]*target, len(r.Ranks)),
		extents: transfer.Extents{},
	}
	for _, region := range extentsOf(g.config.Contract, r.PagesPerLayer, r.BootstrapSlots) {
		in.extents[region.Component] = region.Bytes
	}
	for i, rank := range r.Ranks {
		in.targets[i] = &target{Target: transfer.Target{
			Peer:     peer,
			Identity: transfer.Identity{Boot: peer.Boot, Rank: rank.Rank, Epoch: rank.Epoch},
			Endpoint: rank.Endpoint,
			Regions:  rank.Regions,
		}}
	}
	return in
}

// Install implements Service.
func (g *Group) Install(peer pd.Peer, r pd.Registry) error {
	const op = "install registry"
	refuse := func(code pd.Code, format string, args ...any) error {
		return &pd.Error{Op: op, Code: code, Node: peer.Node, Text: fmt.Sprintf(format, args...)}
	}
	if peer.Node == g.config.Peer.Node {
		return refuse(pd.CodeIdentity, "a node does not write to itself")
	}
	if err := pd.CheckHexID("boot", string(peer.Boot)); err != nil {
		return &pd.Error{Op: op, Code: pd.CodeIdentity, Node: peer.Node, Err: err}
	}
	if err := g.checkRegistry(&r); err != nil {
		return &pd.Error{Op: op, Code: pd.CodeRegistryMismatch, Node: peer.Node, Err: err}
	}
	next := g.newInstalled(peer, cloneRegistry(r))

	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		return refuse(pd.CodeOwnerLost, "the owners are closing")
	}
	l := g.peers[peer.Node]
	switch {
	case l == nil && len(g.peers) >= pd.MaxNodes:
		return refuse(pd.CodeBusy, "%d peers are installed", len(g.peers))
	case l == nil:
		g.peers[peer.Node] = &life{current: next}
		g.nameLocked(next)
		return nil
	case slices.Contains(l.past, peer.Boot):
		return refuse(pd.CodeStaleBoot, "boot %s ended before boot %s began", peer.Boot, l.current.peer.Boot)
	case l.current.peer.Boot != peer.Boot:
		l.past = append(l.past, l.current.peer.Boot)
		if n := len(l.past); n > maxPastBoots {
			l.past = slices.Delete(l.past, 0, n-maxPastBoots)
		}
		g.retireLocked(l.current.targets...)
	default:
		fenced, err := compare(&l.current.registry, &next.registry)
		if err != nil {
			return &pd.Error{Op: op, Code: pd.CodeRegistryMismatch, Node: peer.Node, Err: err}
		}
		if len(fenced) == 0 {
			return nil
		}
		for rank, t := range l.current.targets {
			if slices.Contains(fenced, pd.Rank(rank)) {
				g.retireLocked(t)
			} else {
				next.targets[rank] = t
			}
		}
	}
	l.current = next
	g.nameLocked(next)
	return nil
}

// nameLocked gives the targets that are new a name.
func (g *Group) nameLocked(in *installed) {
	for _, t := range in.targets {
		if t.id == 0 {
			g.lastID++
			t.id = g.lastID
		}
	}
}

// retireLocked makes every rank drop what is queued for stale targets.
func (g *Group) retireLocked(targets ...*target) {
	for _, t := range targets {
		t.stale.Store(true)
		for _, r := range g.ranks {
			r.retire(t)
		}
	}
}

// checkRegistry makes the structural checks of pd-domain §3.4.
func (g *Group) checkRegistry(r *pd.Registry) error {
	c := g.config.Contract
	if err := r.Topology.Check(); err != nil {
		return fmt.Errorf("topology: %w", err)
	}
	if want := g.facts.Build; r.Build != want {
		return fmt.Errorf("build %q: want %q on both nodes", r.Build, want)
	}
	if len(r.PagesPerLayer) != len(c.Groups) {
		return fmt.Errorf("pages_per_layer: %d groups, want %d", len(r.PagesPerLayer), len(c.Groups))
	}
	for _, group := range c.Groups {
		if pages := r.PagesPerLayer[group.Name]; pages < 1 {
			return fmt.Errorf("pages_per_layer: group %s has %d, want 1 or more", group.Name, pages)
		}
	}
	switch {
	case r.BootstrapSlots < 1:
		return fmt.Errorf("bootstrap_slots %d: want 1 or more", r.BootstrapSlots)
	case len(r.Ranks) != r.Topology.Ranks:
		return fmt.Errorf("ranks: %d registrations, want %d", len(r.Ranks), r.Topology.Ranks)
	}
	want := extentsOf(c, r.PagesPerLayer, r.BootstrapSlots)
	for i, rank := range r.Ranks {
		if err := checkRank(&rank, pd.Rank(i), want); err != nil {
			return fmt.Errorf("ranks[%d]: %w", i, err)
		}
	}
	return nil
}

func checkRank(r *pd.RankRegistration, rank pd.Rank, want []pd.Region) error {
	switch {
	case r.Rank != rank:
		return fmt.Errorf("rank %d: want the ranks in order", r.Rank)
	case r.Epoch < 1:
		return errors.New("epoch 0: epochs start at 1")
	case r.Endpoint == "" || len(r.Endpoint) > maxEnvelopeBytes:
		return fmt.Errorf("endpoint of %d bytes: want 1..%d", len(r.Endpoint), maxEnvelopeBytes)
	case len(r.Regions) != len(want):
		return fmt.Errorf("%d regions, want %d", len(r.Regions), len(want))
	}
	seen := map[pd.ComponentID]bool{}
	for _, region := range r.Regions {
		k := slices.IndexFunc(want, func(w pd.Region) bool { return w.Component == region.Component })
		switch {
		case k < 0:
			return fmt.Errorf("region %q is not in the contract", region.Component)
		case seen[region.Component]:
			return fmt.Errorf("region %s is listed twice", region.Component)
		case region.Bytes != want[k].Bytes:
			return fmt.Errorf("region %s has %d bytes, its pages need %d", region.Component, region.Bytes, want[k].Bytes)
		case region.Envelope == "" || len(region.Envelope) > maxEnvelopeBytes:
			return fmt.Errorf("region %s: envelope of %d bytes: want 1..%d", region.Component, len(region.Envelope), maxEnvelopeBytes)
		}
		seen[region.Component] = true
	}
	return nil
}

// compare says which ranks of one boot were fenced between two registries. It
// refuses any other difference.
func compare(old, next *pd.Registry) (fenced []pd.Rank, err error) {
	switch {
	case old.Topology != next.Topology:
		return nil, errors.New("topology changed within one boot")
	case !maps.Equal(old.PagesPerLayer, next.PagesPerLayer):
		return nil, errors.New("pages_per_layer changed within one boot")
	case !maps.Equal(old.RingPeriods, next.RingPeriods):
		return nil, errors.New("ring_periods changed within one boot")
	case old.BootstrapSlots != next.BootstrapSlots:
		return nil, errors.New("bootstrap_slots changed within one boot")
	}
	for i := range old.Ranks {
		a, b := &old.Ranks[i], &next.Ranks[i]
		switch {
		case b.Epoch < a.Epoch:
			return nil, fmt.Errorf("ranks[%d]: epoch %d after epoch %d", i, b.Epoch, a.Epoch)
		case b.Epoch > a.Epoch:
			fenced = append(fenced, pd.Rank(i))
		case a.Endpoint != b.Endpoint || !slices.Equal(a.Regions, b.Regions):
			return nil, fmt.Errorf("ranks[%d]: changed within epoch %d", i, a.Epoch)
		}
	}
	return fenced, nil
}

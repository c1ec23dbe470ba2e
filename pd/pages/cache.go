package pages

import (
	"github.com/hw-native-sys/pypto-pd/pd"
)

// cacheKey names the content of one page within a partition. Pages of groups
// that can be shared are named by their own hash; a state page by the hash of
// the boundary that it belongs to and its place in the window before it.
type cacheKey struct {
	hash  pd.PageHash
	state int
}

// hit is what a partition holds of a prompt.
type hit struct {
	tokens int
	// pages per group, by logical page.
	pages map[pd.GroupName]map[int]pd.Page
}

// lookup finds the longest prefix, in steps of the alignment, for which a
// partition has every full page, the window of every rolling group and, where
// the engine goes on behind it, the states.
func (a *Allocator) lookup(p pd.Partition, d Demand) hit {
	best := hit{}
	if d.Prefix == nil || d.HitLimit == 0 {
		return best
	}
	full := d.HitLimit
	for _, g := range a.cfg.Groups {
		if g.Kind != pd.Full {
			continue
		}
		n := 0
		for n < len(d.Prefix[g.PageTokens]) && a.pools[p][g.Name].has(cacheKey{hash: d.Prefix[g.PageTokens][n]}) {
			n++
		}
		full = min(full, n*g.PageTokens)
	}
	for tokens := pd.FloorTo(full, a.cfg.AlignmentTokens); tokens > 0; tokens -= a.cfg.AlignmentTokens {
		if pages, ok := a.pagesAt(p, d, tokens); ok {
			return hit{tokens, pages}
		}
	}
	return best
}

// pagesAt lists the cached pages of a prefix; false if one is missing.
func (a *Allocator) pagesAt(p pd.Partition, d Demand, tokens int) (map[pd.GroupName]map[int]pd.Page, bool) {
	out := map[pd.GroupName]map[int]pd.Page{}
	for _, g := range a.cfg.Groups {
		if g.Kind == pd.FinalOnly && !d.Resume {
			continue
		}
		out[g.Name] = map[int]pd.Page{}
		first := 0
		if g.Kind != pd.Full {
			first = max(0, tokens-g.WindowTokens) / g.PageTokens
		}
		for l := first; l < tokens/g.PageTokens; l++ {
			page, ok := a.pools[p][g.Name].cached[a.key(g, d.Prefix, tokens, l)]
			if !ok {
				return nil, false
			}
			out[g.Name][l] = page
		}
	}
	return out, true
}

// key names the logical page l of a group for a prefix that ends at a boundary.
func (a *Allocator) key(g pd.CacheGroup, prefix pd.PrefixHashes, boundary, l int) cacheKey {
	if g.Kind == pd.FinalOnly {
		return cacheKey{hash: prefix[a.cfg.AlignmentTokens][boundary/a.cfg.AlignmentTokens-1], state: boundary/g.PageTokens - l}
	}
	return cacheKey{hash: prefix[g.PageTokens][l]}
}

func (p *pool) has(k cacheKey) bool {
	_, ok := p.cached[k]
	return ok
}

func (p *pool) named(page pd.Page) bool {
	_, ok := p.names[page]
	return ok
}

// publish gives a page a name, unless that name is taken: a duplicate never
// replaces a live page.
func (p *pool) publish(k cacheKey, page pd.Page) {
	if _, named := p.names[page]; named || p.has(k) {
		return
	}
	p.cached[k], p.names[page] = page, k
}

func (p *pool) unpublish(page pd.Page) bool {
	k, named := p.names[page]
	if named {
		delete(p.names, page)
		delete(p.cached, k)
	}
	return named
}

// Publish implements lease.Allocator.
func (a *Allocator) Publish(h pd.HandoffID, known map[pd.GroupName][]pd.Span) {
	a.checked = false
	o := a.mustOwner("publish", h)
	if o.prefix == nil {
		return
	}
	for _, g := range a.cfg.Groups {
		if g.Kind == pd.FinalOnly {
			continue
		}
		for _, span := range known[g.Name] {
			a.publishSpan(o, g, 0, span)
		}
	}
}

// PublishComputed makes everything findable that an engine has computed between
// the end of its hit and a position: full pages, the pages of rolling groups that
// are still in their ring, and the states at the last boundary. A ring has slots
// for pages before the window of the hit, too; nothing was ever written there.
func (a *Allocator) PublishComputed(h pd.HandoffID, computed int) {
	a.checked = false
	o := a.mustOwner("publish", h)
	if o.prefix == nil {
		return
	}
	boundary := pd.FloorTo(min(computed, len(o.prefix[a.cfg.AlignmentTokens])*a.cfg.AlignmentTokens), a.cfg.AlignmentTokens)
	for _, g := range a.cfg.Groups {
		switch {
		case g.Kind != pd.FinalOnly:
			a.publishSpan(o, g, 0, pd.Span{Start: o.hit / g.PageTokens, End: computed / g.PageTokens})
		case boundary > 0:
			a.publishSpan(o, g, boundary, pd.Span{Start: max(0, boundary-g.WindowTokens) / g.PageTokens, End: boundary / g.PageTokens})
		}
	}
}

func (a *Allocator) publishSpan(o *owner, g pd.CacheGroup, boundary int, span pd.Span) {
	table := o.tables[g.Name]
	last := g.Pages(o.tokens)
	if g.Kind != pd.FinalOnly {
		span.End = min(span.End, len(o.prefix[g.PageTokens]))
	}
	first := span.Start
	if g.Kind != pd.Full {
		first = max(first, last-a.cfg.RingPeriods[g.Name]) // older pages have left the ring
	} else {
		first = max(first, o.published[g.Name])
	}
	for l := first; l < span.End; l++ {
		slot := l
		if g.Kind != pd.Full {
			slot = l % a.cfg.RingPeriods[g.Name]
		}
		a.pools[o.partition][g.Name].publish(a.key(g, o.prefix, boundary, l), table[slot])
	}
	if g.Kind == pd.Full && span.Start <= o.published[g.Name] {
		o.published[g.Name] = max(o.published[g.Name], span.End)
	}
}

package reference

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// Copier copies to and from an arena that this process cannot address, such as
// device memory behind an owner's process. Ranges lie inside the arena; calls
// come from any goroutine.
type Copier interface {
	CopyIn(offset int64, from []byte) error
	CopyOut(offset int64, to []byte) error
}

// arena is the memory of one component on one rank: of this process, or behind
// a copier.
type arena struct {
	bytes  []byte
	copier Copier
}

// store reads and writes rows in the arenas of all ranks. The caller owns the
// pages that a table names.
type store struct {
	contract *pd.Contract
	layout   adapter.Layout
	// arenas[rank][component]; the bootstrap arena is the last component.
	arenas [][]arena
	// lost is the first copy that failed. What was written since is not known, so
	// every later digest fails with it.
	lost atomic.Pointer[error]
}

func newStore(cfg *Config) *store {
	s := &store{contract: cfg.Contract, layout: cfg.Layout}
	components := make([]pd.ComponentID, 0, len(cfg.Contract.Components)+1)
	for _, c := range cfg.Contract.Components {
		components = append(components, c.ID)
	}
	components = append(components, cfg.Contract.Bootstrap.Component)
	for r := range pd.Rank(cfg.Layout.Topology.Ranks) {
		var rank []arena
		for _, c := range components {
			a := arena{bytes: cfg.Memory(r, c)}
			if a.bytes == nil && cfg.Copier != nil {
				a.copier = cfg.Copier(r, c)
			}
			poison(a.bytes)
			rank = append(rank, a)
		}
		s.arenas = append(s.arenas, rank)
	}
	return s
}

// put writes bytes at an offset of an arena.
func (s *store) put(a arena, at int, data []byte) {
	if a.copier == nil {
		copy(a.bytes[at:], data)
	} else if err := a.copier.CopyIn(int64(at), data); err != nil {
		s.lost.CompareAndSwap(nil, &err)
	}
}

// get reads n bytes at an offset of an arena. The result is valid until the
// arena is written.
func (s *store) get(a arena, at, n int) []byte {
	if a.copier == nil {
		return a.bytes[at : at+n]
	}
	out := make([]byte, n)
	if err := a.copier.CopyOut(int64(at), out); err != nil {
		s.lost.CompareAndSwap(nil, &err)
	}
	return out
}

// broken is the copy that failed, nil if none has.
func (s *store) broken() error {
	if err := s.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// poison fills memory of this process with NaN in every format of the contract.
func poison(b []byte) {
	if len(b) == 0 {
		return
	}
	b[0] = 0xff
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// place is where the rows of a page begin in one layer of its arena.
func (s *store) place(c *pd.Component, layer int, page pd.Page, row int) int {
	return (layer*s.layout.PagesPerLayer[c.Group]+int(page))*c.PageBytes() + row*c.RowBytes()
}

// hashes are those of the last complete pages of every component, at most
// pages of them, after n tokens: what both sides of a handoff hold whatever the
// rolling policy. They are read from the first rank of the partition.
func (s *store) hashes(p pd.Partition, tables adapter.Tables, n, pages int) (string, error) {
	var out []string
	rank := s.arenas[s.layout.Topology.RanksOf(p)[0]]
	for ci := range s.contract.Components {
		c := &s.contract.Components[ci]
		g, _ := s.contract.Group(c.Group)
		last := n / g.PageTokens
		first := max(0, last-pages)
		if g.Kind != pd.Full {
			first = max(first, pd.CeilDiv(max(0, n-g.WindowTokens), g.PageTokens))
		}
		sum := sha256.New()
		for logical := first; logical < last; logical++ {
			page := tables[c.Group][adapter.Slot(g, s.layout.RingPeriods[c.Group], logical)]
			for l := range c.Layers {
				sum.Write(s.get(rank[ci], s.place(c, l, page, 0), c.PageBytes()))
			}
		}
		out = append(out, fmt.Sprintf("%s[%d,%d)=%x", c.ID, first, last, sum.Sum(nil)[:8]))
	}
	return strings.Join(out, " "), s.broken()
}

package adapter

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Input is one chunk to plan. Source fields are prefill's, target fields come
// from decode's grant.
type Input struct {
	Contract     *pd.Contract
	Fence        pd.Fence
	PromptTokens int
	Chunk        pd.ChunkID
	Span         pd.Span
	Final        bool

	Source          pd.Topology
	SourcePartition pd.Partition
	// SourceTables are the tables as they were when the chunk was computed: a
	// ring holds the last pages before the chunk's end.
	SourceTables  Tables
	SourcePeriods map[pd.GroupName]int
	SourceHit     int
	SourceSlot    int

	Target          pd.Topology
	TargetPartition pd.Partition
	// TargetTables are the tables for the whole prompt: a ring holds the last
	// pages before the prompt's end.
	TargetTables     Tables
	TargetPeriods    map[pd.GroupName]int
	TargetHit        int
	TargetSlot       int
	TargetGeneration pd.Generation

	// FirstToken, MetadataHash and PreparedDigest go into the final manifest.
	FirstToken     pd.Token
	MetadataHash   string
	PreparedDigest string
}

func invalid(in *Input, format string, args ...any) error {
	return &pd.Error{
		Op: fmt.Sprintf("plan chunk %d", in.Chunk), Code: pd.CodeInvalidPlan,
		Handoff: in.Fence.Handoff, Text: fmt.Sprintf(format, args...),
	}
}

// Build plans one chunk: which pages of which component move from where to
// where. It is linear in the pages of the chunk with a small constant, and in
// runs of pages that are contiguous on both sides beyond that. It writes
// nothing. Errors are CodeInvalidPlan: arguments that contradict each other, a
// table that is too short, or a ring that does not hold what must move.
func Build(in Input) (pd.Manifest, error) {
	return plan(&in, func(g pd.CacheGroup, p pageRange) ([]pd.Page, error) {
		return pagesOf(&in, g, "prefill", in.SourceTables[g.Name], in.SourcePeriods[g.Name], p)
	})
}

// plan is Build over source pages that come from wherever the caller has them:
// source lists those of a range of logical pages, in order.
func plan(in *Input, source func(pd.CacheGroup, pageRange) ([]pd.Page, error)) (pd.Manifest, error) {
	if err := check(in); err != nil {
		return pd.Manifest{}, err
	}
	m := pd.Manifest{
		Fence: in.Fence, Chunk: in.Chunk, Span: in.Span, Final: in.Final,
		SourcePartition: in.SourcePartition, TargetPartition: in.TargetPartition,
		RankMap:         RankMap(in.Source, in.SourcePartition, in.Target, in.TargetPartition),
		SourceHitTokens: in.SourceHit,
		Copies:          []pd.Copy{},
	}
	moved := map[pd.ComponentID]int64{}
	for _, g := range in.Contract.Groups {
		p, ok, err := movedPages(in, g)
		if err != nil {
			return pd.Manifest{}, err
		}
		if !ok {
			continue
		}
		runs, err := runsOf(in, g, p, source)
		if err != nil {
			return pd.Manifest{}, err
		}
		for i := range in.Contract.Components {
			if c := &in.Contract.Components[i]; c.Group == g.Name {
				pages := 0
				m.Copies, pages = appendCopies(m.Copies, c, runs, p, lastTokens(in, g, p))
				moved[c.ID] = int64(pages) * int64(len(c.Layers)) * int64(c.PageBytes())
			}
		}
	}
	for _, pair := range m.RankMap {
		for i := range in.Contract.Components {
			c := &in.Contract.Components[i]
			if b, ok := moved[c.ID]; ok {
				m.Units = append(m.Units, pd.Unit{Target: pair.Target, Component: c.ID, Bytes: b})
			}
		}
		if in.Final {
			b := in.Contract.Bootstrap
			m.Units = append(m.Units, pd.Unit{Target: pair.Target, Component: b.Component, Bytes: int64(b.SlotBytes())})
		}
	}
	if in.Final {
		m.Bootstrap = &pd.BootstrapCopy{
			SourceSlot: in.SourceSlot, TargetSlot: in.TargetSlot, TargetGeneration: in.TargetGeneration,
		}
		first := in.FirstToken
		m.FirstToken, m.MetadataHash, m.PreparedDigest = &first, in.MetadataHash, in.PreparedDigest
	}
	return m, nil
}

func check(in *Input) error {
	align := in.Contract.AlignmentTokens
	hitLimit := pd.FloorTo(max(0, in.PromptTokens-in.Contract.Bootstrap.Rows), align)
	switch {
	case in.Span.Start < 0 || in.Span.End <= in.Span.Start || in.Span.End > in.PromptTokens:
		return invalid(in, "span %v is not inside a prompt of %d tokens", in.Span, in.PromptTokens)
	case in.Chunk == 0 && in.Span.Start != 0:
		return invalid(in, "the first chunk starts at %d, want 0", in.Span.Start)
	case in.Final != (in.Span.End == in.PromptTokens):
		return invalid(in, "span %v of a prompt of %d tokens has final=%t", in.Span, in.PromptTokens, in.Final)
	case in.SourceHit%align != 0 || in.SourceHit < 0 || in.SourceHit > in.Span.End:
		return invalid(in, "prefill hit %d: want a multiple of %d up to %d", in.SourceHit, align, in.Span.End)
	case in.SourceHit > hitLimit:
		return invalid(in, "prefill hit %d leaves fewer than the %d tokens whose hidden states are captured; the limit is %d", in.SourceHit, in.Contract.Bootstrap.Rows, hitLimit)
	case in.TargetHit%align != 0 || in.TargetHit < 0 || in.TargetHit > in.PromptTokens:
		return invalid(in, "decode hit %d: want a multiple of %d up to %d", in.TargetHit, align, in.PromptTokens)
	case int(in.SourcePartition) < 0 || int(in.SourcePartition) >= in.Source.Partitions():
		return invalid(in, "source partition %d: the node has %d", in.SourcePartition, in.Source.Partitions())
	case int(in.TargetPartition) < 0 || int(in.TargetPartition) >= in.Target.Partitions():
		return invalid(in, "target partition %d: the node has %d", in.TargetPartition, in.Target.Partitions())
	}
	return checkRings(in)
}

// pagesOf lists the page ids of a range of logical pages. The result may share
// memory with the table.
func pagesOf(in *Input, g pd.CacheGroup, who string, table pd.PageTable, period int, p pageRange) ([]pd.Page, error) {
	if p.count() == 0 {
		return nil, nil
	}
	short := func(slot int) error {
		return invalid(in, "group %s: %s's table has %d pages, page %d needs slot %d", g.Name, who, len(table), p.end-1, slot)
	}
	if g.Kind == pd.Full {
		if p.end > len(table) {
			return nil, short(p.end - 1)
		}
		return table[p.first:p.end], nil
	}
	first, end := p.first%period, p.first%period+p.count()
	if last := min(end, period); last > len(table) {
		return nil, short(last - 1)
	}
	if end <= period {
		return table[first:end], nil
	}
	return slices.Concat(table[first:period], table[:end-period]), nil
}

// run is a stretch of logical pages that is contiguous on both sides.
type run struct {
	source, target pd.Page
	count          int
}

// runsOf joins the pages of a range into runs.
func runsOf(in *Input, g pd.CacheGroup, p pageRange, source func(pd.CacheGroup, pageRange) ([]pd.Page, error)) ([]run, error) {
	from, err := source(g, p)
	if err != nil {
		return nil, err
	}
	to, err := pagesOf(in, g, "decode", in.TargetTables[g.Name], in.TargetPeriods[g.Name], p)
	if err != nil {
		return nil, err
	}
	var runs []run
	sorted := true
	for i := 0; i < len(to); {
		r := run{from[i], to[i], 1}
		for i++; i < len(to) && from[i] == r.source+pd.Page(r.count) && to[i] == r.target+pd.Page(r.count); i++ {
			r.count++
		}
		if r.source < 0 || r.target < 0 {
			return nil, invalid(in, "group %s: page %d or %d is negative", g.Name, r.source, r.target)
		}
		if k := len(runs); k > 0 && r.target < runs[k-1].target+pd.Page(runs[k-1].count) {
			sorted = false
		}
		runs = append(runs, r)
	}
	// Invariant I-19 OneLogicalPagePerBlock.
	if page, twice := doubled(runs, sorted); twice {
		return nil, invalid(in, "group %s: two logical pages have decode's page %d as target", g.Name, page)
	}
	return runs, nil
}

// doubled finds a target page that two runs have.
func doubled(runs []run, sorted bool) (pd.Page, bool) {
	if sorted {
		return 0, false
	}
	runs = slices.Clone(runs)
	slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.target, b.target) })
	for i := 1; i < len(runs); i++ {
		if runs[i].target < runs[i-1].target+pd.Page(runs[i-1].count) {
			return runs[i].target, true
		}
	}
	return 0, false
}

// lastTokens is how many tokens of the chunk the last page of a range holds.
func lastTokens(in *Input, g pd.CacheGroup, p pageRange) int {
	return min(g.PageTokens, in.Span.End-(p.end-1)*g.PageTokens)
}

// appendCopies turns runs into copies of one component and says how many pages
// they hold. The prompt's last page, which may be partial, is a copy of its own
// then; without a whole row of this component it is left out.
func appendCopies(copies []pd.Copy, c *pd.Component, runs []run, p pageRange, lastTokens int) ([]pd.Copy, int) {
	pages, rows := p.count(), c.RowsPerPage
	if pages > 0 {
		rows = lastTokens / c.RowTokens
	}
	copies = slices.Grow(copies, len(runs)+1)
	for i, r := range runs {
		partial := i == len(runs)-1 && rows < c.RowsPerPage
		if partial {
			r.count--
		}
		if r.count > 0 {
			copies = append(copies, pd.Copy{Component: c.ID, Source: r.source, Target: r.target, Count: r.count, ValidRows: c.RowsPerPage})
		}
		if partial && rows > 0 {
			end := pd.Page(r.count)
			copies = append(copies, pd.Copy{Component: c.ID, Source: r.source + end, Target: r.target + end, Count: 1, ValidRows: rows})
		}
	}
	if rows == 0 {
		pages--
	}
	return copies, pages
}

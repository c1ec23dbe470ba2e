package adapter

import (
	"fmt"
	"slices"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// RollingTail is the rolling policy of every contract so far: only the pages
// from TailStart on move.
const RollingTail = "tail"

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
	SourceTables    Tables
	SourcePeriods   map[pd.GroupName]int
	SourceHit       int
	SourceSlot      int

	Target           pd.Topology
	TargetPartition  pd.Partition
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
// where. It is linear in runs and pages of the chunk and writes nothing.
func Build(in Input) (pd.Manifest, error) {
	if err := check(&in); err != nil {
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
		pages, ok, err := move(&in, g)
		if err != nil {
			return pd.Manifest{}, err
		}
		for _, c := range in.Contract.Components {
			if c.Group != g.Name || !ok {
				continue
			}
			copies, n := copiesOf(&in, g, c, pages)
			m.Copies = append(m.Copies, copies...)
			moved[c.ID] = int64(n) * int64(len(c.Layers)) * int64(c.PageBytes())
		}
	}
	for _, pair := range m.RankMap {
		for _, c := range in.Contract.Components {
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
	switch {
	case in.Span.Start < 0 || in.Span.End <= in.Span.Start || in.Span.End > in.PromptTokens:
		return invalid(in, "span %v is not inside a prompt of %d tokens", in.Span, in.PromptTokens)
	case in.Chunk == 0 && in.Span.Start != 0:
		return invalid(in, "the first chunk starts at %d, want 0", in.Span.Start)
	case in.Final != (in.Span.End == in.PromptTokens):
		return invalid(in, "span %v of a prompt of %d tokens has final=%t", in.Span, in.PromptTokens, in.Final)
	case in.SourceHit%align != 0 || in.SourceHit < 0 || in.SourceHit > in.Span.End:
		return invalid(in, "prefill hit %d: want a multiple of %d up to %d", in.SourceHit, align, in.Span.End)
	case in.TargetHit%align != 0 || in.TargetHit < 0 || in.TargetHit > in.PromptTokens:
		return invalid(in, "decode hit %d: want a multiple of %d up to %d", in.TargetHit, align, in.PromptTokens)
	case in.Contract.RollingPolicy != RollingTail:
		return invalid(in, "rolling policy %q: want %q", in.Contract.RollingPolicy, RollingTail)
	case int(in.SourcePartition) < 0 || int(in.SourcePartition) >= in.Source.Partitions():
		return invalid(in, "source partition %d: the node has %d", in.SourcePartition, in.Source.Partitions())
	case int(in.TargetPartition) < 0 || int(in.TargetPartition) >= in.Target.Partitions():
		return invalid(in, "target partition %d: the node has %d", in.TargetPartition, in.Target.Partitions())
	}
	return nil
}

// pageMove is a half-open range of logical pages of one group.
type pageMove struct {
	first, end int
}

func (p pageMove) count() int { return p.end - p.first }

// movedPages says which logical pages of a group belong to this chunk; ok is
// false where the group has no unit at all in it. A page that straddles two
// chunks belongs to the one in which it closes; the last page of the prompt
// closes with the prompt.
func movedPages(in *Input, g pd.CacheGroup) (p pageMove, ok bool) {
	if g.Kind == pd.FinalOnly {
		return pageMove{max(0, in.PromptTokens-g.WindowTokens) / g.PageTokens, g.Pages(in.PromptTokens)}, in.Final
	}
	low := max(in.Span.Start, in.TargetHit)
	if g.Kind == pd.Rolling {
		low = max(low, in.SourceHit-g.WindowTokens, TailStart(in.PromptTokens, in.Contract.AlignmentTokens))
	}
	p = pageMove{low / g.PageTokens, in.Span.End / g.PageTokens}
	if in.Final && in.Span.End > in.TargetHit {
		p.end = g.Pages(in.Span.End)
	}
	p.end = max(p.end, p.first)
	return p, true
}

// move is movedPages with every check that the tables and rings hold them.
func move(in *Input, g pd.CacheGroup) (pageMove, bool, error) {
	p, ok := movedPages(in, g)
	if !ok {
		return p, false, nil
	}
	for _, side := range []struct {
		name   string
		table  pd.PageTable
		period int
		live   int
	}{
		{"prefill", in.SourceTables[g.Name], in.SourcePeriods[g.Name], p.count()},
		{"decode", in.TargetTables[g.Name], in.TargetPeriods[g.Name], livePages(in, g)},
	} {
		if g.Kind == pd.Full {
			if p.count() > 0 && p.end > len(side.table) {
				return p, false, invalid(in, "group %s: %s's table has %d pages, want %d", g.Name, side.name, len(side.table), p.end)
			}
			continue
		}
		// Invariant OneLogicalPagePerBlock: two live logical pages never share a
		// target block, also across the chunks of one handoff.
		if side.live > side.period {
			return p, false, invalid(in, "group %s: %d live pages do not fit %s's ring of %d", g.Name, side.live, side.name, side.period)
		}
		for l := p.first; l < p.end; l++ {
			if slot := l % side.period; slot >= len(side.table) {
				return p, false, invalid(in, "group %s: %s's table has %d pages, page %d needs slot %d", g.Name, side.name, len(side.table), l, slot)
			}
		}
	}
	return p, true, nil
}

// livePages is how many logical pages of a ring the whole handoff puts into
// decode's table.
func livePages(in *Input, g pd.CacheGroup) int {
	first := max(0, in.PromptTokens-g.WindowTokens)
	if g.Kind == pd.Rolling {
		first = TailStart(in.PromptTokens, in.Contract.AlignmentTokens)
	}
	return g.Pages(in.PromptTokens) - first/g.PageTokens
}

// Slot is where a logical page sits in its table: itself for full groups, the
// remainder by the ring period for rings.
func Slot(g pd.CacheGroup, period, logical int) int {
	if g.Kind == pd.Full {
		return logical
	}
	return logical % period
}

// copiesOf turns logical pages of one component into runs that are contiguous
// on both sides, and says how many pages they hold. A partial page without a
// whole row of this component is left out.
func copiesOf(in *Input, g pd.CacheGroup, c pd.Component, p pageMove) ([]pd.Copy, int) {
	var copies []pd.Copy
	n := 0
	for l := p.first; l < p.end; l++ {
		rows := min(c.RowsPerPage, (in.Span.End-l*g.PageTokens)/c.RowTokens)
		if rows == 0 {
			continue
		}
		n++
		source := in.SourceTables[g.Name][Slot(g, in.SourcePeriods[g.Name], l)]
		target := in.TargetTables[g.Name][Slot(g, in.TargetPeriods[g.Name], l)]
		if k := len(copies) - 1; k >= 0 && rows == c.RowsPerPage && copies[k].ValidRows == c.RowsPerPage &&
			copies[k].Source+pd.Page(copies[k].Count) == source && copies[k].Target+pd.Page(copies[k].Count) == target {
			copies[k].Count++
			continue
		}
		copies = append(copies, pd.Copy{Component: c.ID, Source: source, Target: target, Count: 1, ValidRows: rows})
	}
	return copies, n
}

// Verify is decode's side of a plan: it rebuilds the manifest from its own
// tables, taking only the source pages from the offer, and requires equality.
// in carries decode's facts; its Source tables are ignored.
func Verify(in Input, offered *pd.Manifest) error {
	in.Chunk, in.Span, in.Final = offered.Chunk, offered.Span, offered.Final
	in.SourcePartition, in.SourceHit = offered.SourcePartition, offered.SourceHitTokens
	if offered.Final != (offered.Bootstrap != nil) || offered.Final != (offered.FirstToken != nil) {
		return invalid(&in, "final chunks, and only they, carry bootstrap and first token")
	}
	if offered.Final {
		in.SourceSlot, in.FirstToken = offered.Bootstrap.SourceSlot, *offered.FirstToken
	}
	if in.Span.End > in.PromptTokens || in.Span.Start < 0 || in.Span.End <= in.Span.Start {
		return invalid(&in, "span %v is not inside a prompt of %d tokens", in.Span, in.PromptTokens)
	}
	tables, err := sourceView(&in, offered)
	if err != nil {
		return err
	}
	in.SourceTables = tables
	want, err := Build(in)
	if err != nil {
		return err
	}
	return equal(&in, &want, offered)
}

// sourceView lays the offered source pages into tables, at the places where
// the plan will look for them.
func sourceView(in *Input, offered *pd.Manifest) (Tables, error) {
	total := 0
	for _, c := range offered.Copies {
		if c.Count < 1 || c.Source < 0 || c.Target < 0 {
			return nil, invalid(in, "copy of %s has a negative page or no pages", c.Component)
		}
		if total += c.Count; total > pd.MaxTablePages*len(in.Contract.Components) {
			return nil, invalid(in, "more than %d pages in one chunk", total)
		}
	}
	tables := Tables{}
	for _, g := range in.Contract.Groups {
		i := slices.IndexFunc(in.Contract.Components, func(c pd.Component) bool { return c.Group == g.Name })
		if i < 0 {
			continue
		}
		lead := in.Contract.Components[i]
		var pages pd.PageTable
		for _, c := range offered.Copies {
			for k := range c.Count {
				if c.Component == lead.ID {
					pages = append(pages, c.Source+pd.Page(k))
				}
			}
		}
		period := in.SourcePeriods[g.Name]
		if g.Kind != pd.Full && period < 1 {
			return nil, invalid(in, "prefill has no ring period for group %s", g.Name)
		}
		length := g.Pages(in.Span.End)
		if g.Kind != pd.Full {
			length = min(length, period)
		}
		table := make(pd.PageTable, length)
		moved, _ := movedPages(in, g)
		for k, page := range pages {
			slot := Slot(g, period, moved.first+k)
			if slot >= length {
				return nil, invalid(in, "component %s: more pages than the plan allows", lead.ID)
			}
			table[slot] = page
		}
		tables[g.Name] = table
	}
	return tables, nil
}

func equal(in *Input, want, got *pd.Manifest) error {
	if !slices.Equal(want.RankMap, got.RankMap) {
		return invalid(in, "rank map differs from the %s rule", in.Contract.Mapping)
	}
	if !slices.Equal(want.Units, got.Units) {
		return invalid(in, "units differ from the reservation plan")
	}
	if len(want.Copies) != len(got.Copies) {
		return invalid(in, "%d copies, the reservation plan has %d", len(got.Copies), len(want.Copies))
	}
	for i := range want.Copies {
		if want.Copies[i] != got.Copies[i] {
			return invalid(in, "copy %d of %s to page %d x%d differs from the reservation plan (page %d x%d)",
				i, got.Copies[i].Component, got.Copies[i].Target, got.Copies[i].Count, want.Copies[i].Target, want.Copies[i].Count)
		}
	}
	if got.Final {
		if *want.Bootstrap != *got.Bootstrap {
			return invalid(in, "bootstrap slot %d generation %d, granted slot %d generation %d",
				got.Bootstrap.TargetSlot, got.Bootstrap.TargetGeneration, want.Bootstrap.TargetSlot, want.Bootstrap.TargetGeneration)
		}
		if got.MetadataHash != want.MetadataHash {
			return invalid(in, "metadata hash differs from the continuation's")
		}
		if got.PreparedDigest != want.PreparedDigest {
			return &pd.Error{Op: "plan chunk", Code: pd.CodeInvalidDigest, Handoff: in.Fence.Handoff, Text: "prepared digest differs from the reserved one"}
		}
	} else if got.MetadataHash != "" || got.PreparedDigest != "" {
		return invalid(in, "only the final chunk carries hashes of the continuation")
	}
	if got.Fence != want.Fence || got.TargetPartition != want.TargetPartition {
		return invalid(in, "fence or target partition differs")
	}
	return nil
}

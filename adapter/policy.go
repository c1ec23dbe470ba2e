package adapter

import (
	"slices"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// The rolling policies: which pages of rolling groups move. A policy is part of
// the data contract, so that both nodes of a pair use the same.
const (
	// RollingTail moves the pages from TailStart on: enough for decode's window
	// and for a hit at the prompt's last boundary. It is the default.
	RollingTail = "tail"
	// RollingCheckpoint moves, beside the tail, one window before the last
	// boundary of every chunk, so that decode can find shorter prefixes too. A
	// window that prefill or decode cannot hold whole is left out whole.
	RollingCheckpoint = "checkpoint"
	// RollingAll moves every page that decode can still hold when the handoff
	// ends.
	RollingAll = "all"
)

// RollingPolicies lists the policies.
func RollingPolicies() []string { return []string{RollingTail, RollingCheckpoint, RollingAll} }

// WithPolicy is the adapter with another rolling policy in its contracts. It
// fails for a policy that does not exist.
func WithPolicy(a Adapter, policy string) (Adapter, error) {
	if !slices.Contains(RollingPolicies(), policy) {
		return nil, pd.Errorf(pd.CodeInvalidConfig, "choose rolling policy", "%q: want %s", policy, strings.Join(RollingPolicies(), ", "))
	}
	return withPolicy{a, policy}, nil
}

type withPolicy struct {
	Adapter
	policy string
}

// Contract implements Adapter.
func (w withPolicy) Contract(revision, provider string) pd.Contract {
	c := w.Adapter.Contract(revision, provider)
	c.RollingPolicy = w.policy
	return c
}

// TailStart is the first token of a rolling group that moves under the tail
// policy: one window before the last boundary of the prompt, so that decode can
// read its window and find the prompt again at that boundary.
func TailStart(c *pd.Contract, g pd.CacheGroup, promptTokens int) int {
	return max(0, pd.FloorTo(promptTokens, c.AlignmentTokens)-g.WindowTokens)
}

// Moved says which logical pages of each group that can be shared a chunk
// moves, as half-open spans of page numbers; a span may be empty. Every page of
// a span is in decode's table when the handoff ends, so decode publishes the
// union of the spans of all chunks, and nothing in the gaps between them. in is
// the input of a chunk that Build or Verify accepted; its tables are not looked
// at.
func Moved(in Input) map[pd.GroupName]pd.Span {
	out := map[pd.GroupName]pd.Span{}
	for _, g := range in.Contract.Groups {
		if g.Kind == pd.FinalOnly {
			continue
		}
		if p, ok, err := movedPages(&in, g); ok && err == nil {
			out[g.Name] = pd.Span{Start: p.first, End: p.end}
		}
	}
	return out
}

// pageRange is a half-open range of logical pages of one group.
type pageRange struct {
	first, end int
}

func (p pageRange) count() int { return p.end - p.first }

// movedPages says which logical pages of a group move in this chunk; ok is
// false where the group has no unit in it at all. A page that must move and
// cannot is an error.
func movedPages(in *Input, g pd.CacheGroup) (p pageRange, ok bool, err error) {
	switch g.Kind {
	case pd.Full:
		p = closed(in, g, max(in.Span.Start, in.TargetHit))
	case pd.Rolling:
		p, err = rolling(in, g)
	case pd.FinalOnly:
		if !in.Final {
			return p, false, nil
		}
		p = pageRange{max(0, in.PromptTokens-g.WindowTokens) / g.PageTokens, g.Pages(in.PromptTokens)}
		err = fits(in, g, p)
	default:
		err = invalid(in, "group %s has kind %v", g.Name, g.Kind)
	}
	if err == nil && p.count() > 0 && holdsNoRow(in, g, p) {
		p.end--
	}
	return p, err == nil, err
}

// closed are the pages from a position on that close in this chunk.
func closed(in *Input, g pd.CacheGroup, low int) pageRange {
	p := pageRange{low / g.PageTokens, in.Span.End / g.PageTokens}
	if in.Final && in.Span.End > in.TargetHit {
		p.end = g.Pages(in.Span.End)
	}
	p.end = max(p.end, p.first)
	return p
}

// holdsNoRow says whether the last page of a range is too short for a row of
// any component of its group: a few tokens of a page whose rows each cover many.
func holdsNoRow(in *Input, g pd.CacheGroup, p pageRange) bool {
	tokens := lastTokens(in, g, p)
	return !slices.ContainsFunc(in.Contract.Components, func(c pd.Component) bool { return c.Group == g.Name && c.RowTokens <= tokens })
}

// rolling applies the contract's policy. What a policy would move beyond what
// decode needs is left out where a ring does not hold it; what decode needs and
// a ring does not hold is an error, which refuses the pair.
func rolling(in *Input, g pd.CacheGroup) (pageRange, error) {
	var p pageRange
	switch policy := in.Contract.RollingPolicy; policy {
	case RollingTail:
		p = closed(in, g, max(in.Span.Start, in.TargetHit, TailStart(in.Contract, g, in.PromptTokens)))
	case RollingCheckpoint:
		p = checkpoint(in, g)
	case RollingAll:
		// Prefill has nothing older than the window before its own hit.
		p = closed(in, g, max(in.Span.Start, in.TargetHit, in.SourceHit-g.WindowTokens))
	default:
		return p, invalid(in, "rolling policy %q: want %s", policy, strings.Join(RollingPolicies(), ", "))
	}
	// Decode's ring must hold what it needs when the handoff ends. A page that
	// it will not hold then is not moved, so a block gets one page per handoff.
	if need := neededPage(in, g); need < oldestInTarget(in, g) {
		return p, invalid(in, "group %s: %d live pages do not fit decode's ring of %d", g.Name, g.Pages(in.PromptTokens)-need, in.TargetPeriods[g.Name])
	}
	if p.count() == 0 {
		return p, nil
	}
	oldest := max(oldestInSource(in, g), oldestInTarget(in, g))
	switch needed := max(p.first, neededPage(in, g)); {
	case needed < oldest:
		return p, fits(in, g, pageRange{needed, p.end})
	case p.first >= oldest:
		return p, nil
	case in.Contract.RollingPolicy == RollingCheckpoint:
		return pageRange{p.first, p.first}, nil // half a window is of no use
	}
	p.first = min(oldest, p.end)
	return p, nil
}

// checkpoint is the window before the last boundary that this chunk reaches,
// as far as no earlier chunk reached it; in the final chunk all from there to
// the end. A window is no longer than the distance of boundaries, so the windows
// of earlier chunks end at or before the boundary at this chunk's start, and
// this one begins there or later.
func checkpoint(in *Input, g pd.CacheGroup) pageRange {
	align := in.Contract.AlignmentTokens
	reached := pd.FloorTo(in.Span.End, align)
	low := max(reached-g.WindowTokens, pd.FloorTo(in.Span.Start, align), in.TargetHit)
	p := pageRange{low / g.PageTokens, reached / g.PageTokens}
	if in.Final && in.Span.End > in.TargetHit {
		p.end = g.Pages(in.Span.End)
	}
	p.end = max(p.end, p.first)
	return p
}

// neededPage is the oldest page of a rolling group that decode needs at the end
// of the handoff: its window, and under the policies that move the whole tail
// also the rest of that.
func neededPage(in *Input, g pd.CacheGroup) int {
	need := max(0, in.PromptTokens-g.WindowTokens)
	if in.Contract.RollingPolicy != RollingAll {
		need = min(need, max(TailStart(in.Contract, g, in.PromptTokens), in.TargetHit))
	}
	return need / g.PageTokens
}

// oldestInSource is the oldest page in prefill's ring once this chunk is
// computed, oldestInTarget the oldest in decode's at the end of the handoff.
func oldestInSource(in *Input, g pd.CacheGroup) int {
	return g.Pages(in.Span.End) - in.SourcePeriods[g.Name]
}

func oldestInTarget(in *Input, g pd.CacheGroup) int {
	return g.Pages(in.PromptTokens) - in.TargetPeriods[g.Name]
}

// fits reports the ring that does not hold a range of pages.
func fits(in *Input, g pd.CacheGroup, p pageRange) error {
	for _, ring := range []struct {
		who            string
		oldest, period int
	}{
		{"prefill", oldestInSource(in, g), in.SourcePeriods[g.Name]},
		{"decode", oldestInTarget(in, g), in.TargetPeriods[g.Name]},
	} {
		if p.first < ring.oldest {
			return invalid(in, "group %s: page %d has left %s's ring of %d pages, which begins at page %d", g.Name, p.first, ring.who, ring.period, ring.oldest)
		}
	}
	return nil
}

// checkRings refuses nodes that name no ring for a group that needs one.
func checkRings(in *Input) error {
	for _, g := range in.Contract.Groups {
		if g.Kind == pd.Full {
			continue
		}
		for _, ring := range []struct {
			who    string
			period int
		}{{"prefill", in.SourcePeriods[g.Name]}, {"decode", in.TargetPeriods[g.Name]}} {
			if ring.period < 1 {
				return invalid(in, "group %s: %s's ring has %d pages", g.Name, ring.who, ring.period)
			}
		}
	}
	return nil
}

package adapter

import (
	"slices"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Verify is decode's side of a plan: it rebuilds the manifest from its own
// tables, taking only the source pages from the offer, and requires equality.
// in carries decode's facts and prefill's topology and ring periods; its source
// tables, hit and slot are ignored. Errors are CodeInvalidPlan, or
// CodeInvalidDigest where the final chunk is not of the prepared request.
func Verify(in Input, offered *pd.Manifest) error {
	in.Chunk, in.Span, in.Final = offered.Chunk, offered.Span, offered.Final
	in.SourcePartition, in.SourceHit = offered.SourcePartition, offered.SourceHitTokens
	if offered.Final != (offered.Bootstrap != nil) || offered.Final != (offered.FirstToken != nil) {
		return invalid(&in, "final chunks, and only they, carry bootstrap and first token")
	}
	if offered.Final {
		in.SourceSlot, in.FirstToken = offered.Bootstrap.SourceSlot, *offered.FirstToken
	}
	want, err := plan(&in, func(g pd.CacheGroup, p pageRange) ([]pd.Page, error) { return offeredPages(&in, g, p, offered.Copies) })
	if err != nil {
		return err
	}
	return equal(&in, &want, offered)
}

// offeredPages lists the source pages that the offer has for a range of logical
// pages of one group. All components of a group share its pages; the one whose
// rows cover the fewest tokens has them all.
func offeredPages(in *Input, g pd.CacheGroup, p pageRange, copies []pd.Copy) ([]pd.Page, error) {
	var lead *pd.Component
	for i := range in.Contract.Components {
		if c := &in.Contract.Components[i]; c.Group == g.Name && (lead == nil || c.RowTokens < lead.RowTokens) {
			lead = c
		}
	}
	if lead == nil || p.count() == 0 {
		return make([]pd.Page, p.count()), nil
	}
	first := slices.IndexFunc(copies, func(c pd.Copy) bool { return c.Component == lead.ID })
	pages := make([]pd.Page, 0, p.count())
	for i := first; i >= 0 && i < len(copies) && copies[i].Component == lead.ID; i++ {
		c := copies[i]
		if c.Count < 1 || c.Count > p.count()-len(pages) {
			return nil, invalid(in, "copy %d of %s has %d pages, the reservation plan has %d left", i, c.Component, c.Count, p.count()-len(pages))
		}
		for k := range c.Count {
			pages = append(pages, c.Source+pd.Page(k))
		}
	}
	if len(pages) < p.count() {
		return nil, invalid(in, "%d pages of %s, the reservation plan has %d", len(pages), lead.ID, p.count())
	}
	return pages, nil
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
			return invalid(in, "copy %d of %s to page %d x%d differs from the reservation plan (%s to page %d x%d)",
				i, got.Copies[i].Component, got.Copies[i].Target, got.Copies[i].Count,
				want.Copies[i].Component, want.Copies[i].Target, want.Copies[i].Count)
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

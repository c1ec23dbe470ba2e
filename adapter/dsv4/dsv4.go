// Package dsv4 is the adapter of DeepSeek V4 Flash DSpark with K7 drafting:
// eight regions in seven cache groups, and the hidden-state bootstrap
// (pd-domain §5). It holds facts only.
package dsv4

import (
	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// ID is the adapter's name in contracts.
const ID = "deepseek-v4-dspark-k7"

// Cache groups in the order of every table and message.
const (
	Ori           pd.GroupName = "ori"
	CmpC128       pd.GroupName = "cmp_c128"
	CmpC4         pd.GroupName = "cmp_c4"
	Idx           pd.GroupName = "idx"
	HCAState      pd.GroupName = "hca_state"
	CSAState      pd.GroupName = "csa_state"
	CSAInnerState pd.GroupName = "csa_inner_state"
)

// Hidden is the component id of the bootstrap arena.
const Hidden pd.ComponentID = "dspark_hidden"

// version is the contract version: 7 adds the hidden bootstrap and rank-mod
// mapping to what earlier drafts called 6.
const version = 7

// alignment is the prefix boundary: the least common multiple of all page
// capacities, and the window that decode reads.
const alignment = 128

// Geometry is the shape of one model of the family. The zero value is invalid;
// use Full or Tiny.
type Geometry struct {
	name                                  string
	all, hca, csa                         []int
	latent, index, hcaState, csaState, in int
	hidden                                int
}

// Full is the true model: 43 layers, of which 21 compress 4:1 (CSA), 20
// compress 128:1 (HCA) and 2 keep the sliding window only. Which layer is which
// changes no byte count; the layers alternate from layer 2 on.
func Full() Geometry {
	g := Geometry{name: "full", latent: 512, index: 128, hcaState: 1024, csaState: 2048, in: 512, hidden: 3 * 4096}
	for l := range 43 {
		g.all = append(g.all, l)
		switch {
		case l >= 2 && l%2 == 0:
			g.csa = append(g.csa, l)
		case l >= 2:
			g.hca = append(g.hca, l)
		}
	}
	return g
}

// Tiny has the same regions, groups, page capacities and windows with few
// layers and short rows, so that a node of sixteen ranks fits a laptop.
func Tiny() Geometry {
	return Geometry{
		name: "tiny", all: []int{0, 1, 2, 3}, csa: []int{2}, hca: []int{3},
		latent: 32, index: 8, hcaState: 16, csaState: 32, in: 8, hidden: 3 * 16,
	}
}

// ID implements adapter.Adapter.
func (Geometry) ID() string { return ID }

// Contract implements adapter.Adapter.
func (g Geometry) Contract(revision, provider string) pd.Contract {
	return pd.Contract{
		ProtocolVersion: pd.ProtocolVersion,
		Adapter:         ID, AdapterVersion: version,
		Family: "deepseek_v4", Variant: "dspark", SpeculativeTokens: 7,
		Continuation: ID + "/v3", Granularity: "chunk-after-prefill", FinalPartial: "exclusive-full-page",
		ModelRevision: revision, Provider: provider,
		Mapping: "rank-mod", RollingPolicy: adapter.RollingTail,
		AlignmentTokens: alignment, ByteAlignment: 64,
		Groups: []pd.CacheGroup{
			{Name: Ori, Kind: pd.Rolling, PageTokens: 32, WindowTokens: 128},
			{Name: CmpC128, Kind: pd.Full, PageTokens: 128},
			{Name: CmpC4, Kind: pd.Full, PageTokens: 128},
			{Name: Idx, Kind: pd.Full, PageTokens: 128},
			{Name: HCAState, Kind: pd.FinalOnly, PageTokens: 8, WindowTokens: 128},
			{Name: CSAState, Kind: pd.FinalOnly, PageTokens: 2, WindowTokens: 8},
			{Name: CSAInnerState, Kind: pd.FinalOnly, PageTokens: 2, WindowTokens: 8},
		},
		Components: []pd.Component{
			{ID: "ori", Group: Ori, DType: "bf16", ElementBytes: 2, RowsPerPage: 32, RowTokens: 1, RowElements: g.latent, Layers: g.all},
			{ID: "hca_cmp", Group: CmpC128, DType: "bf16", ElementBytes: 2, RowsPerPage: 1, RowTokens: 128, RowElements: g.latent, Layers: g.hca},
			{ID: "csa_cmp", Group: CmpC4, DType: "bf16", ElementBytes: 2, RowsPerPage: 32, RowTokens: 4, RowElements: g.latent, Layers: g.csa},
			{ID: "idx_k", Group: Idx, Atomic: "index", DType: "int8", ElementBytes: 1, RowsPerPage: 32, RowTokens: 4, RowElements: g.index, Layers: g.csa},
			{ID: "idx_scale", Group: Idx, Atomic: "index", DType: "fp32", ElementBytes: 4, RowsPerPage: 32, RowTokens: 4, RowElements: 1, Layers: g.csa},
			{ID: "hca_state", Group: HCAState, DType: "fp32", ElementBytes: 4, RowsPerPage: 8, RowTokens: 1, RowElements: g.hcaState, Layers: g.hca},
			{ID: "csa_state", Group: CSAState, DType: "fp32", ElementBytes: 4, RowsPerPage: 2, RowTokens: 1, RowElements: g.csaState, Layers: g.csa},
			{ID: "csa_inner_state", Group: CSAInnerState, DType: "fp32", ElementBytes: 4, RowsPerPage: 2, RowTokens: 1, RowElements: g.in, Layers: g.csa},
		},
		Bootstrap: pd.Bootstrap{Component: Hidden, Rows: alignment, RowElements: g.hidden, ElementBytes: 2},
	}
}

// SourceHitLimit implements adapter.Adapter: the last 128 tokens are always
// computed, because their hidden states are captured (pd-domain §5.6).
func (Geometry) SourceHitLimit(promptTokens int) int {
	return pd.FloorTo(max(0, promptTokens-alignment), alignment)
}

// TargetHitLimit implements adapter.Adapter: decode may have the whole prompt
// up to the last boundary; window, states and bootstrap arrive in any case.
func (Geometry) TargetHitLimit(promptTokens int) int {
	return pd.FloorTo(promptTokens, alignment)
}

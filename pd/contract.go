package pd

import (
	"fmt"
	"slices"
)

// ProtocolVersion is the only control protocol this software speaks.
const ProtocolVersion = 2

// Component is one tensor of a model's cache: how a page of it is laid out.
// Nothing here depends on a node.
type Component struct {
	ID    ComponentID `json:"id"`
	Group GroupName   `json:"group"`
	// Atomic names a set of components that move together or not at all.
	Atomic       string `json:"atomic"`
	DType        string `json:"dtype"`
	ElementBytes int    `json:"element_bytes"`
	RowsPerPage  int    `json:"rows_per_page"`
	// RowTokens is the compression ratio: token positions per row.
	RowTokens   int `json:"row_tokens"`
	RowElements int `json:"row_elements"`
	// Layers are the model layers that have this tensor, ascending. An arena is
	// layer-major in this order.
	Layers []int `json:"layers"`
}

// RowBytes is the size of one row of one layer.
func (c Component) RowBytes() int { return c.RowElements * c.ElementBytes }

// PageBytes is the size of one page of one layer.
func (c Component) PageBytes() int { return c.RowsPerPage * c.RowBytes() }

// Bootstrap is the fixed window of target hidden states that prefill captures
// and decode feeds to its drafter once, at admission.
type Bootstrap struct {
	Component    ComponentID `json:"component"`
	Rows         int         `json:"rows"`
	RowElements  int         `json:"row_elements"`
	ElementBytes int         `json:"element_bytes"`
}

// RowBytes is the size of one captured row.
func (b Bootstrap) RowBytes() int { return b.RowElements * b.ElementBytes }

// SlotBytes is the size of one slot; it does not depend on the prompt.
func (b Bootstrap) SlotBytes() int { return b.Rows * b.RowBytes() }

// Contract is the common data contract: every field must be equal on both
// nodes of a pair. What may differ (topology, arena sizes, ring periods,
// prefix caching) is not here.
type Contract struct {
	ProtocolVersion   int    `json:"protocol_version"`
	Adapter           string `json:"adapter"`
	AdapterVersion    int    `json:"adapter_version"`
	Family            string `json:"family"`
	Variant           string `json:"variant"`
	SpeculativeTokens int    `json:"speculative_tokens"`
	Continuation      string `json:"continuation"`
	Granularity       string `json:"granularity"`
	FinalPartial      string `json:"final_partial"`
	ModelRevision     string `json:"model_revision"`
	Provider          string `json:"provider"`
	// Mapping is the rank mapping rule (pd-domain §5.8).
	Mapping string `json:"mapping"`
	// RollingPolicy says which pages of rolling groups move.
	RollingPolicy   string       `json:"rolling_policy"`
	AlignmentTokens int          `json:"alignment_tokens"`
	ByteAlignment   int          `json:"byte_alignment"`
	Groups          []CacheGroup `json:"groups"`
	Components      []Component  `json:"components"`
	Bootstrap       Bootstrap    `json:"bootstrap"`
}

// Group finds a cache group by name.
func (c *Contract) Group(name GroupName) (CacheGroup, bool) {
	i := slices.IndexFunc(c.Groups, func(g CacheGroup) bool { return g.Name == name })
	if i < 0 {
		return CacheGroup{}, false
	}
	return c.Groups[i], true
}

// Component finds a component by id.
func (c *Contract) Component(id ComponentID) (Component, bool) {
	i := slices.IndexFunc(c.Components, func(x Component) bool { return x.ID == id })
	if i < 0 {
		return Component{}, false
	}
	return c.Components[i], true
}

// RegionBytes is the extent that one component's arena must have on a node
// with the given physical pages per layer.
func (c *Contract) RegionBytes(component Component, pagesPerLayer int) int64 {
	return int64(len(component.Layers)) * int64(pagesPerLayer) * int64(component.PageBytes())
}

// Diff names the first field in which two contracts differ, or "" if they are
// equal. Pairing errors quote it.
func (c *Contract) Diff(o *Contract) string {
	for _, f := range []struct {
		name string
		same bool
	}{
		{"protocol_version", c.ProtocolVersion == o.ProtocolVersion},
		{"adapter", c.Adapter == o.Adapter},
		{"adapter_version", c.AdapterVersion == o.AdapterVersion},
		{"family", c.Family == o.Family},
		{"variant", c.Variant == o.Variant},
		{"speculative_tokens", c.SpeculativeTokens == o.SpeculativeTokens},
		{"continuation", c.Continuation == o.Continuation},
		{"granularity", c.Granularity == o.Granularity},
		{"final_partial", c.FinalPartial == o.FinalPartial},
		{"model_revision", c.ModelRevision == o.ModelRevision},
		{"provider", c.Provider == o.Provider},
		{"mapping", c.Mapping == o.Mapping},
		{"rolling_policy", c.RollingPolicy == o.RollingPolicy},
		{"alignment_tokens", c.AlignmentTokens == o.AlignmentTokens},
		{"byte_alignment", c.ByteAlignment == o.ByteAlignment},
		{"bootstrap", c.Bootstrap == o.Bootstrap},
	} {
		if !f.same {
			return f.name
		}
	}
	if len(c.Groups) != len(o.Groups) {
		return "groups"
	}
	for i, g := range c.Groups {
		if g != o.Groups[i] {
			return fmt.Sprintf("groups[%s]", g.Name)
		}
	}
	if len(c.Components) != len(o.Components) {
		return "components"
	}
	for i, a := range c.Components {
		b := o.Components[i]
		if !slices.Equal(a.Layers, b.Layers) {
			return fmt.Sprintf("components[%s].layers", a.ID)
		}
		if a.ID != b.ID || a.Group != b.Group || a.Atomic != b.Atomic || a.DType != b.DType ||
			a.ElementBytes != b.ElementBytes || a.RowsPerPage != b.RowsPerPage ||
			a.RowTokens != b.RowTokens || a.RowElements != b.RowElements {
			return fmt.Sprintf("components[%s]", a.ID)
		}
	}
	return ""
}

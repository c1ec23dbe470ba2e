package pd

import "fmt"

// GroupName names a cache group: a family of pages that share one page table.
type GroupName string

// GroupKind says how long a group's pages matter. The zero value is invalid.
type GroupKind int

// The kinds of cache group.
const (
	// Full groups keep every page of the request's history.
	Full GroupKind = 1
	// Rolling groups keep the pages of a window in a ring; full pages can be
	// shared as prefix.
	Rolling GroupKind = 2
	// FinalOnly groups are rolling, belong to one request, are never shared and
	// move in the final chunk only.
	FinalOnly GroupKind = 3
)

var kindNames = map[GroupKind]string{Full: "full", Rolling: "rolling", FinalOnly: "final_only"}

// String gives the wire spelling.
func (k GroupKind) String() string {
	if s, ok := kindNames[k]; ok {
		return s
	}
	return fmt.Sprintf("GroupKind(%d)", int(k))
}

// MarshalText implements encoding.TextMarshaler.
func (k GroupKind) MarshalText() ([]byte, error) {
	if _, ok := kindNames[k]; !ok {
		return nil, fmt.Errorf("invalid group kind %d", int(k))
	}
	return []byte(k.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *GroupKind) UnmarshalText(b []byte) error {
	for v, s := range kindNames {
		if s == string(b) {
			*k = v
			return nil
		}
	}
	return fmt.Errorf("group kind %q is unknown", b)
}

// CacheGroup is one family of pages with one table per request.
type CacheGroup struct {
	Name GroupName `json:"name"`
	Kind GroupKind `json:"kind"`
	// PageTokens is how many token positions one page covers.
	PageTokens int `json:"page_tokens"`
	// WindowTokens is how many of the last positions decode reads; 0 for Full.
	WindowTokens int `json:"window_tokens"`
}

// Pages is how many pages cover the first tokens positions.
func (g CacheGroup) Pages(tokens int) int { return CeilDiv(tokens, g.PageTokens) }

// RingPeriod is the ring length in pages that lets inFlight new positions be
// written while the window behind them is still read (pd-domain §5.5).
func (g CacheGroup) RingPeriod(inFlight int) int {
	return CeilDiv(g.WindowTokens-1+inFlight, g.PageTokens) + 1
}

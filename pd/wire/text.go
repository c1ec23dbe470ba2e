package wire

import (
	"slices"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// maxText bounds a text for people in a message.
const maxText = 1024

func clip(s string) string {
	if len(s) > maxText {
		const more = "…"
		s = s[:maxText-len(more)]
		return strings.ToValidUTF8(s, "") + more
	}
	return strings.ToValidUTF8(s, "?")
}

// clipped gives a message whose texts for people fit. The original is not
// changed; it is returned where it fits.
func clipped(m any) any {
	switch m := m.(type) {
	case *Node:
		c := *m
		c.Reason = clip(m.Reason)
		return &c
	case *Abort:
		c := *m
		c.Reason, c.Results = clip(m.Reason), clippedResults(m.Results)
		return &c
	case *Status:
		c := *m
		c.Why = clip(m.Why)
		return &c
	case *Results:
		c := *m
		c.Results = clippedResults(m.Results)
		return &c
	case *Commit:
		c := *m
		c.Results = clippedResults(m.Results)
		return &c
	}
	return m
}

func clippedResults(results []pd.UnitResult) []pd.UnitResult {
	results = slices.Clone(results)
	for i := range results {
		results[i].Detail = clip(results[i].Detail)
	}
	return results
}

package pd

import "fmt"

// Span is the half-open range [Start, End) of token positions.
type Span struct {
	Start int `json:"start"`
	End   int `json:"end"`
}

// Len is the number of positions.
func (s Span) Len() int { return s.End - s.Start }

// String prints [start,end).
func (s Span) String() string { return fmt.Sprintf("[%d,%d)", s.Start, s.End) }

// CeilDiv is a/b rounded up; a >= 0, b > 0.
func CeilDiv(a, b int) int { return (a + b - 1) / b }

// FloorTo rounds a down to a multiple of unit; a >= 0, unit > 0.
func FloorTo(a, unit int) int { return a - a%unit }

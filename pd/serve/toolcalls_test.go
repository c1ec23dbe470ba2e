package serve

import (
	"fmt"
	"strings"
	"testing"
)

// read feeds a text in pieces of n bytes and shows what became of it.
func read(text string, n int, single bool) string {
	p := &callParser{single: single}
	var content strings.Builder
	var calls []string
	take := func(pieces []piece) {
		for _, x := range pieces {
			switch {
			case x.content != "":
				content.WriteString(x.content)
			case x.name != "":
				calls = append(calls, x.name+" ")
			default:
				calls[x.call] += x.arguments
			}
		}
	}
	for text != "" {
		k := min(n, len(text))
		pieces, err := p.feed(text[:k])
		take(pieces)
		if err != nil {
			return fmt.Sprintf("%q %q failed", content.String(), calls)
		}
		text = text[k:]
	}
	pieces, complete := p.end()
	take(pieces)
	return fmt.Sprintf("%q %q %t", content.String(), calls, complete)
}

// However a text is cut, it is read alike.
func FuzzCallsInPieces(f *testing.F) {
	f.Add(`a <tool_call>{"name":"f","arguments":{"b":"}\"<","c":[{}]}}</tool_call> <tool_call> { "name": "g", "arguments": {} } </tool_call>`, 3)
	f.Add(`<tool_call>{"name":"f","arguments":{"b":`, 1)
	f.Add(`<tool_call>{"name":"f","arguments":{}}</tool_call> so `, 50)
	f.Add(`<tool_<tool_call>{"name":"f","arguments":[]`, 2)
	f.Fuzz(func(t *testing.T, text string, n int) {
		// What is held back has a bound, at which the size of pieces matters.
		if len(text) > maxCallTail || n < 1 {
			return
		}
		for _, single := range []bool{false, true} {
			if whole, cut := read(text, max(len(text), 1), single), read(text, n, single); whole != cut {
				t.Fatalf("whole %s, in pieces of %d %s", whole, n, cut)
			}
		}
	})
}

package arch

import (
	"go/parser"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestStyleChecksSeeWhatIsWrong runs the checks on a file with every mistake.
func TestStyleChecksSeeWhatIsWrong(t *testing.T) {
	text := `package bad

import "time"

type T struct{}

func F() { time.Sleep(1) }

func (T) M() {}

func (*G[X]) M() {}

const C = 1

var (
	V int // V is described here.
	W int
)

// These are described together.
const (
	A = 1
	B = 2
)

type hidden struct{}

func (hidden) M() {}

// Good is described.
func Good() {}
`
	syntax, err := parser.ParseFile(files, "bad.go", text, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	s := source{path: "bad.go", syntax: syntax}
	assert.Equal(t, []string{
		"bad.go: T has no doc comment", "bad.go: F has no doc comment", "bad.go: M has no doc comment", "bad.go: M has no doc comment",
		"bad.go: C has no doc comment", "bad.go: W has no doc comment",
	}, undescribed(s))
	assert.Equal(t, []string{"bad.go:7: a test must wait for an event, not for time"}, sleepers(s))
	assert.Equal(t, []string{"package . has no package comment"}, packageDocs([]source{s}))
}

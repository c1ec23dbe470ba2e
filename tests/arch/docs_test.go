package arch

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func readDoc(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(path.Join(root, "docs", name))
	require.NoError(t, err)
	return string(b)
}

var invariantNumber = regexp.MustCompile(`\bI-\d\d\b`)

// TestInvariantsAreListed: every number that the code uses is explained, and
// the page explains none twice.
func TestInvariantsAreListed(t *testing.T) {
	listed := map[string]int{}
	for line := range strings.Lines(readDoc(t, "invariants.md")) {
		if cell, ok := strings.CutPrefix(line, "| I-"); ok {
			listed["I-"+cell[:2]]++
		}
	}
	for number, times := range listed {
		assert.Equal(t, 1, times, "docs/invariants.md lists %s more than once", number)
	}
	used := 0
	for _, s := range load(t) {
		text, err := os.ReadFile(path.Join(root, s.path))
		require.NoError(t, err)
		if strings.HasPrefix(s.path, "tests/arch/") {
			continue
		}
		for _, number := range invariantNumber.FindAllString(string(text), -1) {
			used++
			assert.NotZero(t, listed[number], "%s speaks of %s, which docs/invariants.md does not list", s.path, number)
		}
	}
	assert.NotZero(t, used)
}

// starts lists the places of a file that start a goroutine.
func starts(s source) []string {
	var out []string
	at := func(n ast.Node) {
		out = append(out, fmt.Sprintf("%s:%d", s.path, files.Position(n.Pos()).Line))
	}
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			at(n)
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Go" && len(n.Args) == 1 {
				at(n)
			}
		}
		return true
	})
	return out
}

// TestGoroutinesAreListed: a package that starts goroutines has a row in
// docs/threads.md. Programs and test support share one.
func TestGoroutinesAreListed(t *testing.T) {
	page := readDoc(t, "threads.md")
	var starting []string
	for _, s := range load(t) {
		pkg := s.pkg()
		if s.isTest() || strings.HasSuffix(pkg, "test") || strings.HasPrefix(pkg, "tests/") || strings.HasPrefix(pkg, "examples/") {
			continue
		}
		if strings.HasPrefix(pkg, "cmd/") {
			pkg = "cmd"
		}
		for _, place := range starts(s) {
			starting = append(starting, pkg)
			assert.Contains(t, page, "| `"+pkg+"` |", "%s starts a goroutine that docs/threads.md does not name", place)
		}
	}
	assert.True(t, slices.Contains(starting, "pd/edge"), "the check sees goroutines at all")
}

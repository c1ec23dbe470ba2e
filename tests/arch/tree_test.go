package arch

import (
	"fmt"
	"go/ast"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// topLevel is everything that may stand at the root, beside names that begin
// with a dot. The last three are made by make and ignored by git.
var topLevel = []string{
	"cmd", "pd", "mooncake", "adapter", "router", "cgo", "include", "examples", "docs", "tests",
	"go.mod", "go.sum", "Makefile", "README.md", "LICENSE",
	"bin", "dist", "serving_log",
}

func strangers(entries []string) []string {
	return slices.DeleteFunc(slices.Clone(entries), func(name string) bool {
		return strings.HasPrefix(name, ".") || slices.Contains(topLevel, name)
	})
}

func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir(root)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	assert.Empty(t, strangers(names), "entries at the root that are not in docs/architecture.md")
	assert.Equal(t, []string{"main.go", "util"}, strangers([]string{"pd", "main.go", ".ci", "util", "go.mod"}))
}

// maxLines is where a file becomes hard to enter. Tests are tables and may be
// longer.
const maxLines = 600

func long(all []source) []string {
	var out []string
	for _, s := range all {
		if !s.isTest() && s.lines > maxLines {
			out = append(out, fmt.Sprintf("%s has %d lines, the limit is %d", s.path, s.lines, maxLines))
		}
	}
	return out
}

func TestFilesAreShort(t *testing.T) {
	report(t, long(load(t)))
	assert.Len(t, long([]source{{path: "a.go", lines: 601}, {path: "b.go", lines: 600}, {path: "a_test.go", lines: 999}}), 1)
}

// packageDocs lists packages without a package comment in doc.go, or in their
// only file.
func packageDocs(all []source) []string {
	described, seen := map[string]bool{}, map[string]int{}
	for _, s := range all {
		if s.isTest() {
			continue
		}
		seen[s.pkg()]++
		described[s.pkg()] = described[s.pkg()] || s.syntax.Doc != nil
	}
	var out []string
	for pkg := range seen {
		if !described[pkg] {
			out = append(out, fmt.Sprintf("package %s has no package comment", pkg))
		}
	}
	slices.Sort(out)
	return out
}

func TestPackagesAreDescribed(t *testing.T) {
	report(t, packageDocs(load(t)))
}

// undescribed lists exported names without a doc comment.
func undescribed(s source) []string {
	var out []string
	miss := func(name *ast.Ident, docs ...*ast.CommentGroup) {
		if name.IsExported() && !slices.ContainsFunc(docs, func(d *ast.CommentGroup) bool { return d != nil }) {
			out = append(out, fmt.Sprintf("%s: %s has no doc comment", s.path, name.Name))
		}
	}
	for _, d := range s.syntax.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if receiverExported(d) {
				miss(d.Name, d.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					miss(spec.Name, d.Doc, spec.Doc, spec.Comment)
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						miss(n, d.Doc, spec.Doc, spec.Comment)
					}
				}
			}
		}
	}
	return out
}

func receiverExported(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}

func TestExportedNamesAreDescribed(t *testing.T) {
	for _, s := range load(t) {
		if !s.isTest() && s.syntax.Name.Name != "main" {
			report(t, undescribed(s))
		}
	}
}

// sleepers lists calls of time.Sleep.
func sleepers(s source) []string {
	var out []string
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if ok && sel.Sel.Name == "Sleep" {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
				out = append(out, fmt.Sprintf("%s:%d: a test must wait for an event, not for time", s.path, files.Position(n.Pos()).Line))
			}
		}
		return true
	})
	return out
}

func TestTestsDoNotSleep(t *testing.T) {
	for _, s := range load(t) {
		if s.isTest() {
			report(t, sleepers(s))
		}
	}
}

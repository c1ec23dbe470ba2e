package conformance

import (
	_ "embed"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// routerCases are the cases that concern the PD router.
const routerCases = "B01 B02 B03 B06 B08 B10 B13 B14 B15 B22 B23 B24 B25 B28 B29 B33 B34 B36 B37 B48 B50 B53 B60"

// fleetCases are the cases that concern the fleet router and its launcher.
const fleetCases = "B01 B06 B08 B10 B13 B14 B15 B17 B18 B19 B20 B23 B24 B25 B28 B29 B30 B32 B36 B37 B48 B50 B51 B53 B54 B57 B60"

//go:embed testdata/router_cases.txt
var routerCaseList string

//go:embed testdata/fleet_cases.txt
var fleetCaseList string

// caseTest is one test that the list names for a case.
type caseTest struct{ id, folder, name string }

// readCaseList gives the ids in their order and the tests of all of them.
func readCaseList(t *testing.T, text string) (ids []string, tests []caseTest) {
	t.Helper()
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#":
		case line[0] != '\t':
			require.Regexp(t, `^B\d\d$`, words[0], line)
			require.Greater(t, len(words), 1, "%s: say what it is about", words[0])
			ids = append(ids, words[0])
		default:
			require.Len(t, words, 2, line)
			require.NotEmpty(t, ids, line)
			tests = append(tests, caseTest{ids[len(ids)-1], words[0], words[1]})
		}
	}
	return ids, tests
}

// testsOf gives the texts of the test functions of a folder, comments and all.
func testsOf(t *testing.T, folder string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
	require.NoError(t, err)
	out := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, text, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") && !strings.HasPrefix(f.Name.Name, "Fuzz") {
				continue
			}
			begin := f.Pos()
			if f.Doc != nil {
				begin = f.Doc.Pos()
			}
			out[f.Name.Name] = string(text[set.Position(begin).Offset:set.Position(f.End()).Offset])
		}
	}
	return out
}

// Every case that concerns a router has tests, they exist, and each says which case
// it is of.
func TestEveryRouterCaseHasItsTests(t *testing.T) {
	t.Run("pd", func(t *testing.T) { requireCases(t, routerCases, routerCaseList) })
	t.Run("fleet", func(t *testing.T) { requireCases(t, fleetCases, fleetCaseList) })
}

func requireCases(t *testing.T, cases, list string) {
	ids, tests := readCaseList(t, list)
	require.Equal(t, strings.Fields(cases), ids)
	byFolder := map[string]map[string]string{}
	for _, c := range tests {
		if byFolder[c.folder] == nil {
			byFolder[c.folder] = testsOf(t, c.folder)
		}
		text, ok := byFolder[c.folder][c.name]
		if !ok {
			t.Errorf("case %s: %s has no %s", c.id, c.folder, c.name)
			continue
		}
		named := map[string]bool{}
		mentionedCases(text, named)
		if !named[c.id] {
			t.Errorf("%s %s does not say that it is of case %s", c.folder, c.name, c.id)
		}
	}
	for _, id := range ids {
		require.True(t, slices.ContainsFunc(tests, func(c caseTest) bool { return c.id == id }), "case %s has no test", id)
	}
}

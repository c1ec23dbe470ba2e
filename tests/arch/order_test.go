package arch

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// order is the text of order.txt, read.
type order struct {
	// allowed: packages that match to may import packages that match from.
	allowed []rule
	// tests is the same for test files.
	tests []rule
	// never: what matches from must not reach what matches to.
	never []rule
}

// rule is one pair of a line; from and to are patterns.
type rule struct{ from, to string }

// parseOrder reads the lines; a line that it does not understand is an error.
func parseOrder(text string) (order, error) {
	var o order
	for n, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "(")
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if left, right, ok := strings.Cut(line, "never reach"); ok {
			o.never = append(o.never, pairs(names(left), names(right))...)
			continue
		}
		left, right, ok := strings.Cut(line, "<")
		if !ok || strings.Contains(right, "<") {
			return o, fmt.Errorf("line %d: want a < b or a never reach b: %q", n+1, line)
		}
		if of, ok := strings.CutPrefix(strings.TrimSpace(right), "tests of "); ok {
			o.tests = append(o.tests, pairs(names(left), names(of))...)
			continue
		}
		o.allowed = append(o.allowed, pairs(names(left), names(right))...)
	}
	return o, nil
}

func pairs(left, right []string) []rule {
	var out []rule
	for _, l := range left {
		for _, r := range right {
			out = append(out, rule{l, r})
		}
	}
	return out
}

// names splits "a, b/{c,d}" into a, b/c, b/d. "everything in" holds for the
// rest of its list.
func names(list string) []string {
	list = strings.TrimSpace(list)
	rest, everything := strings.CutPrefix(list, "everything in ")
	var out []string
	for depth, start, i := 0, 0, 0; i <= len(rest); i++ {
		if i < len(rest) {
			switch rest[i] {
			case '{':
				depth++
			case '}':
				depth--
			}
			if rest[i] != ',' || depth > 0 {
				continue
			}
		}
		for _, name := range braces(strings.TrimSpace(rest[start:i])) {
			if everything {
				name = strings.TrimSuffix(name, "/") + "/..."
			}
			out = append(out, name)
		}
		start = i + 1
	}
	return out
}

func braces(name string) []string {
	before, rest, ok := strings.Cut(name, "{")
	if !ok {
		return []string{name}
	}
	inside, after, _ := strings.Cut(rest, "}")
	var out []string
	for _, one := range strings.Split(inside, ",") {
		out = append(out, before+strings.TrimSpace(one)+after)
	}
	return out
}

// left matches a package against a name on the left: one package, a folder
// followed by /..., or everything.
func left(pattern, pkg string) bool {
	folder, whole := strings.CutSuffix(pattern, "/...")
	return pattern == "everything" || pkg == folder || whole && strings.HasPrefix(pkg, folder+"/")
}

// right is the same, but a name without a slash is a whole folder.
func right(pattern, pkg string) bool {
	return left(pattern, pkg) || !strings.Contains(pattern, "/") && strings.HasPrefix(pkg, pattern+"/")
}

// edge is one import between packages of the module.
type edge struct {
	from, to string
	file     string
	test     bool
}

func match(rules []rule, e edge) bool {
	return slices.ContainsFunc(rules, func(r rule) bool { return left(r.from, e.to) && right(r.to, e.from) })
}

// check lists what the order forbids.
func (o order) check(edges []edge) []string {
	var out []string
	for _, e := range edges {
		if e.from == e.to || match(o.allowed, e) || e.test && match(o.tests, e) {
			continue
		}
		out = append(out, fmt.Sprintf("%s: %s must not import %s (tests/arch/order.txt)", e.file, e.from, e.to))
	}
	for from, reached := range reach(edges) {
		for to, via := range reached {
			if slices.ContainsFunc(o.never, func(r rule) bool { return right(r.from, from) && right(r.to, to) }) {
				out = append(out, fmt.Sprintf("%s reaches %s by %s (tests/arch/order.txt)", from, to, via))
			}
		}
	}
	slices.Sort(out)
	return out
}

// reach gives, for every package, what its program links and by which way.
// Test files are linked into no program.
func reach(edges []edge) map[string]map[string]string {
	next := map[string][]string{}
	for _, e := range edges {
		if !e.test && !slices.Contains(next[e.from], e.to) {
			next[e.from] = append(next[e.from], e.to)
		}
	}
	out := map[string]map[string]string{}
	for from := range next {
		seen := map[string]string{}
		var visit func(pkg, way string)
		visit = func(pkg, way string) {
			for _, to := range next[pkg] {
				if _, ok := seen[to]; !ok && to != from {
					seen[to] = way + " > " + to
					visit(to, seen[to])
				}
			}
		}
		visit(from, from)
		out[from] = seen
	}
	return out
}

// edgesOf gives the imports between packages of the module.
func edgesOf(all []source) []edge {
	var out []edge
	for _, s := range all {
		for _, i := range s.imports {
			if i == module {
				out = append(out, edge{s.pkg(), ".", s.path, s.isTest()})
			}
			if to, ok := strings.CutPrefix(i, module+"/"); ok {
				out = append(out, edge{s.pkg(), to, s.path, s.isTest()})
			}
		}
	}
	return out
}

func readOrder(t *testing.T) order {
	t.Helper()
	text, err := os.ReadFile("order.txt")
	require.NoError(t, err)
	o, err := parseOrder(string(text))
	require.NoError(t, err)
	return o
}

func TestImportOrder(t *testing.T) {
	report(t, readOrder(t).check(edgesOf(load(t))))
}

// TestOrderFileIsTheArchitecture: the page that people read has the same lines.
func TestOrderFileIsTheArchitecture(t *testing.T) {
	page, err := os.ReadFile(root + "/docs/architecture.md")
	require.NoError(t, err)
	text, err := os.ReadFile("order.txt")
	require.NoError(t, err)
	lines, _, _ := strings.Cut(string(text), "# What tests")
	for line := range strings.Lines(lines) {
		if strings.Contains(line, "<") && !strings.HasPrefix(line, "#") {
			assert.Contains(t, string(page), strings.TrimSpace(line), "docs/architecture.md lacks a line of order.txt")
		}
	}
}

func TestNames(t *testing.T) {
	assert.Equal(t, []string{"a", "b/c", "b/d", "e"}, names("a, b/{c,d}, e"))
	assert.Equal(t, []string{"pd/...", "x/..."}, names(" everything in pd/, x "))
	assert.Equal(t, []string{"everything"}, names("everything"))
}

// TestOrderRefuses runs the checker on a small world, each time with one import
// that the order must refuse.
func TestOrderRefuses(t *testing.T) {
	o := readOrder(t)
	good := []edge{
		{from: "pd/lease", to: "pd"},
		{from: "pd/node", to: "pd/lease"},
		{from: "pd/node", to: "adapter"},
		{from: "pd/wire", to: "pd/strictjson"},
		{from: "adapter", to: "pd"},
		{from: "adapter/dsv4", to: "adapter"},
		{from: "pd/control", to: "pd/edge"},
		{from: "pd/shell", to: "pd/control"},
		{from: "router/pdrouter", to: "pd/control"},
		{from: "router/fleet", to: "router/relay"},
		{from: "cmd/pypto-serving/app", to: "pd/shell"},
		{from: "tests/sim", to: "pd/node"},
		{from: "tests/e2e", to: "cmd/pypto-serving/app"},
		{from: "pd/shell", to: "pd/node"},
		{from: "mooncake", to: "cgo/te"},
		{from: "pd/lease", to: "pd/pages", test: true},
		{from: "pd/node", to: "adapter/dsv4", test: true},
		{from: "router/pdrouter", to: "router/fleet", test: true},
	}
	require.Empty(t, o.check(good))
	for _, c := range []struct {
		bad  edge
		want string
	}{
		{edge{from: "pd", to: "pd/lease"}, "must not import"},
		{edge{from: "pd/lease", to: "pd/pages"}, "must not import"},
		{edge{from: "pd/node", to: "pd/edge"}, "must not import"},
		{edge{from: "pd/node", to: "pd/transfer"}, "must not import"},
		{edge{from: "pd/node", to: "adapter/dsv4"}, "must not import"},
		{edge{from: "pd/strictjson", to: "pd/wire"}, "must not import"},
		{edge{from: "adapter", to: "adapter/dsv4"}, "must not import"},
		{edge{from: "adapter", to: "pd/lease"}, "must not import"},
		{edge{from: "router/pdrouter", to: "router/fleet"}, "must not import"},
		{edge{from: "router/fleet", to: "router/pdrouter"}, "must not import"},
		{edge{from: "router/pdrouter", to: "pd/lease"}, "router/pdrouter reaches pd/lease"},
		{edge{from: "router/pdrouter", to: "pd/node", test: true}, "must not import"},
		{edge{from: "mooncake", to: "adapter"}, "must not import"},
		{edge{from: "cgo/te", to: "pd"}, "must not import"},
		{edge{from: "pd/lease", to: "cmd/pypto-serving/app"}, "must not import"},
		{edge{from: "pd/lease", to: "router/relay", test: true}, "must not import"},
		{edge{from: "cmd/pypto-serving/app", to: "tests/sim"}, "reaches tests/sim by cmd/pypto-serving/app > tests/sim"},
		{edge{from: "pd/lease", to: "pd/probe"}, "pd/node reaches pd/probe by pd/node > pd/lease > pd/probe"},
		{edge{from: "tests/sim", to: "pd/control"}, "tests/sim reaches pd/edge by tests/sim > pd/control > pd/edge"},
	} {
		findings := o.check(append(slices.Clone(good), c.bad))
		require.NotEmpty(t, findings, "%s > %s", c.bad.from, c.bad.to)
		assert.Contains(t, strings.Join(findings, "\n"), c.want, "%s > %s", c.bad.from, c.bad.to)
	}
	_, err := parseOrder("pd > everything")
	require.Error(t, err)
}

package arch

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// door is one foreign package and who may import it.
type door struct {
	pkg    string
	places []string
}

func parseDoors(text string) ([]door, error) {
	var out []door
	for n, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		pkg, places, ok := strings.Cut(line, " ")
		if !ok {
			return nil, fmt.Errorf("line %d: want a package and its places: %q", n+1, line)
		}
		d := door{pkg: pkg}
		for _, p := range strings.Split(places, ",") {
			d.places = append(d.places, strings.TrimSpace(p))
		}
		out = append(out, d)
	}
	return out, nil
}

// standard says that an import is of the standard library, which needs no door
// unless doors.txt has one.
func standard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

func (d door) covers(imported string) bool {
	return imported == d.pkg || strings.HasPrefix(imported, d.pkg+"/")
}

func (d door) open(file string) bool {
	pkg := path.Dir(file)
	return slices.ContainsFunc(d.places, func(place string) bool {
		folder, whole := strings.CutSuffix(place, "/...")
		switch {
		case place == "tests":
			return strings.HasSuffix(file, "_test.go") || strings.HasSuffix(pkg, "test") || strings.HasPrefix(file, "tests/")
		case place == "metrics.go":
			return path.Base(file) == place || path.Base(file) == "metrics_test.go"
		case whole:
			return pkg == folder || strings.HasPrefix(pkg, folder+"/")
		}
		return file == place || pkg == place
	})
}

// shut lists imports of foreign packages outside their doors.
func shut(doors []door, all []source) []string {
	var out []string
	for _, s := range all {
		for _, imported := range s.imports {
			if imported == module || strings.HasPrefix(imported, module+"/") {
				continue
			}
			i := slices.IndexFunc(doors, func(d door) bool { return d.covers(imported) })
			switch {
			case i < 0 && standard(imported):
			case i < 0:
				out = append(out, fmt.Sprintf("%s imports %s, which has no door (tests/arch/doors.txt)", s.path, imported))
			case !doors[i].open(s.path):
				out = append(out, fmt.Sprintf("%s imports %s; its door is %s (tests/arch/doors.txt)", s.path, imported, strings.Join(doors[i].places, ", ")))
			}
		}
	}
	slices.Sort(out)
	return out
}

func readDoors(t *testing.T) []door {
	t.Helper()
	text, err := os.ReadFile("doors.txt")
	require.NoError(t, err)
	doors, err := parseDoors(string(text))
	require.NoError(t, err)
	return doors
}

func TestDoors(t *testing.T) {
	report(t, shut(readDoors(t), load(t)))
}

func TestDoorsRefuse(t *testing.T) {
	doors := readDoors(t)
	for _, c := range []struct {
		file, imported string
		open           bool
	}{
		{"pd/edge/server.go", "github.com/valyala/fasthttp", true},
		{"pd/edge/server.go", "github.com/valyala/fasthttp/fasthttputil", true},
		{"pd/control/server.go", "github.com/valyala/fasthttp", false},
		{"pd/control/server_test.go", "github.com/valyala/fasthttp", false},
		{"pd/strictjson/backend.go", "github.com/bytedance/sonic", true},
		{"pd/wire/codec.go", "github.com/bytedance/sonic/ast", false},
		{"pd/probe/probe.go", "github.com/cilium/ebpf", true},
		{"pd/node/node.go", "github.com/cilium/ebpf/link", false},
		{"router/fleet/metrics.go", "github.com/prometheus/client_golang/prometheus", true},
		{"router/fleet/fleet.go", "github.com/prometheus/client_golang/prometheus", false},
		{"cgo/te/te.go", "C", true},
		{"cmd/libpypto-pd/exports.go", "C", true},
		{"mooncake/engine.go", "C", false},
		{"pd/edge/watch.go", "golang.org/x/sys/unix", true},
		{"pd/edge/body.go", "golang.org/x/sys/unix", false},
		{"pd/wire/wire_test.go", "github.com/stretchr/testify/require", true},
		{"adapter/adaptertest/adaptertest.go", "pgregory.net/rapid", true},
		{"pd/wire/codec.go", "github.com/stretchr/testify/require", false},
		{"pd/wire/codec.go", "encoding/json", true},
		{"pd/wire/codec.go", "gopkg.in/yaml.v3", false},
	} {
		findings := shut(doors, []source{{path: c.file, imports: []string{c.imported}}})
		assert.Equal(t, c.open, len(findings) == 0, "%s imports %s: %v", c.file, c.imported, findings)
	}
	_, err := parseDoors("github.com/x/y")
	require.Error(t, err)
}

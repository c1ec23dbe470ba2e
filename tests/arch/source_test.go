package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	module = "github.com/hw-native-sys/pypto-pd"
	root   = "../.."
)

// source is one Go file.
type source struct {
	// path is relative to the root, with slashes.
	path    string
	syntax  *ast.File
	imports []string
	lines   int
}

// pkg is the folder of the file, which is also its import path in the module;
// "." for the root.
func (s source) pkg() string { return path.Dir(s.path) }

func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

var files = token.NewFileSet()

// sources reads every Go file of the repository once, whatever its build tags.
var sources = sync.OnceValues(func() ([]source, error) {
	var out []source
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && p != root && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "vendor") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		syntax, err := parser.ParseFile(files, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		s := source{path: filepath.ToSlash(rel), syntax: syntax, lines: files.Position(syntax.FileEnd).Line}
		for _, i := range syntax.Imports {
			imported, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
			s.imports = append(s.imports, imported)
		}
		out = append(out, s)
		return nil
	})
	return out, err
})

func load(t *testing.T) []source {
	t.Helper()
	all, err := sources()
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

// report fails with every finding at once.
func report(t *testing.T, findings []string) {
	t.Helper()
	for _, f := range findings {
		t.Error(f)
	}
}

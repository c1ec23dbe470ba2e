package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// The commands that README.md and docs/ show are run by the tests below:
//
//   - A command of ours stands in a block that begins with ```sh. A block that
//     is only to be read begins with something else, such as ```text.
//   - The blocks of one page are one session of bash with -eu, from the top of
//     the page to its end, in a copy of the repository with bin/ built. Every
//     command must succeed, and no answer may be an error of the API.
//   - A command that stays up ends with " &". What is still up at the end of the
//     page is stopped in reverse order and must exit with 0.
//   - Ports are replaced by free ones, each port of a page by one and the same.
//   - A block of nothing but make is apart from the session. make demo is run
//     until it says that it stays up, and then interrupted. Other verbs are what
//     runs these tests, or run for long; make must know them.

// block is one ```sh block of a page.
type block struct {
	page string
	line int
	text string
}

// blocksOf finds the ```sh blocks of a page. A block without an end is an error.
func blocksOf(page, text string) ([]block, error) {
	var out []block
	open := ""
	for i, line := range strings.Split(text, "\n") {
		switch fence, ok := strings.CutPrefix(strings.TrimLeft(line, " "), "```"); {
		case ok && open == "":
			if open = "other"; strings.TrimSpace(fence) == "sh" {
				open = "sh"
				out = append(out, block{page: page, line: i + 2})
			}
		case ok:
			open = ""
		case open == "sh":
			out[len(out)-1].text += line + "\n"
		}
	}
	if open != "" {
		return nil, fmt.Errorf("%s: a block has no end", page)
	}
	return out, nil
}

var makeLine = regexp.MustCompile(`^(?:[A-Z_]+=\S+ )*make((?: [a-z-]+)+)$`)

// makes gives the verbs of a block that is nothing but make.
func (b block) makes() []string {
	var verbs []string
	for line := range strings.Lines(b.text) {
		line = strings.TrimSpace(line)
		m := makeLine.FindStringSubmatch(line)
		if m == nil {
			return nil
		}
		verbs = append(verbs, strings.Fields(m[1])...)
	}
	return verbs
}

// portPlace finds where a page names a port.
var portPlace = regexp.MustCompile(`("(?:control_)?port": ?|"port_base": ?|--port[ =]|(?:127\.0\.0\.1|localhost):)([0-9]+)`)

// freshPorts replaces every port of a script.
func freshPorts(t *testing.T, script string) string {
	t.Helper()
	fresh := map[string]string{}
	return portPlace.ReplaceAllStringFunc(script, func(place string) string {
		m := portPlace.FindStringSubmatch(place)
		if fresh[m[2]] == "" {
			fresh[m[2]] = strconv.Itoa(cluster.Ports(t, 1)[0])
		}
		return m[1] + fresh[m[2]]
	})
}

// pageTime bounds the commands of one page, which may build and test.
const pageTime = 10 * time.Minute

// takeJobsAlong ends the jobs of a session that is told to end.
const takeJobsAlong = "trap 'trap - TERM; kill 0' TERM\n"

// stopJobs ends what a page has left running, the last first.
const stopJobs = `
status=0
for job in $(jobs -p | tac); do
	kill "$job"
	wait "$job" || { echo "job $job ended with $?" >&2; status=1; }
done
exit $status
`

// copyOfTree is a copy of what the repository holds, with the programs in bin/.
func copyOfTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root := cluster.Root()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case rel == ".":
			return nil
		case rel == ".git" || rel == "bin" || rel == "dist" || d.Name() == "serving_log":
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case d.IsDir():
			return os.Mkdir(filepath.Join(dir, rel), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		return copyFile(path, filepath.Join(dir, rel), 0o644)
	})
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	for _, program := range []string{cluster.Serving, cluster.Router, cluster.Pdctl, cluster.Fleet} {
		require.NoError(t, copyFile(filepath.Join(cluster.Bin(t), program), filepath.Join(dir, "bin", program), 0o755))
	}
	return dir
}

func copyFile(from, to string, mode os.FileMode) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, mode)
}

// pages are README.md and every page of docs/, relative to the root.
func pages(t *testing.T) []string {
	t.Helper()
	out := []string{"README.md"}
	err := filepath.WalkDir(filepath.Join(cluster.Root(), "docs"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		rel, err := filepath.Rel(cluster.Root(), path)
		out = append(out, rel)
		return err
	})
	require.NoError(t, err)
	return out
}

func TestCommandsOfTheDocumentsWork(t *testing.T) {
	t.Parallel()
	found := 0
	verbs := map[string]bool{}
	for _, page := range pages(t) {
		text, err := os.ReadFile(filepath.Join(cluster.Root(), page))
		require.NoError(t, err)
		blocks, err := blocksOf(page, string(text))
		require.NoError(t, err)
		script := ""
		for _, b := range blocks {
			found++
			if made := b.makes(); made != nil {
				for _, verb := range made {
					verbs[verb] = true
				}
				continue
			}
			script += fmt.Sprintf("echo '# %s:%d'\n%s", b.page, b.line, b.text)
		}
		if script == "" {
			continue
		}
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			dir := copyOfTree(t)
			cluster.EndLaunched(t, dir)
			p := bash(t, dir, freshPorts(t, script)+stopJobs)
			require.Zero(t, p.WaitWithin(t, pageTime), "%s", p.Tail())
			require.NotContains(t, p.Stdout(), `"object":"error"`)
		})
	}
	require.Positive(t, found, "no command was found")
	for verb := range verbs {
		t.Run("make "+verb, func(t *testing.T) {
			t.Parallel()
			dir := copyOfTree(t)
			if verb != "demo" {
				p := bash(t, dir, "make -n "+verb)
				require.Zero(t, p.WaitWithin(t, pageTime), "%s", p.Tail())
				return
			}
			p := bash(t, dir, "exec make demo")
			cluster.Eventually(t, func() error {
				if !p.Alive() {
					t.Fatalf("make demo has ended\n%s", p.Tail())
				}
				return contains(p.Stdout(), "It stays up")
			})
			require.Contains(t, p.Stdout(), "assistant: ")
			// As Ctrl-C does: the whole group of the terminal is interrupted.
			require.NoError(t, syscall.Kill(-p.PID(), syscall.SIGINT))
			p.WaitWithin(t, pageTime)
			cluster.Eventually(t, func() error { return contains(p.Stdout(), "stopping: router, then prefill, then decode") })
			cluster.Eventually(t, func() error { return alive(t, map[int]bool{p.PID(): true}) })
		})
	}
}

func bash(t *testing.T, dir, script string) *cluster.Process {
	t.Helper()
	if strings.Contains(script, "curl ") {
		cluster.Tool(t, "curl", "curl")
	}
	t.Helper()
	return cluster.Spawn(t, cluster.Command{
		Label: "bash", Program: "bash", Args: []string{"-euo", "pipefail", "-c", takeJobsAlong + script}, Dir: dir, Orphaned: syscall.SIGTERM,
	})
}

// The extractor sees what it should, so that no command is left out silently.
func TestExtractorFindsCommands(t *testing.T) {
	t.Parallel()
	got, err := blocksOf("page", "a\n```sh\nmake demo\n```\n```text\nno\n```\n```sh\nbin/x --port 8000 &\ncurl http://127.0.0.1:8000/\n```\n")
	require.NoError(t, err)
	require.Equal(t, []block{{"page", 3, "make demo\n"}, {"page", 9, "bin/x --port 8000 &\ncurl http://127.0.0.1:8000/\n"}}, got)
	require.Equal(t, []string{"demo"}, got[0].makes())
	require.Nil(t, got[1].makes())
	_, err = blocksOf("page", "```sh\nmake\n")
	require.Error(t, err)
	fresh := freshPorts(t, got[1].text)
	require.NotContains(t, fresh, "8000")
	ports := portPlace.FindAllStringSubmatch(fresh, -1)
	require.Len(t, ports, 2)
	require.Equal(t, ports[0][2], ports[1][2])
}

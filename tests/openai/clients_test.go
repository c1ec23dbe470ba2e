package openai

import (
	"bufio"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }

var clients = flag.Bool("openai.clients", false, "install the official clients and run them")

// client is one official client: how it is installed into a folder, and how its
// program is started there.
type client struct {
	name    string
	install [][]string
	run     []string
}

func list(folder string) []client {
	source := filepath.Join(cluster.Root(), "tests/openai")
	in := func(parts ...string) string { return filepath.Join(append([]string{folder}, parts...)...) }
	return []client{
		{
			"python",
			[][]string{
				{"python3", "-m", "venv", in("venv")},
				{in("venv/bin/pip"), "install", "--quiet", "--disable-pip-version-check", "-r", filepath.Join(source, "python/requirements.txt")},
			},
			[]string{in("venv/bin/python"), filepath.Join(source, "python/client.py")},
		},
		{
			"node",
			[][]string{
				{"cp", "-r", filepath.Join(source, "node"), in("node")},
				{"npm", "install", "--prefix", in("node"), "--silent", "--no-audit", "--no-fund"},
			},
			[]string{"node", in("node/client.mjs")},
		},
		{
			"go",
			[][]string{{"go", "build", "-C", filepath.Join(source, "go"), "-o", in("client"), "."}},
			[]string{in("client")},
		},
	}
}

// start begins one part of a client's program. The program says what it waits
// for on lines of its own and ends with 0 if everything was as it must be.
func (c client) start(t *testing.T, url, part string) (*exec.Cmd, *bufio.Scanner, *strings.Builder) {
	t.Helper()
	e := exec.CommandContext(t.Context(), c.run[0], append(c.run[1:], part)...)
	e.Env = append(os.Environ(), "OPENAI_BASE_URL="+url+"/v1", "OPENAI_API_KEY=none", "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	said := &strings.Builder{}
	e.Stderr = said
	out, err := e.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, e.Start())
	return e, bufio.NewScanner(out), said
}

// Behaviours 144 to 148, 153, 155 and 159 as the clients that people use see
// them.
func TestOfficialClients(t *testing.T) {
	if !*clients {
		t.Skip("the official clients are installed and run with -openai.clients, or make e2e-openai")
	}
	for _, c := range list(t.TempDir()) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, command := range c.install {
				out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
				require.NoError(t, err, "%v\n%s", command, out)
			}
			t.Run("answers", c.answers)
			t.Run("broken", c.broken)
		})
	}
}

// answers: everything that goes well, what is refused, overload and leaving.
func (c client) answers(t *testing.T) {
	s := cluster.Start(t, cluster.Options{
		PLayout: "dp2tp1", DLayout: "dp2tp1", Capacity: 4, DecodeFlags: []string{"--sim-decode-rate", "50"},
	})
	e, lines, said := c.start(t, s.URL, "answers")
	for lines.Scan() {
		t.Log(lines.Text())
	}
	require.NoError(t, e.Wait(), "%s", said)
	s.AssertIdle(t)
}

// broken: decode dies in the middle of a stream. The status was 200; the client
// gets an error and no finish.
func (c client) broken(t *testing.T) {
	s := cluster.Start(t, cluster.Options{
		PLayout: "dp2tp1", DLayout: "dp2tp1", DecodeFlags: []string{"--sim-decode-rate", "20"}, ExpectErrors: true,
	})
	e, lines, said := c.start(t, s.URL, "broken")
	if lines.Scan() && lines.Text() == "streaming" {
		s.Decode[0].Kill()
	}
	for lines.Scan() {
		t.Log(lines.Text())
	}
	require.NoError(t, e.Wait(), "%s", said)
}

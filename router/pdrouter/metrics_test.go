package pdrouter

import (
	"bytes"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

const repository = "../.."

// documented are the rows of docs/metrics.md: name to "type labels".
func documented(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(repository, "docs/metrics.md"))
	require.NoError(t, err)
	out := map[string]string{}
	row := regexp.MustCompile("^\\| `(pypto_[a-z_]+)` \\| (counter|gauge|histogram) \\| ([a-z, ]*) \\| [^|]+ \\|$")
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "| `pypto_") {
			continue
		}
		m := row.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		require.NotNil(t, m, "a row is name, type, labels, meaning: %s", line)
		require.NotContains(t, out, m[1], "listed twice")
		out[m[1]] = m[2] + " " + strings.TrimSpace(m[3])
	}
	return out
}

// The page has every metric that any program declares, and no other.
func TestMetricsPageListsWhatTheSourcesDeclare(t *testing.T) {
	name := regexp.MustCompile(`"(pypto_[a-z_]+)"`)
	declared := map[string]string{}
	require.NoError(t, filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(d.Name(), "metrics.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range name.FindAllSubmatch(text, -1) {
			declared[string(m[1])] = path
		}
		return err
	}))
	page := documented(t)
	for n, path := range declared {
		require.Contains(t, page, n, "declared in %s", path)
	}
	for n := range page {
		require.Contains(t, declared, n, "docs/metrics.md lists what nothing declares")
	}
}

// What a router says of itself is what the page says: each name, its type and
// its labels.
func TestMetricsPageIsWhatTheRouterSays(t *testing.T) {
	s := newStand(t, settings{prefills: 2})
	s.ask("POST", "/v1/completions", streamed)
	s.ask("POST", "/v1/completions", `{}`)
	s.ask("POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"c"}]}`)
	s.untilFree()
	_, body := s.ask("GET", "/metrics", "")
	kinds, labels, samples := map[string]string{}, map[string]string{}, map[string]string{}
	for line := range strings.Lines(body) {
		fields := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "# TYPE pypto_"):
			kinds[fields[2]] = fields[3]
		case strings.HasPrefix(line, "pypto_"):
			name, rest, _ := strings.Cut(line, "{")
			var names []string
			for _, m := range regexp.MustCompile(`([a-z]+)="`).FindAllStringSubmatch(rest, -1) {
				if m[1] != "le" {
					names = append(names, m[1])
				}
			}
			name = strings.Fields(name)[0]
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				if base := strings.TrimSuffix(name, part); kinds[base] == "histogram" {
					name = base
				}
			}
			labels[name] = strings.Join(names, ", ")
			samples[name] = line
		}
	}
	said := map[string]string{}
	for n, kind := range kinds {
		said[n] = strings.TrimSpace(kind + " " + labels[n])
		require.Contains(t, samples, n)
	}
	want := map[string]string{}
	for n, row := range documented(t) {
		if strings.HasPrefix(n, "pypto_router_") {
			want[n] = strings.TrimSpace(row)
		}
	}
	require.Equal(t, want, said)
	require.Contains(t, body, `pypto_router_policy{policy="round_robin"} 1`)
	require.Contains(t, body, fmt.Sprintf(`pypto_router_node_requests_total{node="%s",role="decode"} 2`, s.decodes[0].id))
}

// capture is a log that may be written from many goroutines.
type capture struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(p)
}

func (c *capture) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// Each request has one line: ids, the pair, the time of each stage, how it ended.
// Nothing that a client or a model wrote is in any line, at any level.
func TestAccessLogHasStagesAndNoWordOfTheClient(t *testing.T) {
	const secret = "xyzzy"
	var log capture
	s := newStand(t, settings{log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	body := fmt.Sprintf(`{"model":%q,"user":%q,"prompt":%q,"stream":%%t}`, secret, secret, secret)
	headers := []string{"Authorization: Bearer " + secret, "X-Request-Id: " + secret, "X-Session-Id: " + secret}
	lines := func() (out []string) {
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "msg=request ") {
				out = append(out, line)
			}
		}
		return out
	}
	s.ask("POST", "/v1/completions?"+secret, fmt.Sprintf(body, true), headers...)
	written := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return len(lines()) == n }, patience, 2*time.Millisecond)
	}
	written(1)
	for _, key := range []string{
		"request=cmpl-", "kind=completion", "stream=true", "status=200", "state=completed", "handoff=", "prefill=" + string(s.prefills[0].id),
		"decode=" + string(s.decodes[0].id), "chosen=", "prefilled=", "decode_head=", "first=", "ended=", "events=2", "bytes=",
	} {
		require.Contains(t, lines()[0], key)
	}
	s.ask("POST", "/v1/completions", fmt.Sprintf(body, false)+secret, headers...)
	written(2)
	s.ask("POST", "/v1/"+secret, "", headers...)
	s.decodes[0].change(func() { s.decodes[0].post = refuses(pd.Errorf(pd.CodeInternal, "op", "%s", "broken")) })
	s.ask("POST", "/v1/completions", fmt.Sprintf(body, true), headers...)
	written(3)
	s.untilFree()
	require.Contains(t, lines()[1], "code="+pd.CodeInvalidRequest.String())
	require.Contains(t, lines()[2], "state=failed")
	require.NotContains(t, log.String(), secret)
	_, snapshot := s.ask("GET", "/metrics/json", "")
	require.NotContains(t, snapshot, secret)
}

package fleet

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// replica starts a pypto-serving as a fleet router does.
func replica(t *testing.T, more ...string) (*cluster.Process, string) {
	t.Helper()
	port := cluster.Ports(t, 1)[0]
	p := cluster.Spawn(t, cluster.Command{
		Label: "replica", Program: cluster.Serving,
		Args: append([]string{"--model", "/weights/m", "--devices", "0,1", "--host", "0.0.0.0", "--port", strconv.Itoa(port), "--show-startup-logs", "--served-model-name", cluster.Model}, more...),
	})
	require.Equal(t, "combined", p.Ready(t)["role"])
	return p, "http://" + cluster.Address(port)
}

// A failed load is diagnosed from the start-up log alone, at any log level.
func TestStartupLog(t *testing.T) {
	t.Parallel()
	p, url := replica(t, "--log-level", "error", "--ep", "2", "--tp", "1", "--lm-head-tp", "1")
	port := url[strings.LastIndexByte(url, ':')+1:]
	lines := strings.Split(strings.TrimRight(p.Stderr(), "\n"), "\n")
	require.Len(t, lines, 4)
	require.Contains(t, lines[0], "pypto-serving: startup: model /weights/m, served as dsv4, revision ")
	require.Equal(t, "pypto-serving: startup: geometry tiny: 2 ranks, tp 1, 2 partitions, 32 tokens per page, at most 16384 tokens and 8 requests at once", lines[1])
	require.Equal(t, "pypto-serving: startup: port bound: 0.0.0.0:"+port, strings.Replace(lines[2], "[::]", "0.0.0.0", 1))
	require.Regexp(t, `^pypto-serving: startup: memory allocated: 2 ranks with [1-9]\d* regions, [1-9]\d* bytes each$`, lines[3])
}

// Two lives at one address are told apart, and a router sees their load.
func TestServerID(t *testing.T) {
	t.Parallel()
	snapshot := func(url string) (out map[string]any) {
		t.Helper()
		status, body, err := cluster.Get(url + "/metrics/json")
		require.NoError(t, err)
		require.Equal(t, 200, status, "%s", body)
		require.NoError(t, json.Unmarshal(body, &out))
		return out
	}
	layout := []string{"--ep", "2", "--tp", "2", "--lm-head-tp", "1"}
	_, a := replica(t, layout...)
	_, b := replica(t, layout...)
	first, second := snapshot(a), snapshot(b)
	require.Regexp(t, "^[0-9a-f]{32}$", first["server_id"])
	require.Equal(t, first["server_id"], snapshot(a)["server_id"])
	require.NotEqual(t, first["server_id"], second["server_id"])

	q := cluster.Completion{Prompt: cluster.Prompt("id", 1200), Max: 16}
	answer := cluster.MustComplete(t, a, q)
	require.NotEmpty(t, answer.Text)
	after := snapshot(a)
	require.InDelta(t, 16, after["pypto:generation_tokens_total"], 0, fmt.Sprint(after))
	require.Greater(t, after["pypto:prompt_tokens_total"], float64(200))
	require.Equal(t, after["pypto:prompt_tokens_total"], after["pypto:prefix_cache_queries_total"])
	require.Zero(t, after["pypto:num_requests_waiting"])
	cluster.MustComplete(t, a, q)
	require.Greater(t, snapshot(a)["pypto:prefix_cache_hits_total"], after["pypto:prefix_cache_hits_total"])
}

package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// Prometheus's own tool has nothing to say against the metrics of any program.
func TestMetricsAreAsPrometheusWantsThem(t *testing.T) {
	t.Parallel()
	promtool := cluster.Tool(t, "promtool", "prometheus")
	c := cluster.Start(t, cluster.Options{})
	f := newFleet(t, 1, "")
	f.start()
	f.ready(1)
	urls := map[string]string{"PD router": c.URL, "fleet router": f.url, "replica": "http://" + cluster.Address(f.ports[0])}
	for _, n := range c.Nodes() {
		urls[n.Entry.Role.String()+" node"] = n.URL()
	}
	q := cluster.Completion{Prompt: cluster.Prompt("metrics", 40), Max: 4}
	cluster.MustComplete(t, c.URL, q)
	cluster.MustComplete(t, f.url, q)
	require.Len(t, urls, 5)
	for name, url := range urls {
		_, text, err := cluster.Get(url + "/metrics")
		require.NoError(t, err, name)
		require.NotEmpty(t, text, name)
		check := exec.Command(promtool, "check", "metrics")
		check.Stdin = strings.NewReader(string(text))
		out, err := check.CombinedOutput()
		assert.NoError(t, err, "%s: %s", name, out)
		assert.Empty(t, string(out), name)
	}
}

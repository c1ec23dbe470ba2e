package embed

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// prompts are of one page, of several chunks, and longer than every ring.
var prompts = []string{"a", cluster.Prompt("chunks", 300), cluster.Prompt("rings", 700)}

// Hosts in other languages pair with pypto-serving. Its text over their pages is
// the combined node's: every byte that they computed and handed over is right.
func TestForeignPrefillGivesTheCombinedText(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	for _, h := range []server{python, owners, inC} {
		t.Run(string(h), func(t *testing.T) {
			t.Parallel()
			p := start(t, h, serving)
			for i, prompt := range prompts {
				for _, stream := range []bool{true, false} {
					q := cluster.Completion{Prompt: fmt.Sprint(prompt, h, i), Max: 24, Stream: stream}
					want := combined.Text(t, q)
					a, err := cluster.Complete(t.Context(), p.url, q)
					require.NoError(t, err)
					require.Equal(t, 200, a.Status, "%s", a.Raw)
					require.Nil(t, a.Failure)
					require.Equal(t, want, a.Text)
				}
			}
			p.end(t)
		})
	}
}

// A host in another language proves itself to nodes and router that share a secret,
// and is refused without it.
func TestForeignHostSharesTheControlSecret(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("0123456789abcdef0123456789abcdef"), 0o600))
	path, c := cluster.WriteConfig(t, cluster.Options{HandoffSeconds: 20})
	with := func(h server, e config.Entry) *cluster.Process {
		command := h.command(t, path, e)
		command.Args = append(command.Args, "--control-secret-file", secret)
		return cluster.Spawn(t, command)
	}
	p := startRouter(t, path, with(python, c.Entries(pd.Prefill)[0]), with(serving, c.Entries(pd.Decode)[0]), "--control-secret-file", secret)
	q := cluster.Completion{Prompt: cluster.Prompt("secret", 300), Max: 8}
	require.Equal(t, combined.Text(t, q), cluster.MustComplete(t, p.url, q).Text)
	status, _, err := cluster.Get("http://" + c.Entries(pd.Prefill)[0].ControlAddress() + "/pd/v2/node")
	require.NoError(t, err)
	require.Equal(t, 401, status, "whoever has no secret")
	p.end(t)
}

// A foreign decode host answers with the fingerprint of the pages that it was
// given. Whoever prefilled, it is the same.
func TestForeignDecodeReadsTheSamePages(t *testing.T) {
	t.Parallel()
	prints := map[string]string{}
	for _, d := range []server{python, owners, inC} {
		for _, p := range []server{serving, python, inC} {
			t.Run(fmt.Sprint(p, " to ", d), func(t *testing.T) {
				pair := start(t, p, d)
				for i, prompt := range prompts {
					for _, stream := range []bool{true, false} {
						a, err := cluster.Complete(t.Context(), pair.url, cluster.Completion{Prompt: prompt, Max: 4, Stream: stream, Fields: map[string]any{"stream_options": nil}})
						require.NoError(t, err)
						require.Equal(t, 200, a.Status, "%s", a.Raw)
						require.Nil(t, a.Failure)
						key := fmt.Sprint("prompt ", i)
						if prints[key] == "" {
							require.Len(t, a.Text, 64)
							prints[key] = a.Text
						}
						require.Equal(t, prints[key], a.Text, key)
					}
				}
				pair.end(t)
			})
		}
	}
	require.Len(t, prints, len(prompts))
}

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/cmd/pypto-pdctl/order"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// With one control secret everywhere a pair serves as without. Who has none is
// told so.
func TestControlSecretIsSharedByAll(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(strings.Repeat("secret ", 8)), 0o600))
	flag := []string{"--control-secret-file=" + secret}
	c := cluster.Start(t, cluster.Options{PrefillFlags: flag, DecodeFlags: flag, RouterFlags: flag})
	for _, stream := range []bool{false, true} {
		a, err := cluster.Complete(t.Context(), c.URL, cluster.Completion{Prompt: cluster.Prompt("secret ", 300), Max: 20, Stream: stream})
		require.NoError(t, err)
		require.Equal(t, 200, a.Status, "%s", a.Raw)
		require.Nil(t, a.Failure)
	}
	var out strings.Builder
	require.NoError(t, order.Status(t.Context(), c.Path, secret, "", &out))
	require.Equal(t, 2, strings.Count(out.String(), "READY"), "%s", out.String())
	require.Error(t, order.Status(t.Context(), c.Path, "", "", &out), "who has not the secret")
	require.Contains(t, out.String(), "this node has a control secret, and the call carries no proof of it")
}

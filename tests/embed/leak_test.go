package embed

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// A host in C, from its start through requests to its end, loses no memory that
// it or the library had from malloc. The memory of Go is not seen by valgrind;
// tests/embed/testdata/valgrind.supp names what of its start is reported.
func TestHostInCHasNoLeak(t *testing.T) {
	valgrind := cluster.Tool(t, "valgrind", "valgrind")
	path, c := cluster.WriteConfig(t, cluster.Options{HandoffSeconds: 60})
	suppressions, err := filepath.Abs("testdata/valgrind.supp")
	require.NoError(t, err)
	node := func(role pd.Role) *cluster.Process {
		plain := inC.command(t, path, c.Entries(role)[0])
		plain.Args = append([]string{
			"--error-limit=no", "--leak-check=full", "--errors-for-leak-kinds=definite", "--show-leak-kinds=definite",
			"--undef-value-errors=no", "--suppressions=" + suppressions, plainEmbedC(t),
		}, plain.Args...)
		plain.Program = valgrind
		return cluster.Spawn(t, plain)
	}
	p := startRouter(t, path, node(pd.Prefill), node(pd.Decode))
	for i := range 3 {
		for _, stream := range []bool{true, false} {
			a, err := cluster.Complete(t.Context(), p.url, cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint("leak ", i), 200), Max: 4, Stream: stream, Fields: map[string]any{"stream_options": nil}})
			require.NoError(t, err)
			require.Equal(t, 200, a.Status, "%s", a.Raw)
		}
	}
	p.end(t)
	for _, process := range []*cluster.Process{p.prefill, p.decode} {
		require.Regexp(t, `definitely lost: 0 bytes in 0 blocks|All heap blocks were freed`, process.Stderr())
	}
}

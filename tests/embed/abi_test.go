package embed

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/cmd/libpypto-pd/host"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

var update = flag.Bool("update", false, "rewrite golden files")

// golden compares a text with a file of testdata, or writes it there.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

func compile(t *testing.T, source, out string, flags ...string) {
	t.Helper()
	args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-cpp", "-I", filepath.Join(cluster.Root(), "include"), "-o", out, source}, flags...)
	b, err := exec.Command("cc", args...).CombinedOutput()
	require.NoError(t, err, "%s", b)
}

// Numbers and sizes of the header are those of this library, and those of every
// earlier one: what stands here is never changed, only added to.
func TestHeaderIsTheLibrarys(t *testing.T) {
	var c strings.Builder
	c.WriteString("#include \"pypto/pd.h\"\n")
	same := func(what string, want int) {
		fmt.Fprintf(&c, "_Static_assert((%s) == %d, \"%s\");\n", what, want, what)
	}
	same("PYPTO_PD_ABI", 1)
	for name, kind := range map[string]host.Kind{
		"ACCEPTED": host.Accepted, "ENDED": host.Ended, "PREFILL": host.Prefill, "RESUME": host.Resume, "STOP_PREFILL": host.StopPrefill,
		"PAGES_FREE": host.PagesFree, "RESERVE": host.Reserve, "WITHDRAWN": host.Withdrawn, "ADOPT": host.Adopt, "STOP_DECODE": host.StopDecode,
		"RELEASED": host.Released, "QUARANTINED": host.Quarantined,
	} {
		same("PYPTO_PD_"+name, int(kind))
	}
	for _, code := range pd.Codes() {
		same("PYPTO_PD_"+code.String(), int(code))
	}
	for name, size := range map[string]int{
		"bytes": 16, "text": 24, "region": 120, "run": 12, "route": 96, "event": 360, "chunk": 48, "memory": 16, "node": 8, "owner": 8,
	} {
		same("(int)sizeof(pypto_pd_"+name+")", size)
	}
	for field, at := range map[string]int{
		"region, bytes": 64, "region, group": 72, "region, window_tokens": 112, "event, handoff": 8, "event, request": 48, "event, chunk": 312,
		"event, first_token": 324, "event, tokens": 328, "event, cached_tokens": 352, "chunk, start": 24, "chunk, hit_tokens": 40, "memory, hit_tokens": 8,
	} {
		same("(int)offsetof(pypto_pd_"+field+")", at)
	}
	c.WriteString("int main(void) { return 0; }\n")
	source := filepath.Join(t.TempDir(), "layout.c")
	require.NoError(t, os.WriteFile(source, []byte(c.String()), 0o600))
	compile(t, source, source+".out")
	plus := strings.TrimSuffix(source, ".c") + ".cc"
	require.NoError(t, os.WriteFile(plus, []byte("#include \"pypto/pd.h\"\nuint32_t (*volatile f)(void) = pypto_pd_abi;\nint main() { return f == nullptr; }\n"), 0o600))
	b, err := exec.Command("c++", "-std=c++11", "-Wall", "-Werror", "-fsyntax-only", "-I", filepath.Join(cluster.Root(), "include"), plus).CombinedOutput()
	require.NoError(t, err, "%s", b)
}

// The library shows what the header declares, and nothing else.
func TestSymbolsAreThoseOfTheHeader(t *testing.T) {
	header, err := os.ReadFile(filepath.Join(cluster.Root(), "include/pypto/pd.h"))
	require.NoError(t, err)
	var declared []string
	for _, m := range regexp.MustCompile(`(?m)^u?int32_t (pypto_pd_\w+)\(`).FindAllSubmatch(header, -1) {
		declared = append(declared, string(m[1]))
	}
	b, err := exec.Command("nm", "-D", "--defined-only", "--format=just-symbols", library(t)).Output()
	require.NoError(t, err)
	shown := strings.Fields(string(b))
	slices.Sort(declared)
	slices.Sort(shown)
	require.Equal(t, declared, shown)
	golden(t, "symbols.txt", strings.Join(shown, "\n")+"\n") // functions are only ever added
}

// Nonsense is refused with a code and a reason; a forked child is told so
// before it would hang.
func TestMisuseIsRefused(t *testing.T) {
	path, c := cluster.WriteConfig(t, cluster.Options{})
	program := filepath.Join(t.TempDir(), "misuse")
	dir := filepath.Dir(library(t))
	compile(t, "testdata/misuse.c", program, "-L"+dir, "-lpypto-pd", "-Wl,-rpath,"+dir)
	config := fmt.Sprintf(`{"pd_config":%q,"role":"prefill","node_id":%q,"served_model":"m","revision":%q,"geometry":"tiny","ranks":2,"tp":1,`+
		`"pool_tokens":1024,"step_tokens":128,"sequences":8,"max_model_tokens":1024}`, path, c.Prefill[0].NodeID, strings.Repeat("0", 64))
	b, err := exec.Command(program, config).CombinedOutput()
	require.NoError(t, err, "%s", b)
	golden(t, "misuse.txt", string(b))
}

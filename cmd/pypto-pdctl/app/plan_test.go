package app_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/cmd/pypto-pdctl/app"
)

var update = flag.Bool("update", false, "rewrite the plans in testdata")

// run calls the program with words.
func run(t *testing.T, words string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = app.Run(t.Context(), strings.Fields(words), nil, &out, &errs)
	return code, out.String(), errs.String()
}

// testdata/plan.txt holds commands and what they print.
func TestPlanPrints(t *testing.T) {
	const file = "testdata/plan.txt"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var got strings.Builder
	for line := range strings.Lines(string(text)) {
		words, ok := strings.CutPrefix(line, "$ pypto-pdctl ")
		if !ok {
			continue
		}
		if got.Len() > 0 {
			got.WriteString("\n")
		}
		code, stdout, stderr := run(t, words)
		require.Zero(t, code, stderr)
		require.Empty(t, stderr)
		got.WriteString(line + stdout)
	}
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got.String()), 0o600))
		return
	}
	require.Equal(t, string(text), got.String())
}

// The figures of the guide: bootstrap of 3 MiB for every target rank, 797,312
// bytes of history per 128 tokens, 12,206,080 of states at an aligned end.
func TestPlanAsJSON(t *testing.T) {
	code, stdout, stderr := run(t, "plan --tokens 1024 --d-layout dp16tp1 --p-hit 512 --d-hit 128 --json")
	require.Zero(t, code, stderr)
	var got struct {
		Bytes    int64            `json:"bytes"`
		AllRanks int64            `json:"bytes_to_all_ranks"`
		Regions  map[string]int64 `json:"regions"`
		RankMap  [][2]int         `json:"rank_map"`
		Chunks   []struct {
			Span  struct{ Start, End int }
			Final bool
			Bytes int64
		}
		Policies map[string]struct{ Bytes int64 }
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &got))
	require.Equal(t, map[string]int64{
		"ori": 4 * 43 * 32768, "hca_cmp": 7 * 20480, "csa_cmp": 7 * 688128, "idx_k": 7 * 86016, "idx_scale": 7 * 2688,
		"hca_state": 10485760, "csa_state": 1376256, "csa_inner_state": 344064, "dspark_hidden": 3145728,
	}, got.Regions)
	require.Equal(t, int64(5636096+7*797312+12206080+3145728), got.Bytes)
	require.Equal(t, got.Bytes, got.AllRanks)
	require.Equal(t, [][2]int{{0, 0}}, got.RankMap)
	require.Len(t, got.Chunks, 4, "512 of a hit and the first 128 behind it are one chunk")
	require.Equal(t, 640, got.Chunks[0].Span.End)
	require.True(t, got.Chunks[3].Final)
	var sum int64
	for _, c := range got.Chunks {
		sum += c.Bytes
	}
	require.Equal(t, got.Bytes, sum)
	require.Equal(t, got.Bytes, got.Policies["tail"].Bytes)
	require.Greater(t, got.Policies["all"].Bytes, got.Bytes)

	_, stdout, _ = run(t, "plan --tokens 33 --geometry tiny --p-layout dp1tp1 --json")
	require.NoError(t, json.Unmarshal([]byte(stdout), &got))
	require.Len(t, got.RankMap, 4, "one source feeds four targets")
	require.Equal(t, 4*got.Bytes, got.AllRanks)
}

func TestPlanRefusesWhatMakesNoSense(t *testing.T) {
	for words, want := range map[string]string{
		"--p-hit 100":                          "--p-hit 100: want a multiple of 128, at most 8064 of 8192 tokens",
		"--p-hit 8192":                         "--p-hit 8192: want a multiple of 128, at most 8064 of 8192 tokens",
		"--d-hit=-128":                         "--d-hit -128: want a multiple of 128, at most 8192 of 8192 tokens",
		"--tokens 0 --p-layout x":              `--tokens 0: want 1..524288; --p-layout "x": want a form such as dp4tp4 or dp16tp1`,
		"--tokens 524289":                      "--tokens 524289: want 1..524288",
		"--tokens many":                        "--tokens",
		"--chunk=-1":                           "--chunk -1: want 1..655360",
		"--chunk 1 --tokens 524288":            "--chunk 1: makes more than 16384 chunks of 524288 tokens",
		"--d-layout dp3tp300":                  `--d-layout "dp3tp300": ranks 900: want 1..256`,
		"--policy some":                        `--policy must be one of "tail","checkpoint","all"`,
		"--geometry huge":                      `--geometry must be one of "full","tiny"`,
		"--memory 5XB":                         `--memory "5XB": want a size such as 32GiB or 30.5GB`,
		"--memory=-1GiB":                       `--memory "-1GiB": want a size`,
		"--memory NaN":                         `--memory "NaN": want a size`,
		"--memory 1e300TiB":                    `--memory "1e300TiB": want a size`,
		"--memory 32GiB,":                      `--memory "": want a size`,
		"--memory 32GiB,32GiB":                 "prefill: size the cache: memory of 2 ranks, want 1 or 16",
		"--memory 32GiB --utilization 0":       "utilization 0, want more than 0 and at most 1",
		"--memory 32GiB --utilization NaN":     "utilization NaN, want more than 0 and at most 1",
		"--memory 2GiB":                        "one request of 655360 tokens needs",
		"--memory 2GiB --max-model-len 700000": "requests of 700000 tokens, want 1..655360",
		"--slots 0":                            "--slots 0: want 1..4096",
		"--memory 32GiB --checkpoints=-1":      "-1 checkpoints, want 0..",
		"--tokens 255 --chunk 128 --d-chunk 8": "pypto-pdctl plan: plan chunk 0: group ori: 8 live pages do not fit decode's ring of 6",
		"--tokens 128 --tokens 129":            "--tokens is given twice",
		"--tokens 128 --p-layout dp1tp3 stray": "unexpected argument stray",
		"--memory 32GiB --d-chunk 8192":        "decode: size the cache: one request of 655360 tokens needs",
	} {
		t.Run(words, func(t *testing.T) {
			code, stdout, stderr := run(t, "plan "+words)
			require.Equal(t, 2, code, stdout)
			require.Empty(t, stdout)
			require.Contains(t, stderr, want)
			require.True(t, strings.HasPrefix(stderr, "pypto-pdctl"), stderr)
			require.Equal(t, 1, strings.Count(stderr, "\n"), "one line: %s", stderr)
		})
	}
}

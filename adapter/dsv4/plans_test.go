package dsv4_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/adaptertest"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
)

var update = flag.Bool("update", false, "rewrite the plans in testdata")

// Each file in testdata holds plans of the true geometry: a line that asks, and
// under it the whole plan. Decode's page ids are 100 more than their slots,
// prefill's are their slots; with apart=1 they run backwards.
//
//	plan PROMPT end=E1,E2,…|chunk=N [policy=tail|checkpoint|all] [p_hit=N] [d_hit=N]
//	     [tp_p=4] [tp_d=4] [from=0] [to=0] [p_step=128] [d_step=128] [apart=1]
//
// Behaviours 29, 30, 32, 33, 34, 38, 61, 161 and 165 are among them.
func TestPlans(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			got := answer(t, string(text))
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
				return
			}
			require.Equal(t, string(text), got)
		})
	}
}

// answer writes a file anew: comments and questions stay, answers are computed.
func answer(t *testing.T, text string) string {
	var out strings.Builder
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		switch {
		case strings.HasPrefix(line, "\t"):
		case strings.HasPrefix(line, "plan "):
			out.WriteString(line + "\n")
			for _, l := range plan(t, strings.Fields(line)[1:]) {
				out.WriteString("\t" + l + "\n")
			}
		default:
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

func plan(t *testing.T, words []string) []string {
	prompt, err := strconv.Atoi(words[0])
	require.NoError(t, err)
	number := map[string]int{"tp_p": 4, "tp_d": 4, "p_step": 128, "d_step": 128}
	policy, ends := adapter.RollingTail, ""
	for _, w := range words[1:] {
		k, v, ok := strings.Cut(w, "=")
		require.True(t, ok, w)
		switch k {
		case "policy":
			policy = v
		case "end":
			ends = v
		default:
			n, err := strconv.Atoi(v)
			require.NoError(t, err, w)
			number[k] = n
		}
	}
	a, err := adapter.WithPolicy(dsv4.Full(), policy)
	require.NoError(t, err)
	side := func(name string, step, first int) adaptertest.Side {
		return adaptertest.Side{
			Sizing: adapter.Sizing{
				Topology: pd.Topology{Ranks: 16, TP: number["tp_"+name]}, PoolTokens: 4096, StepTokens: step, Sequences: 2,
			},
			Partition: pd.Partition(number[map[string]string{"p": "from", "d": "to"}[name]]), Hit: number[name+"_hit"],
			Page: func(_ pd.CacheGroup, slot int) pd.Page {
				if number["apart"] == 1 && name == "d" {
					return pd.Page(first + 90 - slot)
				}
				return pd.Page(first + slot)
			},
		}
	}
	p := adaptertest.NewPair(a, prompt, side("p", number["p_step"], 0), side("d", number["d_step"], 100))
	chunks := adaptertest.Ends(prompt, number["p_hit"], max(1, number["chunk"]))
	if ends != "" {
		chunks = nil
		for _, e := range strings.Split(ends, ",") {
			n, err := strconv.Atoi(e)
			require.NoError(t, err)
			chunks = append(chunks, n)
		}
	}
	var lines []string
	start := 0
	for i, end := range chunks {
		in := p.At(i, pd.Span{Start: start, End: end})
		m, err := adapter.Build(in)
		if err != nil {
			return append(lines, "refused: "+err.Error())
		}
		theirs := in
		theirs.SourceTables = nil
		require.NoError(t, adapter.Verify(theirs, &m))
		lines = append(lines, render(in, m)...)
		start = end
	}
	return lines
}

// render prints a manifest for one target rank.
func render(in adapter.Input, m pd.Manifest) []string {
	head := fmt.Sprintf("chunk %d %v", m.Chunk, m.Span)
	if m.Final {
		head += " final"
	}
	for _, pair := range m.RankMap {
		head += fmt.Sprintf(" %d>%d", pair.Source, pair.Target)
	}
	lines := []string{head}
	moved := adapter.Moved(in)
	for _, u := range m.Units {
		if u.Target != m.RankMap[0].Target {
			continue
		}
		line := fmt.Sprintf("  %-15s %9d", u.Component, u.Bytes)
		comp, ok := in.Contract.Component(u.Component)
		if s := moved[comp.Group]; ok && s.Len() > 0 {
			line += fmt.Sprintf("  pages %v", s)
		}
		for _, cp := range m.Copies {
			if cp.Component == u.Component {
				line += fmt.Sprintf("  %d>%d x%d", cp.Source, cp.Target, cp.Count)
				if cp.ValidRows < comp.RowsPerPage {
					line += fmt.Sprintf(" rows=%d", cp.ValidRows)
				}
			}
		}
		if !ok {
			line += fmt.Sprintf("  slot %d>%d generation %d", m.Bootstrap.SourceSlot, m.Bootstrap.TargetSlot, m.Bootstrap.TargetGeneration)
		}
		lines = append(lines, line)
	}
	return lines
}

// firstToken is where the pages of a group that a handoff moves begin, or -1.
func firstToken(t *testing.T, p adaptertest.Pair, ends []int, group pd.GroupName) int {
	g, ok := p.Input.Contract.Group(group)
	require.True(t, ok)
	start := 0
	for i, end := range ends {
		span := adapter.Moved(p.At(i, pd.Span{Start: start, End: end}))[group]
		if span.Len() > 0 {
			return span.Start * g.PageTokens
		}
		start = end
	}
	return -1
}

// Behaviour 33: what the first pages are that move where the hits differ.
func TestFirstMovedPagesByHits(t *testing.T) {
	a, err := adapter.WithPolicy(dsv4.Full(), adapter.RollingAll)
	require.NoError(t, err)
	s := adapter.Sizing{Topology: pd.Topology{Ranks: 16, TP: 4}, PoolTokens: 4096, StepTokens: 8192, Sequences: 1}
	for _, row := range []struct{ source, target, ori, full int }{
		{128, 512, 512, 512}, {256, 256, 256, 256}, {512, 128, 384, 128}, {0, 640, -1, -1}, {0, 0, 0, 0},
	} {
		for _, chunk := range []int{1, 100, 128, 640} {
			p := adaptertest.NewPair(a, 640, adaptertest.Side{Sizing: s, Hit: row.source}, adaptertest.Side{Sizing: s, Hit: row.target})
			ends := adaptertest.Ends(640, row.source, chunk)
			chunks, err := p.Chunks(ends)
			require.NoError(t, err)
			require.Equal(t, row.ori, firstToken(t, p, ends, dsv4.Ori), "%v", row)
			require.Equal(t, row.full, firstToken(t, p, ends, dsv4.CmpC4), "%v", row)
			// Behaviour 56 on the planner's side: states and bootstrap move in any case.
			last := chunks[len(chunks)-1]
			for _, u := range last.Units {
				if slices.Contains([]pd.ComponentID{"hca_state", "csa_state", "csa_inner_state", dsv4.Hidden}, u.Component) {
					require.Positive(t, u.Bytes)
				}
			}
		}
	}
}

package plan

import (
	"fmt"
	"io"
	"maps"
	"strings"
	"text/tabwriter"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// human prints bytes for people.
func human(n int64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v /= step; v < step {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}

// table prints rows in columns that are as wide as they must be, all but the
// first to the right.
func table(w io.Writer, rows [][]string) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	first := 0
	for _, row := range rows {
		first = max(first, len(row[0]))
	}
	for _, row := range rows {
		fmt.Fprintf(t, "%-*s\t%s\t\n", first, row[0], strings.Join(row[1:], "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

func (r *report) print(w io.Writer) error {
	fmt.Fprintf(w, "%d tokens in chunks of %d, %s geometry, rolling policy %s\n", r.Tokens, r.ChunkSteps, r.Geometry, r.Policy)
	fmt.Fprintf(w, "prefill %s has %d of them, decode %s has %d\n", r.Prefill.Layout, r.Prefill.Hit, r.Decode.Layout, r.Decode.Hit)
	var pairs []string
	for _, p := range r.RankMap {
		pairs = append(pairs, fmt.Sprintf("%d>%d", p.Source, p.Target))
	}
	fmt.Fprintf(w, "ranks of partition 0 to partition 0: %s\n\nbytes to each target rank:\n", strings.Join(pairs, " "))
	if err := table(w, r.chunkRows()); err != nil {
		return err
	}
	if n := len(r.RankMap); n > 1 {
		fmt.Fprintf(w, "  to all %d ranks: %s\n", n, human(r.AllRanks))
	}
	if err := r.printPolicies(w); err != nil {
		return err
	}
	for i, c := range r.Caches {
		role := c.Role
		if i > 0 && same(r.Caches[0], c) {
			continue
		}
		if i == 0 && len(r.Caches) > 1 && same(c, r.Caches[1]) {
			role = "prefill and decode"
		}
		if err := c.print(w, role); err != nil {
			return err
		}
	}
	return nil
}

// chunkRows are the chunks, with neighbours that move the same in one row.
func (r *report) chunkRows() [][]string {
	head := []string{"chunks", "tokens"}
	for _, id := range r.columns {
		head = append(head, string(id))
	}
	rows := [][]string{append(head, "each", "segments", "message")}
	for i := 0; i < len(r.Chunks); {
		a, n := r.Chunks[i], 1
		for i+n < len(r.Chunks) && maps.Equal(a.Regions, r.Chunks[i+n].Regions) && a.Segments == r.Chunks[i+n].Segments {
			n++
		}
		last := r.Chunks[i+n-1]
		name := fmt.Sprint(a.Chunk)
		if n > 1 {
			name = fmt.Sprintf("%d..%d", a.Chunk, last.Chunk)
		}
		rows = append(rows, append(r.row(name, pd.Span{Start: a.Span.Start, End: last.Span.End}.String(), a.Regions, a.Bytes), fmt.Sprint(a.Segments), human(int64(last.Message))))
		i += n
	}
	return append(rows, append(r.row("total", "", r.Regions, r.Bytes), "", ""))
}

func (r *report) row(name, span string, regions map[pd.ComponentID]int64, bytes int64) []string {
	row := []string{name, span}
	for _, id := range r.columns {
		cell := "-"
		if n, ok := regions[id]; ok {
			cell = human(n)
		}
		row = append(row, cell)
	}
	return append(row, human(bytes))
}

func (r *report) printPolicies(w io.Writer) error {
	fmt.Fprintf(w, "\nthe same prompt under each rolling policy, to each target rank:\n")
	var rows [][]string
	all := r.Policies[adapter.RollingAll]
	for _, name := range adapter.RollingPolicies() {
		p := r.Policies[name]
		note := ""
		if saved := all.Bytes - p.Bytes; p.Refused == "" && all.Refused == "" && saved > 0 {
			note = fmt.Sprintf("%.1f %% less than all", 100*float64(saved)/float64(all.Bytes))
		}
		cell := human(p.Bytes)
		if p.Refused != "" {
			cell = p.Refused
		}
		rows = append(rows, []string{name, cell, note})
	}
	return table(w, rows)
}

// same says whether two nodes' caches differ in nothing but the role and the
// number of partitions.
func same(a, b cache) bool {
	return a.StepTokens == b.StepTokens && a.HistoryTokens == b.HistoryTokens && a.RankBytes == b.RankBytes && a.Partitions == b.Partitions
}

func (c cache) print(w io.Writer, role string) error {
	fmt.Fprintf(w, "\na cache of %s on each rank of %s, in pages per layer:\n", human(c.RankBytes), role)
	rows := [][]string{{"group", "history", "rings", "replacement", "checkpoints", "filler", "pages", "ring period", "bytes"}}
	for _, g := range c.Groups {
		period := "-"
		if g.RingPeriod > 0 {
			period = fmt.Sprint(g.RingPeriod)
		}
		rows = append(rows, []string{
			string(g.Name), fmt.Sprint(g.History), fmt.Sprint(g.Rings), fmt.Sprint(g.Replacement), fmt.Sprint(g.Checkpoints),
			fmt.Sprint(g.Filler), fmt.Sprint(g.Pages), period, human(g.Bytes),
		})
	}
	rows = append(rows, []string{"bootstrap", "", "", "", "", "", fmt.Sprintf("%d slots", c.BootstrapSlots), "", human(c.BootstrapBytes)})
	if err := table(w, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "  %d tokens of history in each of %d partitions\n", c.HistoryTokens, c.Partitions)
	return err
}

package pd

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Page is a partition-local page id. The same id is valid on every rank of the
// partition, because latent KV is replicated over tensor-parallel ranks.
type Page int32

// PageRun is a run of consecutive page ids. On the wire it is [first,count].
type PageRun struct {
	First Page
	Count int
}

// MarshalJSON writes [first,count].
func (r PageRun) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "[%d,%d]", r.First, r.Count), nil
}

// UnmarshalJSON reads [first,count] and refuses anything else.
func (r *PageRun) UnmarshalJSON(b []byte) error {
	var v []int64
	if err := json.Unmarshal(b, &v); err != nil || len(v) != 2 {
		return errors.New("page run: want [first,count]")
	}
	if v[0] < 0 || v[1] < 1 || v[0]+v[1] > 1<<31-1 {
		return fmt.Errorf("page run [%d,%d]: out of range", v[0], v[1])
	}
	r.First, r.Count = Page(v[0]), int(v[1])
	return nil
}

// PageTable lists the pages of one group of one request by slot. For Full
// groups the slot is the logical page; for rings it is logical page mod the
// node's ring period.
type PageTable []Page

// Runs compresses a table into runs of consecutive ids, in order.
func (t PageTable) Runs() []PageRun {
	runs := []PageRun{}
	for _, p := range t {
		if n := len(runs); n > 0 && runs[n-1].First+Page(runs[n-1].Count) == p {
			runs[n-1].Count++
			continue
		}
		runs = append(runs, PageRun{First: p, Count: 1})
	}
	return runs
}

// TableOf expands runs into a table. It refuses more than limit pages, so that
// a short message cannot ask for a huge table, and a page that stands in it
// twice, because two positions would share its memory.
func TableOf(runs []PageRun, limit int) (PageTable, error) {
	total := 0
	for _, r := range runs {
		if total += r.Count; total > limit {
			return nil, fmt.Errorf("page table has more than %d pages", limit)
		}
	}
	if page, twice := doubled(runs); twice {
		return nil, fmt.Errorf("page table has page %d twice", page)
	}
	t := make(PageTable, 0, total)
	for _, r := range runs {
		for i := range r.Count {
			t = append(t, r.First+Page(i))
		}
	}
	return t, nil
}

// doubled finds a page that two runs have.
func doubled(runs []PageRun) (Page, bool) {
	byFirst := func(a, b PageRun) int { return cmp.Compare(a.First, b.First) }
	if !slices.IsSortedFunc(runs, byFirst) {
		runs = slices.Clone(runs)
		slices.SortFunc(runs, byFirst)
	}
	for i := 1; i < len(runs); i++ {
		if last := runs[i-1]; runs[i].First < last.First+Page(last.Count) {
			return runs[i].First, true
		}
	}
	return 0, false
}

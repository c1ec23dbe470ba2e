package pd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

func TestTablesTravelAsRuns(t *testing.T) {
	for _, row := range []struct {
		table pd.PageTable
		runs  []pd.PageRun
	}{
		{pd.PageTable{}, []pd.PageRun{}},
		{pd.PageTable{7}, []pd.PageRun{{First: 7, Count: 1}}},
		{pd.PageTable{3, 4, 5, 1, 2, 9}, []pd.PageRun{{First: 3, Count: 3}, {First: 1, Count: 2}, {First: 9, Count: 1}}},
		{pd.PageTable{2, 1, 0}, []pd.PageRun{{First: 2, Count: 1}, {First: 1, Count: 1}, {First: 0, Count: 1}}},
	} {
		require.Equal(t, row.runs, row.table.Runs())
		back, err := pd.TableOf(row.runs, len(row.table))
		require.NoError(t, err)
		require.Equal(t, row.table, back)
	}
}

func TestTableOfRefuses(t *testing.T) {
	_, err := pd.TableOf([]pd.PageRun{{First: 0, Count: 3}, {First: 8, Count: 2}}, 4)
	require.ErrorContains(t, err, "more than 4 pages")
	for _, runs := range [][]pd.PageRun{
		{{First: 5, Count: 1}, {First: 5, Count: 1}},
		{{First: 5, Count: 3}, {First: 7, Count: 1}},
		{{First: 7, Count: 2}, {First: 2, Count: 2}, {First: 5, Count: 3}},
	} {
		_, err := pd.TableOf(runs, 100)
		require.ErrorContains(t, err, "twice")
	}
}

package adapter_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/adaptertest"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// toy is a model unlike DeepSeek V4: tensors of one group with rows of different
// lengths, the coarser one first, and a rolling window shorter than the distance
// of boundaries that pages do not divide.
type toy struct{ dsv4.Geometry }

// Contract implements adapter.Adapter.
func (t toy) Contract(revision, provider string) pd.Contract {
	c := t.Geometry.Contract(revision, provider)
	c.Groups = []pd.CacheGroup{
		{Name: "full", Kind: pd.Full, PageTokens: 64},
		{Name: "rolling", Kind: pd.Rolling, PageTokens: 16, WindowTokens: 40},
		{Name: "final", Kind: pd.FinalOnly, PageTokens: 4, WindowTokens: 10},
	}
	c.Components = []pd.Component{
		{ID: "coarse", Group: "full", ElementBytes: 4, RowsPerPage: 4, RowTokens: 16, RowElements: 16, Layers: []int{0, 1}},
		{ID: "fine", Group: "full", ElementBytes: 1, RowsPerPage: 64, RowTokens: 1, RowElements: 64, Layers: []int{0}},
		{ID: "coarse window", Group: "rolling", ElementBytes: 4, RowsPerPage: 2, RowTokens: 8, RowElements: 16, Layers: []int{1}},
		{ID: "window", Group: "rolling", ElementBytes: 4, RowsPerPage: 16, RowTokens: 1, RowElements: 16, Layers: []int{0, 1}},
		{ID: "state", Group: "final", ElementBytes: 4, RowsPerPage: 4, RowTokens: 1, RowElements: 16, Layers: []int{1}},
	}
	return c
}

func TestAnotherModelHasEveryProperty(t *testing.T) { adaptertest.Run(t, toy{dsv4.Tiny()}) }

// A page that is too short for a row of one tensor of its group still moves for
// the other.
func TestPartialPageMovesForTheTensorsThatHaveRows(t *testing.T) {
	s := adapter.Sizing{Topology: pd.Topology{Ranks: 4, TP: 4}, PoolTokens: 1024, StepTokens: 128, Sequences: 1}
	p := adaptertest.NewPair(toy{dsv4.Tiny()}, 67, adaptertest.Side{Sizing: s}, adaptertest.Side{Sizing: s})
	chunks, err := p.Chunks([]int{67})
	require.NoError(t, err)
	full := map[pd.ComponentID][]pd.Copy{}
	for _, cp := range chunks[0].Copies {
		full[cp.Component] = append(full[cp.Component], cp)
	}
	require.Equal(t, []pd.Copy{{Component: "coarse", Count: 1, ValidRows: 4}}, full["coarse"])
	require.Equal(t, []pd.Copy{{Component: "fine", Count: 1, ValidRows: 64}, {Component: "fine", Source: 1, Target: 1, Count: 1, ValidRows: 3}}, full["fine"])
	require.NoError(t, adapter.Verify(p.Input, &chunks[0]))
}

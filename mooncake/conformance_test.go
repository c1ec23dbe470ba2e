package mooncake

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/transfertest"
	"github.com/hw-native-sys/pypto-pd/tests/fakelib"
)

// stalledProvider opens engines whose writes no target ever answers.
type stalledProvider struct {
	*Provider
	fakes *fakelib.Libraries
}

func (s stalledProvider) Open(ctx context.Context, o transfer.Options) (transfer.Engine, error) {
	s.fakes.Set(fakelib.Stall, 1)
	defer s.fakes.Set(fakelib.Stall, 0)
	return s.Provider.Open(ctx, o)
}

// newMemory allocates from an arena that lives until the test has closed its
// engines: cleanups run last in, first out, and memory comes after its engine.
func newMemory(arena func() transfer.Arena) func(t testing.TB, size int64) transfer.Memory {
	return func(t testing.TB, size int64) transfer.Memory {
		m, err := arena().Allocate(pd.ComponentID("test"), size)
		require.NoError(t, err)
		return m
	}
}

// lateArena is one arena per test, closed after everything else of the test.
func lateArena(t *testing.T, p *Provider) func() transfer.Arena {
	a, err := p.NewArena(0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return func() transfer.Arena { return a }
}

func TestConformance(t *testing.T) {
	transfertest.Run(t, func(t *testing.T) transfertest.Harness {
		l := needFakes(t)
		p := tcp(t, l)
		return transfertest.Harness{
			Provider:  p,
			Stalled:   stalledProvider{p, l},
			NewMemory: newMemory(lateArena(t, p)),
			Hostname:  "127.0.0.1",

			TimeoutHoldsSource: true,
		}
	})
}

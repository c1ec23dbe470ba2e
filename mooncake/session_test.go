package mooncake

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// TestWindowOutlivesTheSession: what a dead session left in the library's queue
// still fills it, and more than it holds can wedge the library for good.
func TestWindowOutlivesTheSession(t *testing.T) {
	l := needFakes(t)
	p := tcp(t, l)
	source, target := newSide(t, p, sideOptions{}), newSide(t, p, sideOptions{rank: 1})
	first := source.connect(t, target.target()).(*session)
	first.count(pd.MaxOutstandingTasks - 4)
	first.dead.Store(true)
	second := source.connect(t, target.target()).(*session)
	require.NotSame(t, first, second)
	_, err := second.Submit(pieces(4096, 5))
	require.ErrorIs(t, err, pd.CodeBusy)
	require.Equal(t, pd.Done, source.write(t, second, pieces(4096, 4)).Settlement)
	first.count(4 - pd.MaxOutstandingTasks)
	require.Equal(t, pd.Done, source.write(t, second, pieces(4096, 5)).Settlement)

	// Another peer has another window.
	other := newSide(t, p, sideOptions{rank: 2})
	require.NotSame(t, second.window, source.connect(t, other.target()).(*session).window)
}

// TestIdleSessionAsksWhoAnswers: a peer that was fenced meanwhile is noticed
// before a write to it would hold memory.
func TestIdleSessionAsksWhoAnswers(t *testing.T) {
	eachLibrary(t, func(t *testing.T, p *Provider, _ string) {
		source, target := newSide(t, p, sideOptions{}), newSide(t, p, sideOptions{rank: 1})
		old := target.target()
		session := source.connect(t, old)
		require.Equal(t, pd.Done, source.write(t, session, pieces(4096, 4)).Settlement)
		require.Same(t, session, source.connect(t, old))
		require.NoError(t, target.Fence(t.Context()))
		_, err := source.Connect(t.Context(), old)
		require.ErrorIs(t, err, pd.CodePeerUnreachable)
		_, err = session.Submit(pieces(4096, 4))
		require.ErrorIs(t, err, pd.CodePeerUnreachable, "and the session is over")
		require.Equal(t, pd.Done, source.write(t, source.connect(t, target.target()), pieces(4096, 4)).Settlement)
	})
}

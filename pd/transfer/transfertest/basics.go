package transfertest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

func testFacts(t *testing.T, h Harness) {
	require.NotEmpty(t, h.Provider.Name())
	require.NotEmpty(t, h.Provider.Facts().Build)
	require.Equal(t, h.Provider.Facts(), h.Provider.Facts())
}

func testOptions(t *testing.T, h Harness) {
	good := transfer.Options{
		Identity: transfer.Identity{Boot: pd.NewBootID()}, Hostname: h.Hostname, AttemptTimeout: time.Second,
	}
	for name, spoil := range map[string]func(o *transfer.Options){
		"no boot":       func(o *transfer.Options) { o.Identity.Boot = "" },
		"negative rank": func(o *transfer.Options) { o.Identity.Rank = -1 },
		"no hostname":   func(o *transfer.Options) { o.Hostname = "" },
		"no timeout":    func(o *transfer.Options) { o.AttemptTimeout = 0 },
	} {
		o := good
		spoil(&o)
		_, err := h.Provider.Open(t.Context(), o)
		require.ErrorIs(t, err, pd.CodeInvalidConfig, name)
	}
}

// shifted is memory whose base is not aligned.
type shifted struct{ transfer.Memory }

func (s shifted) Base() uintptr { return s.Memory.Base() + 8 }

// Behaviour 180: a region that comes after the freeze is refused.
func testRegistration(t *testing.T, h Harness) {
	n := open(t, h, h.Provider, 0, attemptTimeout)
	other := frozen(t, h, h.Provider, 1)
	require.Equal(t, pd.Epoch(1), n.engine.Epoch())
	require.NotEmpty(t, n.engine.Endpoint())
	require.NotEqual(t, n.regions[0].Envelope, n.regions[1].Envelope)

	_, err := n.engine.Register("kv", h.memory(t, 64))
	require.ErrorIs(t, err, pd.CodeConflict, "the same component twice")
	_, err = n.engine.Register("shifted", shifted{h.memory(t, 64)})
	require.ErrorIs(t, err, pd.CodeInvalidConfig, "misaligned base")

	_, err = n.engine.Connect(t.Context(), other.target())
	require.Error(t, err, "connect before freeze")
	require.NoError(t, n.engine.Freeze())
	_, err = n.engine.Connect(t.Context(), other.target())
	require.NoError(t, err)
	_, err = n.engine.Register("late", h.memory(t, 64))
	require.ErrorIs(t, err, pd.CodeFrozen)
}

func testIdentity(t *testing.T, h Harness) {
	source, target := frozen(t, h, h.Provider, 0), frozen(t, h, h.Provider, 1)
	for name, spoil := range map[string]func(i *transfer.Identity){
		"other boot":  func(i *transfer.Identity) { i.Boot = pd.NewBootID() },
		"other rank":  func(i *transfer.Identity) { i.Rank++ },
		"other epoch": func(i *transfer.Identity) { i.Epoch++ },
	} {
		to := target.target()
		spoil(&to.Identity)
		_, err := source.engine.Connect(t.Context(), to)
		require.ErrorIs(t, err, pd.CodeStaleBoot, name)
	}
	// The refusals leave the right way open.
	ticket, err := source.connect(t, target).Submit(whole("scale"))
	require.NoError(t, err)
	source.requireAll(t, pd.Done, ticket)
}

func testUnreachable(t *testing.T, h Harness) {
	source, target := frozen(t, h, h.Provider, 0), frozen(t, h, h.Provider, 1)
	to := target.target()
	require.NoError(t, target.engine.Close())
	_, err := source.engine.Connect(t.Context(), to)
	require.ErrorIs(t, err, pd.CodePeerUnreachable)

	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = source.engine.Connect(done, frozen(t, h, h.Provider, 2).target())
	require.ErrorIs(t, err, pd.CodePeerUnreachable)
}

func testSameSession(t *testing.T, h Harness) {
	source, target := frozen(t, h, h.Provider, 0), frozen(t, h, h.Provider, 1)
	first := source.connect(t, target)
	require.Same(t, first, source.connect(t, target))
	require.NotSame(t, first, source.connect(t, frozen(t, h, h.Provider, 2)))
}

func testPoll(t *testing.T, h Harness) {
	source, target := frozen(t, h, h.Provider, 0), frozen(t, h, h.Provider, 1)
	before := []transfer.Verdict{{Ticket: 99}}
	require.Equal(t, before, source.engine.Poll(before), "nothing is submitted")

	ticket, err := source.connect(t, target).Submit(whole("scale"))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got := before
	for len(got) == 1 {
		select {
		case <-source.engine.Wake():
			got = source.engine.Poll(got)
		case <-ctx.Done():
			t.Fatal("a batch settled and Wake did not tell")
		}
	}
	require.Len(t, got, 2)
	require.Equal(t, before[0], got[0], "Poll appends")
	require.Equal(t, ticket, got[1].Ticket)
	require.Equal(t, pd.Done, got[1].Settlement)
	require.True(t, got[1].SourceFree)
	require.Empty(t, source.engine.Poll(nil))
}

func testClosed(t *testing.T, h Harness) {
	source, target := frozen(t, h, h.Provider, 0), frozen(t, h, h.Provider, 1)
	session := source.connect(t, target)
	require.NoError(t, source.engine.Close())
	require.NoError(t, source.engine.Close(), "Close is idempotent")
	_, err := session.Submit(whole("scale"))
	require.ErrorIs(t, err, pd.CodeOwnerLost)
	_, err = source.engine.Connect(t.Context(), target.target())
	require.ErrorIs(t, err, pd.CodeOwnerLost)
	_, err = source.engine.Register("more", h.memory(t, 64))
	require.ErrorIs(t, err, pd.CodeOwnerLost)
	require.ErrorIs(t, source.engine.Freeze(), pd.CodeOwnerLost)
	require.ErrorIs(t, source.engine.Fence(t.Context()), pd.CodeOwnerLost)
}

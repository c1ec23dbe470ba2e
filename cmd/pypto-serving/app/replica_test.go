package app

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/cmd/program"
)

// A replica says that it is ready exactly while its engine computes what is asked
// for, whatever else of it lives. It has one engine for all its cards, which runs
// with all of them or not at all.
//
// Fleet behaviours 116, 117, 118 and 119
func TestReplicaIsReadyWhileItsEngineRuns(t *testing.T) {
	var f flags
	_, ok := program.Parse(name, "", &f, []string{"--model", "m", "--ep", "2", "--tp", "1", "--lm-head-tp", "1"}, io.Discard, io.Discard)
	require.True(t, ok)
	s, err := f.check()
	require.NoError(t, err)
	for _, stopping := range []bool{false, true} {
		n, err := newReplica(s, slog.New(slog.DiscardHandler), s.startup(io.Discard))
		require.NoError(t, err)
		r := n.(*replica)
		require.Equal(t, 2, s.topology.Ranks, "several cards, one engine")
		health := r.http().Health
		says := func(ready bool, word string) {
			t.Helper()
			ok, body := health()
			require.Equal(t, ready, ok)
			require.Contains(t, string(body), `"status":"`+word+`"`)
		}
		life, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.run(life); close(done) }()
		says(true, "ok")
		if stopping {
			require.NoError(t, r.drain(t.Context()))
			says(false, "not_ready") // it stops, and the loop still runs
		}
		stop()
		<-done
		says(false, "not_ready") // the loop has ended, the HTTP side lives
		require.NoError(t, n.close(context.Background()))
	}
}

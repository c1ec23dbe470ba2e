package soak

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
	"github.com/hw-native-sys/pypto-pd/tests/fleet/stub"
)

// scale is how much faster than the defaults the replay of the guide's kill test
// runs: a health interval of 0.2 s instead of 5 s.
const scale = 25

// TestKillTestOfTheGuide: two users talk, one of two replicas is killed, and is
// replaced. The guide measured 288 turns without a failure, out of rotation after
// 7 s, replacing after 52 s, full strength after 199 s.
func TestKillTestOfTheGuide(t *testing.T) {
	r := newRig(
		t, "--initial-replicas", "2", "--health-interval", "0.2", "--connect-timeout", "0.2", "--replace-after", "1.2", "--replace-backoff", "0.4",
		"--launch-timeout", "24", "--stop-grace", "4",
	)
	for range 2 {
		r.add(nil, nil, map[string]string{stub.LoadVariable: "2s", stub.TokensVariable: "4", stub.TokenDelayVariable: "10ms"})
	}
	r.start()
	cluster.Eventually(t, r.full)

	l := &load{url: r.url, turns: 144, conversation: 144, think: 15 * time.Millisecond}
	talked := make(chan struct{})
	go func() {
		defer close(talked)
		l.talk(context.WithoutCancel(t.Context()), 2)
	}()
	cluster.Eventually(t, func() error {
		if n := len(l.turnsSeen()); n < 40 {
			return fmt.Errorf("%d turns", n)
		}
		return nil
	})
	victim := r.slots[0]
	pid := r.process(victim)
	require.NotZero(t, pid)
	died := time.Now()
	require.NoError(t, syscall.Kill(-pid, syscall.SIGKILL))

	var out, replacing, full time.Duration
	cluster.Eventually(t, func() error {
		v, err := r.view()
		if err != nil {
			return err
		}
		rotated := true
		for _, m := range v.Replicas {
			rotated = rotated && (m.Name != victim.name || !m.Ready)
		}
		now := time.Since(died)
		if rotated && out == 0 {
			out = now
		}
		if replacing == 0 && strings.Count(r.p.Stderr(), `"msg":"launching replica"`) == 3 {
			replacing = now
		}
		if out == 0 || replacing == 0 {
			return fmt.Errorf("out %v, replacing %v", out, replacing)
		}
		return r.full()
	})
	full = time.Since(died)
	<-talked
	picked, failed := chosen(r.p.Stderr()), 0
	for _, turn := range l.turnsSeen() {
		if turn.err == nil {
			require.Equal(t, picked[turn.request], turn.replica, "turn %d of user %d", turn.number, turn.user)
			continue
		}
		failed++
		require.False(t, died.Before(turn.begin) || died.After(turn.end), "turn %d of user %d was not in flight when the replica died: %v", turn.number, turn.user, turn.err)
		require.Equal(t, victim.name, picked[turn.request], "%v", turn.err)
	}
	require.Len(t, l.turnsSeen(), 288)
	scaled := func(seconds float64) time.Duration {
		return time.Duration(seconds / scale * float64(time.Second)).Round(10 * time.Millisecond)
	}
	fmt.Printf("kill test, %d times faster than the guide's: 288 turns, %d failed in flight; out of rotation %v (guide %v), replacing %v (%v), full strength %v (%v; its load is %v, here 2s)\n",
		scale, failed, out.Round(time.Millisecond), scaled(7), replacing.Round(time.Millisecond), scaled(52), full.Round(time.Millisecond), scaled(199), scaled(130))
	require.Zero(t, r.p.Stop(t), "%s", r.p.Tail())
}

package fault

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// stop stops a process and waits until the kernel has done so. It goes on with
// the test, if not before: a stopped process would hear no signal to end.
func stop(t *testing.T, p *cluster.Process) {
	t.Helper()
	t.Cleanup(func() { p.Signal(syscall.SIGCONT) })
	p.Signal(syscall.SIGSTOP)
	cluster.Eventually(t, func() error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		if err != nil {
			return err
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if !strings.HasPrefix(rest, "T") {
			return fmt.Errorf("%s is in state %.1s", p.Label, rest)
		}
		return nil
	})
}

// silent waits until a stopped process has left a question without an answer
// for a while that is far shorter than every timeout of the nodes.
func silent(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	require.NoError(t, err)
	q.Close = true
	r, err := http.DefaultClient.Do(q)
	if err == nil {
		r.Body.Close()
	}
	require.ErrorIs(t, err, context.DeadlineExceeded, "a stopped process has answered")
}

// A process that stands still for a while costs nothing, whatever it was at: the
// text is exact and nobody is gated.
func TestStoppedProcessThatGoesOnInTime(t *testing.T) {
	t.Parallel()
	for _, s := range stages {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			c := s.start(t, patient)
			for i, stopped := range []struct {
				*cluster.Process
				url string
			}{{c.Prefill[0].Process, c.Prefill[0].URL()}, {c.Decode[0].Process, c.Decode[0].URL()}, {c.Router, c.URL}} {
				f, _ := s.fly(t, c, fmt.Sprint("stands still ", i, " "), i%2 == 0)
				stop(t, stopped.Process)
				silent(t, stopped.url)
				stopped.Signal(syscall.SIGCONT)
				f.wantText(t)
				c.AssertIdle(t)
			}
			for _, n := range c.Nodes() {
				require.Zero(t, n.Count(t, journal.RecoveryRequired), n.Label)
				require.Zero(t, n.Count(t, journal.HandoffFailed), n.Label)
			}
		})
	}
}

// Behaviour 171: a node that stands still for longer than the others' patience: its client has
// an explicit error, and when it goes on it learns what became of its request
// and serves again without a restart.
func TestStoppedProcessThatGoesOnTooLate(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		stage   stage
		role    pd.Role
		request int
	}{
		{computes, pd.Prefill, 60},
		{transfers, pd.Prefill, 60},
		{transfers, pd.Decode, 60},
		// Only the time of the whole request bounds a stream that has begun.
		{streams, pd.Decode, 8},
	} {
		t.Run(row.role.String()+" "+row.stage.name, func(t *testing.T) {
			t.Parallel()
			c := cluster.Start(t, cluster.Options{
				PLayout: "dp2tp1", DLayout: "dp2tp1", HandoffSeconds: 4, RequestSeconds: row.request, ExpectErrors: true,
				PrefillFlags: row.stage.prefill, DecodeFlags: row.stage.decode,
			})
			n := c.Prefill[0]
			if row.role == pd.Decode {
				n = c.Decode[0]
			}
			f, id := row.stage.fly(t, c, "too late", true)
			stop(t, n.Process)
			stopped := time.Now()
			f.wantError(t)
			t.Logf("the error came %v after the stop: %d %v", f.landed.Sub(stopped).Round(time.Millisecond), f.answer.Status, f.answer.Failure)
			n.Signal(syscall.SIGCONT)
			if row.stage.name == streams.name {
				wantOpen(t, c.Decode[0])
			} else {
				resolve(t, c, id)
			}
			c.WaitPairs(t, 1)
			tenOfTen(t, c, "after")
		})
	}
}

// A process that stands still for good is ended by an operator at last. Its
// client has an explicit error long before, nobody else is held up, and its next
// life serves.
func TestStoppedProcessThatNeverGoesOn(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		stage stage
		role  pd.Role
	}{{computes, pd.Prefill}, {transfers, pd.Prefill}, {computes, pd.Decode}, {transfers, pd.Decode}, {streams, pd.Decode}} {
		t.Run(row.role.String()+" "+row.stage.name, func(t *testing.T) {
			t.Parallel()
			c := row.stage.start(t, hasty)
			stopped, other := c.Prefill[0], c.Decode[0]
			if row.role == pd.Decode {
				stopped, other = other, stopped
			}
			for i, stream := range []bool{true, false} {
				f, id := row.stage.fly(t, c, fmt.Sprint("for good ", i), stream)
				stop(t, stopped.Process)
				at := time.Now()
				f.wantError(t)
				t.Logf("stream %t: the error came %v after the stop: %d %v", stream, f.landed.Sub(at).Round(time.Millisecond), f.answer.Status, f.answer.Failure)
				if row.role == pd.Prefill && row.stage.name == transfers.name {
					wantGated(t, c, other, id)
					fence(t, c, other)
				}
				wantOpen(t, other)
				stopped.Kill()
				again(t, c, stopped)
			}
			tenOfTen(t, c, "after")
		})
	}
	// Nobody is told of anything: the client waits as long as it likes, the nodes
	// finish what they have, and hold nothing for a router that reads no answer.
	t.Run("router", func(t *testing.T) {
		t.Parallel()
		for _, s := range stages {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				c := s.start(t, patient)
				f, id := s.fly(t, c, "for good", false)
				stop(t, c.Router)
				for _, n := range c.Nodes() {
					await(t, n, id, journal.HandoffCompleted)
					wantOpen(t, n)
				}
				select {
				case <-f.over:
					t.Fatal("an answer from a router that stands still")
				default:
				}
				c.Router.Kill()
				f.wantCut(t)
				c.StartRouter(t)
				c.WaitPairs(t, 1)
				tenOfTen(t, c, "after")
			})
		}
	})
}

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// chunkLine is one line of the demo's table: number, span, bytes, three times.
var chunkLine = regexp.MustCompile(`(?m)^ +\d+  \[\d+,\d+\) +\d+ +[0-9.]+ ms +[0-9.]+ ms +([0-9.]+ ms|-)$`)

// What make demo shows: a chat through the pair, and what moved for it.
func TestDemoShowsAChatAndWhatMoved(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		nil,
		{"--nodes", "2P3D", "--d-layout", "dp16tp1"},
		{"--p-layout", "dp2tp1", "--d-layout", "dp1tp2", "--context", "0", "--max-tokens", "3", "--prefill-rate", "0", "--decode-rate", "0", "--link-rate", "0"},
	} {
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			t.Parallel()
			p := cluster.Spawn(t, cluster.Command{Label: "demo", Program: cluster.Pdctl, Args: append([]string{"demo", "--once"}, args...)})
			require.Zero(t, p.Wait(t), "%s", p.Tail())
			said := p.Stdout()
			require.Empty(t, p.Stderr())
			require.Regexp(t, `(?m)^user: .*Tell me about the Forbidden City\.$`, said)
			require.Regexp(t, `(?m)^assistant: \S`, said)
			require.Regexp(t, chunkLine, said)
			require.Regexp(t, `(?m)bytes into \d+ decode ranks: .*dspark_hidden \d+.*ori \d+`, said)
			require.Contains(t, said, `finish "length"`)
		})
	}
}

// proc is one line of /proc/<pid>/stat.
type proc struct {
	pid, parent, group int
	state              string
}

func procs(t *testing.T) []proc {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	var out []proc
	for _, file := range files {
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended meanwhile
		}
		require.NoError(t, err)
		// The name in parentheses may hold anything.
		head, rest, _ := strings.Cut(string(b), " (")
		fields := strings.Fields(rest[strings.LastIndex(rest, ")")+1:])
		p := proc{state: fields[0]}
		p.pid, _ = strconv.Atoi(head)
		p.parent, _ = strconv.Atoi(fields[1])
		p.group, _ = strconv.Atoi(fields[2])
		out = append(out, p)
	}
	return out
}

// alive reports processes of some groups that have not ended.
func alive(t *testing.T, groups map[int]bool) error {
	t.Helper()
	for _, p := range procs(t) {
		if groups[p.group] && p.state != "Z" && p.state != "X" {
			return fmt.Errorf("process %d of group %d is left", p.pid, p.group)
		}
	}
	return nil
}

// Stopping the demo ends all that it started: the router, then prefill, then
// decode. Where the demo itself is killed, they end with it.
func TestStoppingTheDemoEndsAllThatItStarted(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]syscall.Signal{"interrupt": syscall.SIGINT, "kill": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := cluster.Spawn(t, cluster.Command{Label: "demo", Program: cluster.Pdctl, Args: []string{
				"demo", "--dir", dir, "--nodes", "1P2D", "--p-layout", "dp2tp1", "--d-layout", "dp2tp1", "--max-tokens", "8",
			}})
			cluster.Eventually(t, func() error {
				if !p.Alive() {
					t.Fatalf("the demo has ended\n%s", p.Tail())
				}
				return contains(p.Stdout(), "It stays up")
			})
			groups := map[int]bool{}
			for _, child := range procs(t) {
				if child.parent == p.PID() {
					require.NotEqual(t, p.PID(), child.group, "a child shares the demo's group")
					groups[child.group] = true
				}
			}
			require.Len(t, groups, 4, "router, prefill and two decode nodes")
			require.Error(t, alive(t, groups), "the check sees processes at all")
			p.Signal(end)
			code := p.Wait(t)
			if end == syscall.SIGKILL {
				cluster.Eventually(t, func() error { return alive(t, groups) })
				return
			}
			require.Zero(t, code, "%s", p.Tail())
			require.NoError(t, alive(t, groups))
			require.Empty(t, p.Stderr())
			router, prefill, decode := stopped(t, dir, "router"), stopped(t, dir, "p"), stopped(t, dir, "d")
			require.Len(t, router, 1)
			require.Len(t, prefill, 1)
			require.Len(t, decode, 2)
			require.True(t, router[0].Before(prefill[0]), "prefill was stopped before the router")
			for _, at := range decode {
				require.True(t, prefill[0].Before(at), "a decode node was stopped before prefill")
			}
		})
	}
}

// stopped are the times at which the processes of one role said that they
// stopped.
func stopped(t *testing.T, dir, role string) []time.Time {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "logs", "demo", role, "*.events.jsonl"))
	require.NoError(t, err)
	var out []time.Time
	for _, file := range files {
		events, err := journal.ReadFile(file)
		require.NoError(t, err)
		last := events[len(events)-1]
		require.Equal(t, journal.ServiceStopped, last.Event, file)
		out = append(out, last.Time)
	}
	return out
}

package fault

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// usage is what the kernel says that a process uses.
type usage struct{ kilobytes, threads, files int }

// Growth that a process may have once it is warm.
const (
	growthKilobytes = 512 << 10
	growthThreads   = 16
	growthFiles     = 32
)

func usageOf(t *testing.T, p *cluster.Process) usage {
	t.Helper()
	var u usage
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "VmRSS:":
			u.kilobytes, err = strconv.Atoi(fields[1])
		case "Threads:":
			u.threads, err = strconv.Atoi(fields[1])
		}
		require.NoError(t, err)
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	require.NoError(t, err)
	u.files = len(files)
	require.Positive(t, u.kilobytes)
	require.Positive(t, u.threads)
	require.Positive(t, u.files)
	return u
}

// Behaviour 156, Case B10: hundreds of requests, of which a third are left by
// their clients and a third refused, leave nothing behind: no memory, file or
// thread in any process, no page, no slot.
func TestSoakLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	const workers, warm, long = 6, 10, 60
	c := cluster.Start(t, cluster.Options{
		PLayout: "dp2tp1", DLayout: "dp2tp1", Capacity: 4,
		PrefillFlags: []string{"--no-enable-prefix-caching"}, DecodeFlags: []string{"--no-enable-prefix-caching"},
	})
	processes := []*cluster.Process{c.Router}
	for _, n := range c.Nodes() {
		processes = append(processes, n.Process)
	}
	request := func(w, i int) cluster.Completion {
		return cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint("soak ", w, " ", i%warm, " "), 50+20*w), Max: 12, Stream: i%2 == 0}
	}
	texts := map[string]string{}
	for w := range workers {
		for i := range warm {
			q := request(w, i)
			texts[q.Prompt] = cluster.SharedCombined(t).Text(t, q)
		}
	}
	// run lets every worker send so many requests.
	run := func(each int) {
		var all sync.WaitGroup
		for w := range workers {
			all.Go(func() {
				for i := range each {
					q := request(w, i)
					switch i % 3 {
					case 0:
						if client, err := cluster.Connect(c.URL, q); err == nil {
							client.Wait(i % 9)
							client.Reset()
						}
						continue
					case 1:
						q.Fields = map[string]any{"temperature": 1}
					}
					a, err := cluster.Complete(t.Context(), c.URL, q)
					if err != nil {
						t.Errorf("worker %d, request %d: %v", w, i, err)
						return
					}
					switch {
					case a.Status == 503: // full for the moment
					case i%3 == 1 && a.Status != 400, i%3 == 2 && a.Check(q) != nil:
						t.Errorf("worker %d, request %d: %d %s", w, i, a.Status, a.Raw)
						return
					case i%3 == 2 && a.Text != texts[q.Prompt]:
						t.Errorf("worker %d, request %d has another text", w, i)
						return
					}
				}
			})
		}
		all.Wait()
		c.AssertIdle(t)
	}
	run(warm)
	var before []usage
	pages := make([]int, len(c.Nodes()))
	for i, n := range c.Nodes() {
		pages[i] = freePages(t, n)
	}
	for _, p := range processes {
		before = append(before, usageOf(t, p))
	}
	run(long)
	for i, p := range processes {
		after := usageOf(t, p)
		t.Logf("%s: before %+v, after %+v", p.Label, before[i], after)
		require.LessOrEqual(t, after.kilobytes-before[i].kilobytes, growthKilobytes, p.Label)
		require.LessOrEqual(t, after.threads-before[i].threads, growthThreads, p.Label)
		require.LessOrEqual(t, after.files-before[i].files, growthFiles, p.Label)
	}
	for i, n := range c.Nodes() {
		require.Equal(t, pages[i], freePages(t, n), n.Label)
	}
}

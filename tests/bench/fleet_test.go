package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// serveReplica runs a replica of the test's own and gives its entry of a fleet file.
func serveReplica(t *testing.T, h edge.Handler) (entry, address string) {
	t.Helper()
	s, err := edge.Listen(edge.ServerConfig{Address: "127.0.0.1:0", MaxConnections: 1 << 16})
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { s.Serve(h) })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		s.Shutdown(ctx)
		serving.Wait()
	})
	return fmt.Sprintf(`{"host":"127.0.0.1","port":%d}`, s.Addr().(*net.TCPAddr).Port), s.Addr().String()
}

// startFleet builds the fleet router as it is shipped and runs it over replicas.
func startFleet(t *testing.T, entries ...string) string {
	t.Helper()
	program, file := filepath.Join(t.TempDir(), "pypto-serving-router"), filepath.Join(t.TempDir(), "fleet.json")
	build := exec.Command("go", "build", "-o", program, "github.com/hw-native-sys/pypto-pd/cmd/pypto-serving-router")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	require.NoError(t, os.WriteFile(file, []byte(`{"replicas":[`+strings.Join(entries, ",")+`]}`), 0o600))
	router := exec.Command(program, "--replicas", file, "--host", "127.0.0.1", "--port", "0", "--max-connections", "65536", "--affinity-slack", "65536",
		"--health-interval", "0.2", "--log-level", "error")
	router.Stderr = os.Stderr
	out, err := router.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, router.Start())
	t.Cleanup(func() {
		router.Process.Kill()
		router.Wait()
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		for _, f := range strings.Fields(lines.Text()) {
			if address, ok := strings.CutPrefix(f, "http="); ok {
				return address
			}
		}
	}
	require.FailNow(t, "no address")
	return ""
}

// TestOpenStreamsOfAFleet is TestOpenStreams for the fleet router: what a stream
// costs while nothing is said, that every probe is made and answered meanwhile, and
// that everything is given back.
func TestOpenStreamsOfAFleet(t *testing.T) {
	release := make(chan struct{})
	replica := func(c *edge.Call) {
		if c.Method() == "GET" {
			c.Reply(200, "application/json", []byte(`{"status":"ok"}`))
			return
		}
		c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
			w.WriteString("data: {}\n\n")
			w.Flush()
			select {
			case <-release:
			case <-c.Context().Done():
			}
			w.WriteString("data: [DONE]\n\n")
			return w.Flush()
		})
	}
	a, _ := serveReplica(t, replica)
	b, _ := serveReplica(t, replica)
	address := startFleet(t, a, b)
	until := func(br *bufio.Reader, text string) {
		t.Helper()
		for {
			line, err := br.ReadSlice('\n')
			require.NoError(t, err)
			if bytes.HasPrefix(line, []byte(text)) {
				return
			}
		}
	}
	before := gauges(t, address)
	started := time.Now()
	conns, readers := make([]net.Conn, *streams), make([]*bufio.Reader, *streams)
	for i := range conns {
		conns[i], readers[i] = post(t, address, `{"model":"m","prompt":"p","stream":true}`)
		until(readers[i], "data: ")
	}
	opening := time.Since(started)
	idle := gauges(t, address)
	require.EqualValues(t, *streams, idle["pypto_fleet_active_requests"])
	per := func(name string) float64 { return (idle[name] - before[name]) / float64(*streams) }
	t.Logf("%d streams, opened in %v; per stream %.1f KiB resident, %.1f KiB heap in use, %.1f KiB stacks, %.1f goroutines, %.1f descriptors",
		*streams, opening.Round(time.Millisecond), per("process_resident_memory_bytes")/1024, per("go_memstats_heap_inuse_bytes")/1024,
		per("go_memstats_stack_inuse_bytes")/1024, per("go_goroutines"), per("process_open_fds"))
	if *streams >= 200 { // fewer say more of the process than of streams
		require.LessOrEqual(t, per("process_resident_memory_bytes"), float64(maxStreamBytes))
		require.LessOrEqual(t, per("go_memstats_heap_inuse_bytes")+per("go_memstats_stack_inuse_bytes"), float64(maxStreamBytes))
	}
	const asked = `pypto_fleet_probes_total{result="ok"}`
	require.Eventually(t, func() bool { return gauges(t, address)[asked] >= idle[asked]+6 }, patience, 50*time.Millisecond)
	now := gauges(t, address)
	require.Zero(t, now[`pypto_fleet_probes_total{result="failed"}`])
	require.Zero(t, now[`pypto_fleet_probes_total{result="skipped"}`])
	require.EqualValues(t, 2, now["pypto_fleet_routable_replicas"])
	close(release)
	for i, nc := range conns {
		until(readers[i], "data: [DONE]")
		nc.Close()
	}
	require.Eventually(t, func() bool {
		now := gauges(t, address)
		return now["process_open_fds"] <= before["process_open_fds"] && now["go_goroutines"] <= before["go_goroutines"] && now["pypto_fleet_active_requests"] == 0
	}, patience, 50*time.Millisecond)
}

// post sends a generation on a connection of its own.
func post(t *testing.T, address, body string) (net.Conn, *bufio.Reader) {
	t.Helper()
	nc, err := net.Dial("tcp", address)
	require.NoError(t, err)
	nc.SetDeadline(time.Now().Add(patience))
	send(t, nc, body)
	return nc, bufio.NewReaderSize(nc, 1024)
}

func send(t *testing.T, nc net.Conn, body string) {
	t.Helper()
	_, err := fmt.Fprintf(nc, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nX-Session-Id: one\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	require.NoError(t, err)
}

// TestLatencyThroughAFleet prints what the fleet router adds to the first byte, one
// request after the other on one connection.
func TestLatencyThroughAFleet(t *testing.T) {
	entry, direct := serveReplica(t, func(c *edge.Call) { c.Reply(200, "application/json", []byte(`{"choices":[]}`)) })
	through := startFleet(t, entry)
	const rounds = 500
	took := func(address string) []time.Duration {
		nc, br := post(t, address, "{}")
		defer nc.Close()
		var out []time.Duration
		for range rounds {
			for {
				line, err := br.ReadSlice('\n')
				require.NoError(t, err)
				if string(line) == "\r\n" {
					break
				}
			}
			_, err := br.Discard(len(`{"choices":[]}`))
			require.NoError(t, err)
			began := time.Now()
			send(t, nc, "{}")
			_, err = br.Peek(1)
			require.NoError(t, err)
			out = append(out, time.Since(began))
		}
		slices.Sort(out)
		return out
	}
	a, b := took(direct), took(through)
	for name, at := range map[string]int{"p50": rounds / 2, "p99": rounds * 99 / 100} {
		t.Logf("%s: %v direct, %v through the router, %v added", name, a[at], b[at], b[at]-a[at])
	}
}

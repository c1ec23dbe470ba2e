package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/control"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

var (
	streams     = flag.Int("bench.streams", 400, "how many event streams stand open at once")
	streamBody  = flag.Int("bench.prompt", 1, "bytes of the prompt of each")
	streamsOver = flag.Bool("bench.tls", false, "whether the clients speak TLS to the router; the bound is without")
)

// maxStreamBytes is what one open idle stream may cost the router: in heap and
// stacks, with what the collector has not yet taken back, and in resident memory.
const maxStreamBytes = 24 << 10

const patience = 60 * time.Second

// node is one side of a pair that answers as it is told.
type node struct {
	control.Service // nil: a router asks for nothing but Node here
	says            wire.Node
}

// Node implements control.Service.
func (n *node) Node(context.Context) (wire.Node, error) { return n.says, nil }

// serveNode starts a node; its run is filled in before it is first asked.
func serveNode(t *testing.T, role pd.Role, h edge.Handler) (n *node, entry map[string]any, start func()) {
	t.Helper()
	plane, err := edge.Listen(edge.ServerConfig{Address: "127.0.0.1:0", MaxConnections: 1 << 16})
	require.NoError(t, err)
	port, err := control.Listen(control.ServerConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	contract := pd.Contract{
		ProtocolVersion: 2, Adapter: "bench", AdapterVersion: 1, Family: "f", Variant: "v", SpeculativeTokens: 7, Continuation: "c",
		Granularity: "chunk", FinalPartial: "page", ModelRevision: "r", Provider: "simulator", Mapping: "rank-mod", RollingPolicy: "tail",
		AlignmentTokens: 128, ByteAlignment: 64,
		Groups: []pd.CacheGroup{{Name: "full", Kind: pd.Full, PageTokens: 128}},
		Components: []pd.Component{{
			ID: "k", Group: "full", Atomic: "k", DType: "bf16", ElementBytes: 2, RowsPerPage: 128, RowTokens: 1, RowElements: 8, Layers: []int{0, 1},
		}},
		Bootstrap: pd.Bootstrap{Component: "b", Rows: 128, RowElements: 8, ElementBytes: 2},
	}
	digest, err := wire.ContractDigest(&contract)
	require.NoError(t, err)
	n = &node{says: wire.Node{
		ProtocolVersion: 2, Role: role, Node: pd.NodeID(plane.Addr().String()), Boot: pd.NewBootID(), HTTPAddress: plane.Addr().String(),
		ControlAddress: port.Addr().String(), TransferHostname: "127.0.0.1", Health: pd.Ready, ServedModel: "m", MaxModelTokens: 1000,
		Contract: contract, ContractDigest: digest, Topology: pd.Topology{Ranks: 4, TP: 4}, RingPeriods: map[pd.GroupName]int{},
		Capacity: wire.Capacity{Limit: pd.MaxCapacity},
	}}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		plane.Shutdown(ctx)
		port.Shutdown(ctx)
		serving.Wait()
	})
	entry = map[string]any{"host": "127.0.0.1", "port": plane.Addr().(*net.TCPAddr).Port, "control_port": port.Addr().(*net.TCPAddr).Port}
	return n, entry, func() {
		serving.Go(func() { plane.Serve(h) })
		serving.Go(func() { port.Serve(n) })
	}
}

// startRouter builds the router as it is shipped, without what this test binary
// adds to its memory, runs it and gives its address.
func startRouter(t *testing.T, file string, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "pypto-pd-router")
	build := exec.Command("go", "build", "-o", program, "github.com/hw-native-sys/pypto-pd/cmd/pypto-pd-router")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	router := exec.Command(program, "--pd-config", file, "--port", "0", "--max-connections", "65536", "--log-level", "error")
	router.Args = append(router.Args, flags...)
	router.Stderr = os.Stderr
	out, err := router.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, router.Start())
	t.Cleanup(func() {
		router.Process.Kill()
		router.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	for _, f := range strings.Fields(line) {
		if scheme, address, ok := strings.Cut(f, "="); ok && strings.HasPrefix(scheme, "http") {
			return scheme + "://" + address
		}
	}
	require.FailNow(t, "no address", line)
	return ""
}

// believesAll is for a router whose certificate was made a moment ago.
var believesAll = &tls.Config{InsecureSkipVerify: true}

// certify makes a certificate and gives the flags that name it.
func certify(t *testing.T) []string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	certFile, keyFile := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	return []string{"--tls-cert", certFile, "--tls-key", keyFile}
}

// gauges reads a router's own figures.
func gauges(t *testing.T, address string) map[string]float64 {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: believesAll}
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	r, err := (&http.Client{Transport: transport, Timeout: patience}).Get(address + "/metrics")
	require.NoError(t, err)
	defer r.Body.Close()
	out := map[string]float64{}
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), " "); ok && !strings.HasPrefix(name, "#") {
			out[name], _ = strconv.ParseFloat(value, 64)
		}
	}
	return out
}

// TestOpenStreams opens many event streams through one router, looks at what they
// cost while nothing is said, lets them end, and sees that every descriptor is
// given back. -bench.streams 2000 -v prints the figures of docs/performance.md.
func TestOpenStreams(t *testing.T) {
	release := make(chan struct{})
	prefill, p, startPrefill := serveNode(t, pd.Prefill, func(c *edge.Call) { c.Reply(200, "application/json", []byte(`{"state":"RETIRED"}`)) })
	decode, d, startDecode := serveNode(t, pd.Decode, func(c *edge.Call) {
		c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
			w.WriteString("data: {\"id\":\"x\",\"choices\":[]}\n\n")
			w.Flush()
			select {
			case <-release:
			case <-c.Context().Done():
			}
			w.WriteString("data: [DONE]\n\n")
			return w.Flush()
		})
	})
	text, err := json.Marshal(map[string]any{
		"runtime": map[string]any{
			"run_id": "bench", "provider": "simulator", "capacity": pd.MaxCapacity,
			"prefill": []any{p}, "decode": []any{d},
		},
		"observability": map[string]any{"root": t.TempDir()},
	})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "pd.json")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	c, err := config.Load(file)
	require.NoError(t, err)
	prefill.says.Run, decode.says.Run = c.Run(), c.Run()
	startPrefill()
	startDecode()
	var flags []string
	if *streamsOver {
		flags = certify(t)
	}
	address := startRouter(t, file, flags...)
	require.Eventually(t, func() bool { return gauges(t, address)["pypto_router_serving_pairs"] == 1 }, patience, 50*time.Millisecond)

	body := fmt.Sprintf(`{"model":"m","prompt":"%s","stream":true}`, strings.Repeat("p", *streamBody))
	request := fmt.Appendf(nil, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
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
	open := func() (net.Conn, *bufio.Reader) {
		_, at, _ := strings.Cut(address, "://")
		nc, err := net.Dial("tcp", at)
		require.NoError(t, err)
		nc.SetDeadline(time.Now().Add(patience))
		if *streamsOver {
			nc = tls.Client(nc, believesAll)
		}
		_, err = nc.Write(request)
		require.NoError(t, err)
		br := bufio.NewReaderSize(nc, 1024)
		until(br, "data: ")
		return nc, br
	}
	before := gauges(t, address)
	started := time.Now()
	conns, readers := make([]net.Conn, *streams), make([]*bufio.Reader, *streams)
	for i := range conns {
		conns[i], readers[i] = open()
	}
	opening := time.Since(started)
	idle := gauges(t, address)
	require.EqualValues(t, *streams, idle["pypto_router_active_requests"])
	per := func(name string) float64 { return (idle[name] - before[name]) / float64(*streams) }
	t.Logf("%d streams, opened in %v: resident memory %.1f MiB before, %.1f MiB open; per stream %.1f KiB resident, %.1f KiB heap in use, %.1f KiB stacks, %.1f goroutines, %.1f descriptors",
		*streams, opening.Round(time.Millisecond), before["process_resident_memory_bytes"]/(1<<20), idle["process_resident_memory_bytes"]/(1<<20),
		per("process_resident_memory_bytes")/1024, per("go_memstats_heap_inuse_bytes")/1024, per("go_memstats_stack_inuse_bytes")/1024,
		per("go_goroutines"), per("process_open_fds"))
	if *streams >= 200 && *streamBody == 1 && !*streamsOver { // fewer say more of the process than of streams
		require.LessOrEqual(t, per("process_resident_memory_bytes"), float64(maxStreamBytes))
		require.LessOrEqual(t, per("go_memstats_heap_inuse_bytes")+per("go_memstats_stack_inuse_bytes"), float64(maxStreamBytes))
	}
	close(release)
	for i, nc := range conns {
		until(readers[i], "data: [DONE]")
		nc.Close()
	}
	require.Eventually(t, func() bool {
		now := gauges(t, address)
		return now["process_open_fds"] <= before["process_open_fds"] && now["go_goroutines"] <= before["go_goroutines"] && now["pypto_router_active_requests"] == 0
	}, patience, 50*time.Millisecond, "descriptors and goroutines are those of the start")
}

package app

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
)

const name = "pypto-serving"

// flags are the command line. Flags that only a real model uses are checked and
// have no effect with --backend sim.
type flags struct {
	program.Common

	Host string `help:"Address to listen on for HTTP (default: the pd.json entry's host, or 127.0.0.1 without a role)."`
	Port int    `default:"0" help:"HTTP port (default: the pd.json entry's port, or 8000 without a role). The control port comes from the entry."`

	Model       string `default:"reference" help:"Path of the model, or any name for the reference engine; its revision is the hash of the name, or of the config.json inside the path."`
	ServedModel string `name:"served-model-name" help:"Model name in the API (default: the last element of --model)."`
	Backend     string `enum:"sim,npu" default:"sim" help:"Where the cache lives: host memory (sim), or Ascend device memory (npu), into which the reference engine copies row by row: for bringing a pair of machines up."`
	Platform    string `help:"Accelerator platform, used by --backend npu."`
	Devices     string `help:"Comma-separated card numbers, one per rank, used by --backend npu (default: 0, 1, 2, …)."`

	DP       int    `name:"dp" help:"Data-parallel partitions; must be ep / tp (default: that)."`
	EP       int    `name:"ep" default:"16" help:"Expert-parallel size: the number of ranks."`
	TP       int    `name:"tp" default:"4" help:"Attention tensor-parallel size: ranks that replicate one partition's cache."`
	LMHeadTP int    `name:"lm-head-tp" default:"4" help:"Tensor-parallel size of the vocabulary head; must divide ep."`
	RingHeap string `name:"ring-heap" help:"Comma-separated heap bytes per ring, used by --backend npu."`

	BlockSize         int     `name:"block-size" default:"32" help:"Tokens per page of the uncompressed cache; the adapter supports 32."`
	MaxNumSeqs        int     `name:"max-num-seqs" default:"8" help:"Requests that run at once."`
	MaxModelLen       int     `name:"max-model-len" default:"16384" help:"Most tokens of prompt plus output."`
	MaxBatchedTokens  int     `name:"max-num-batched-tokens" default:"2048" help:"Most tokens that one step computes."`
	LongPrefill       int     `name:"long-prefill-token-threshold" default:"256" help:"Most tokens that one prompt gets in one step; 0 is the whole step."`
	SpeculativeConfig string  `name:"speculative-config" default:"{\"method\":\"dspark\",\"num_speculative_tokens\":7}" help:"JSON with method and num_speculative_tokens; only dspark with 7 is supported."`
	GenerateConfig    string  `name:"generate-config" default:"{}" help:"JSON with max_new_tokens and temperature that requests default to; only temperature 0 is supported."`
	MemoryUtilization float64 `name:"npu-memory-utilization" default:"0.9" help:"Share of device memory for the cache, used by --backend npu."`
	PrefixCaching     bool    `name:"enable-prefix-caching" default:"true" negatable:"" help:"Reuse pages of earlier prompts."`

	PDConfig      string `name:"pd-config" help:"Path of pd.json; not opened without --pd-role."`
	PDRole        string `name:"pd-role" help:"Take one side of a pair: prefill or decode."`
	PDNodeID      string `name:"pd-node-id" help:"Which entry of pd.json this node is (host:port or node_id); needed where the role has several."`
	RollingPolicy string `name:"rolling-policy" enum:"tail,checkpoint,all" default:"tail" help:"Which pages of the sliding window a pair moves: ${enum}. Both nodes must choose the same; more than the tail lets decode find shorter prefixes again."`

	Owners string `name:"owners" enum:",in-process,child" default:"" help:"Where the cache memory of a node with a role is held and moved: in-process, or child for one process per rank, which this node starts as 'pypto-serving owner'. Default: in-process with provider simulator, else child."`

	MooncakeLibrary string `name:"mooncake-library" help:"Path of libtransfer_engine.so, for provider mooncake (default: PYPTO_MOONCAKE_LIBRARY, then the usual places)."`
	AscendLibrary   string `name:"ascend-library" help:"Path of libascendcl.so, for --backend npu (default: PYPTO_ASCENDCL_LIBRARY, then the usual places)."`

	VerifyPages int `name:"verify-pages" default:"0" help:"Hash this many of the last pages of every component when a prompt is handed over and when it is adopted, and log them: both nodes of a pair log the same. For bringing a machine up; 0 is off."`

	ControlSecretFile string `name:"control-secret-file" help:"File with the secret that router and nodes share; control calls must then prove that they come from the deployment. Off by default."`

	AutoFence bool `name:"auto-fence" help:"On a decode node: end a quarantine by making the data plane anew, without an operator."`

	MaxBody         int           `name:"max-body-bytes" default:"33554432" help:"Largest request body."`
	Drain           time.Duration `name:"drain-timeout" default:"300s" help:"How long a stopping node waits for running requests."`
	ShowStartupLogs bool          `name:"show-startup-logs" help:"Tell the steps of the start on stderr in plain lines, whatever the log's level: model, geometry, port, memory. Launchers keep them."`

	Pprof string `name:"pprof" help:"Serve Go profiles on this address; off by default."`

	SimGeometry    string        `name:"sim-geometry" enum:"tiny,full" default:"tiny" help:"Shape of the imitated cache: ${enum}. The full one does not fit a laptop."`
	SimPoolTokens  int           `name:"sim-pool-tokens" default:"65536" help:"Tokens that the cache of one partition holds."`
	SimPrefillRate float64       `name:"sim-prefill-rate" default:"0" help:"Imitated prompt tokens per second; 0 is as fast as possible."`
	SimDecodeRate  float64       `name:"sim-decode-rate" default:"0" help:"Imitated decode steps per second; 0 is as fast as possible."`
	SimLinkRate    int64         `name:"sim-link-rate" default:"0" help:"Imitated bytes per second of one rank's link; 0 is unlimited."`
	SimLinkLatency time.Duration `name:"sim-link-latency" default:"0s" help:"Imitated latency of one transfer."`
	SimSeed        uint64        `name:"sim-seed" default:"1" help:"Seed of imitated latencies and faults."`
	SimFaults      string        `name:"sim-faults" help:"JSON file with faults of the simulated data plane."`
}

// settings are checked flags.
type settings struct {
	flags
	role        pd.Role
	topology    pd.Topology
	devices     []int // cards by rank, with --backend npu
	chunkTokens int
	maxNew      int
	revision    string
	adapter     adapter.Adapter
	steps       *stepMetrics
}

// check reports every defect of the flags at once.
func (f flags) check() (settings, error) {
	s := settings{flags: f}
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	switch f.PDRole {
	case "":
	case "prefill", "decode":
		_ = s.role.UnmarshalText([]byte(f.PDRole))
		if f.PDConfig == "" {
			bad("--pd-role needs --pd-config")
		}
	default:
		bad("--pd-role %q: want prefill or decode", f.PDRole)
	}
	if f.Port < 0 || f.Port > 65535 {
		bad("--port %d: want 1..65535", f.Port)
	}
	if s.role == 0 {
		s.Host, s.Port = cmp.Or(f.Host, "127.0.0.1"), cmp.Or(f.Port, 8000)
	}
	s.topology = pd.Topology{Ranks: f.EP, TP: f.TP}
	if err := s.topology.Check(); err != nil {
		bad("--ep %d --tp %d: %v", f.EP, f.TP, err)
	} else if f.DP != 0 && f.DP != s.topology.Partitions() {
		bad("--dp %d: want ep / tp = %d", f.DP, s.topology.Partitions())
	}
	if f.LMHeadTP < 1 || f.EP%max(1, f.LMHeadTP) != 0 {
		bad("--lm-head-tp %d: must divide --ep %d", f.LMHeadTP, f.EP)
	}
	if f.BlockSize != 32 {
		bad("--block-size %d: the adapter supports 32", f.BlockSize)
	}
	positive := func(flag string, v, most int) {
		if v < 1 || v > most {
			bad("%s %d: want 1..%d", flag, v, most)
		}
	}
	positive("--max-num-seqs", f.MaxNumSeqs, 64)
	positive("--max-model-len", f.MaxModelLen, pd.MaxModelTokens)
	positive("--max-num-batched-tokens", f.MaxBatchedTokens, pd.MaxModelTokens)
	positive("--sim-pool-tokens", f.SimPoolTokens, 1<<24)
	positive("--max-body-bytes", f.MaxBody, 1<<30)
	if f.VerifyPages < 0 || f.VerifyPages > pd.MaxTablePages {
		bad("--verify-pages %d: want 0..%d", f.VerifyPages, pd.MaxTablePages)
	}
	if f.LongPrefill < 0 {
		bad("--long-prefill-token-threshold %d: want 0 or more", f.LongPrefill)
	}
	s.chunkTokens = f.MaxBatchedTokens
	if f.LongPrefill > 0 {
		s.chunkTokens = min(s.chunkTokens, f.LongPrefill)
	}
	for flag, v := range map[string]float64{"--sim-prefill-rate": f.SimPrefillRate, "--sim-decode-rate": f.SimDecodeRate} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			bad("%s %v: want 0 or more", flag, v)
		}
	}
	if !(f.MemoryUtilization > 0 && f.MemoryUtilization <= 1) {
		bad("--npu-memory-utilization %v: want more than 0, at most 1", f.MemoryUtilization)
	}
	if f.SimLinkRate < 0 {
		bad("--sim-link-rate %d: want 0 or more", f.SimLinkRate)
	}
	if f.SimLinkLatency < 0 || f.Drain < 0 {
		bad("--sim-link-latency %v, --drain-timeout %v: want 0 or more", f.SimLinkLatency, f.Drain)
	}
	numbers(&all, "--devices", f.Devices)
	numbers(&all, "--ring-heap", f.RingHeap)
	s.checkNPU(&all)
	s.checkJSON(&all)
	switch f.SimGeometry {
	case "full":
		s.adapter = dsv4.Full()
	default:
		s.adapter = dsv4.Tiny()
	}
	withPolicy, err := adapter.WithPolicy(s.adapter, f.RollingPolicy)
	if err != nil {
		all = append(all, err)
	}
	s.adapter = withPolicy
	if f.ServedModel == "" {
		s.ServedModel = filepath.Base(f.Model)
	}
	if err := pd.CheckID("--served-model-name", s.ServedModel); err != nil {
		all = append(all, err)
	}
	revision, err := modelRevision(f.Model)
	if err != nil {
		all = append(all, err)
	}
	s.revision = revision
	return s, errors.Join(all...)
}

func numbers(all *[]error, flag, text string) {
	if text == "" {
		return
	}
	for _, part := range strings.Split(text, ",") {
		if n, err := strconv.ParseInt(part, 10, 64); err != nil || n < 0 {
			*all = append(*all, fmt.Errorf("%s: %q is not a number", flag, part))
		}
	}
}

// checkJSON reads the two JSON flags.
func (s *settings) checkJSON(all *[]error) {
	var spec struct {
		Method string `json:"method"`
		Tokens int    `json:"num_speculative_tokens"`
	}
	if err := strictjson.Decode([]byte(s.SpeculativeConfig), &spec, strictjson.Limits{}); err != nil {
		*all = append(*all, fmt.Errorf("--speculative-config: %w", err))
	} else if spec.Method != "dspark" || spec.Tokens != 7 {
		*all = append(*all, fmt.Errorf("--speculative-config: method %q with %d tokens: this software requires DeepSeek V4 DSpark K7 (method dspark, num_speculative_tokens 7)", spec.Method, spec.Tokens))
	}
	var gen struct {
		MaxNew      int     `json:"max_new_tokens,omitempty"`
		Temperature float64 `json:"temperature,omitempty"`
	}
	switch err := strictjson.Decode([]byte(s.GenerateConfig), &gen, strictjson.Limits{}); {
	case err != nil:
		*all = append(*all, fmt.Errorf("--generate-config: %w", err))
	case gen.Temperature != 0:
		*all = append(*all, fmt.Errorf("--generate-config: temperature %v: only greedy decoding (0) is supported", gen.Temperature))
	case gen.MaxNew < 0 || gen.MaxNew > pd.MaxModelTokens:
		*all = append(*all, fmt.Errorf("--generate-config: max_new_tokens %d: want 0..%d", gen.MaxNew, pd.MaxModelTokens))
	default:
		s.maxNew = gen.MaxNew
	}
}

// modelRevision identifies the weights: the hash of the model's config.json
// where the path has one, else of the name.
func modelRevision(model string) (string, error) {
	content := []byte(model)
	if b, err := os.ReadFile(filepath.Join(model, "config.json")); err == nil {
		content = b
	} else if !errors.Is(err, os.ErrNotExist) && !strings.Contains(err.Error(), "not a directory") {
		return "", fmt.Errorf("--model %s: %w", model, err)
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]), nil
}

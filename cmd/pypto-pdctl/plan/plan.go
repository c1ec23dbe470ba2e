// Package plan says what a handoff would move and what a cache of a given
// memory holds, without any node: it calls the planner of the nodes on tables
// of consecutive pages and prints what comes of it.
//
// It knows no process, port or file, and starts no goroutine.
package plan

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
)

// Flags are those of the plan.
type Flags struct {
	Tokens   int    `default:"8192" help:"Prompt length in tokens."`
	Chunk    int    `default:"128" help:"Most prompt tokens that one step of prefill computes; prefill's rings are as long as that needs."`
	DChunk   int    `name:"d-chunk" help:"Most tokens of one step of decode, which its rings are made for (default: --chunk)."`
	PLayout  string `name:"p-layout" default:"dp4tp4" help:"Layout of prefill: dpNtpM; the product is the ranks."`
	DLayout  string `name:"d-layout" default:"dp4tp4" help:"Layout of decode."`
	PHit     int    `name:"p-hit" help:"Tokens that prefill has in its prefix cache, a multiple of 128."`
	DHit     int    `name:"d-hit" help:"Tokens that decode has."`
	Geometry string `enum:"full,tiny" default:"full" help:"Shape of the cache: ${enum}."`
	Policy   string `enum:"tail,checkpoint,all" default:"tail" help:"Which pages of the sliding window move: ${enum}."`
	JSON     bool   `name:"json" help:"Print one JSON object instead of tables."`

	Memory      string  `help:"Memory that each rank has for its cache, such as 32GiB, or one size per rank with commas; prints what fits."`
	Utilization float64 `default:"0.9" help:"Share of --memory that the cache takes."`
	Slots       int     `default:"16" help:"With --memory: requests that each partition holds at once."`
	Checkpoints int     `default:"16" help:"With --memory: cached prefixes of each partition whose windows and states stay beside the running requests."`
	MaxModelLen int     `name:"max-model-len" default:"655360" help:"With --memory: tokens of the longest request, prompt and output, which must fit alone."`

	adapter        adapter.Adapter
	source, target pd.Topology
	memory         []int64
}

// maxChunks bounds how many chunks are planned and listed.
const maxChunks = 16384

var layoutForm = regexp.MustCompile(`^dp([1-9][0-9]{0,3})tp([1-9][0-9]{0,3})$`)

// Check reports every defect of the flags and must precede Run.
func (f *Flags) Check() error {
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if f.DChunk == 0 {
		f.DChunk = f.Chunk
	}
	for _, n := range []struct {
		flag    string
		v, most int
	}{
		{"--tokens", f.Tokens, pd.MaxPromptTokens},
		{"--chunk", f.Chunk, pd.MaxModelTokens},
		{"--d-chunk", f.DChunk, pd.MaxModelTokens},
		{"--slots", f.Slots, pd.MaxCapacity},
	} {
		if n.v < 1 || n.v > n.most {
			bad("%s %d: want 1..%d", n.flag, n.v, n.most)
		}
	}
	if n := f.Tokens / max(1, f.Chunk); n > maxChunks {
		bad("--chunk %d: makes more than %d chunks of %d tokens", f.Chunk, maxChunks, f.Tokens)
	}
	layout := func(flag, text string, t *pd.Topology) {
		m := layoutForm.FindStringSubmatch(text)
		if m == nil {
			bad("%s %q: want a form such as dp4tp4 or dp16tp1", flag, text)
			return
		}
		dp, _ := strconv.Atoi(m[1]) // at most four digits
		tp, _ := strconv.Atoi(m[2])
		*t = pd.Topology{Ranks: dp * tp, TP: tp}
		if err := t.Check(); err != nil {
			bad("%s %q: %w", flag, text, err)
		}
	}
	layout("--p-layout", f.PLayout, &f.source)
	layout("--d-layout", f.DLayout, &f.target)
	var err error
	if f.memory, err = sizes(f.Memory); err != nil {
		all = append(all, err)
	}
	f.adapter = dsv4.Full()
	if f.Geometry == "tiny" {
		f.adapter = dsv4.Tiny()
	}
	chosen, err := adapter.WithPolicy(f.adapter, f.Policy)
	if err != nil {
		return errors.Join(append(all, err)...)
	}
	f.adapter = chosen
	contract := chosen.Contract("", "")
	for _, hit := range []struct {
		flag     string
		v, limit int
	}{{"--p-hit", f.PHit, chosen.SourceHitLimit(max(0, f.Tokens))}, {"--d-hit", f.DHit, chosen.TargetHitLimit(max(0, f.Tokens))}} {
		if hit.v < 0 || hit.v > hit.limit || hit.v%contract.AlignmentTokens != 0 {
			bad("%s %d: want a multiple of %d, at most %d of %d tokens", hit.flag, hit.v, contract.AlignmentTokens, hit.limit, f.Tokens)
		}
	}
	return errors.Join(all...)
}

// Run plans the prompt and prints it. An error is one of the flags: the plan is
// a function of them alone.
func Run(f Flags, stdout io.Writer) error {
	r, err := compute(f)
	if err != nil {
		return err
	}
	if f.JSON {
		b, err := strictjson.Canonical(r)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(stdout, "%s\n", b)
		return err
	}
	return r.print(stdout)
}

package bench

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/adaptertest"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// prompt is the longest that a pair takes.
const prompt = pd.MaxPromptTokens

var fence = pd.Fence{
	Request: "cmpl-0123456789abcdef", Handoff: "0123456789abcdef0123456789abcdef", Run: "pd-0123456789abcdef",
	Prefill: pd.Peer{Node: "10.1.0.1:8000", Boot: pd.BootID(strings.Repeat("1", 32))},
	Decode:  pd.Peer{Node: "10.1.0.2:8000", Boot: pd.BootID(strings.Repeat("2", 32))},
}

// wholePrompt is the longest prompt in one chunk: prefill had all but its end.
// Pages stand in runs of the given length in decode's tables, one page apart.
func wholePrompt(tb testing.TB, run int) adapter.Input {
	s := adapter.Sizing{Topology: pd.Topology{Ranks: 16, TP: 4}, PoolTokens: 4 * prompt, StepTokens: 8192, Sequences: 1}
	d := s
	d.Topology.TP = 1
	a := dsv4.Full()
	p := adaptertest.NewPair(a, prompt,
		adaptertest.Side{Sizing: s, Hit: a.SourceHitLimit(prompt)},
		adaptertest.Side{Sizing: d, Partition: 7, Page: func(_ pd.CacheGroup, slot int) pd.Page { return pd.Page(slot + slot/run) }})
	in := p.At(0, pd.Span{Start: 0, End: prompt})
	in.Fence, in.FirstToken = fence, 77
	in.MetadataHash, in.PreparedDigest = strings.Repeat("a", 64), strings.Repeat("b", 64)
	_, err := adapter.Build(in)
	require.NoError(tb, err)
	return in
}

// offer is what prefill does with a computed chunk before it can be sent.
func offer(tb testing.TB, in adapter.Input) (pd.Manifest, []byte) {
	m, err := adapter.Build(in)
	if err != nil {
		tb.Fatal(err)
	}
	return m, encode(tb, &m)
}

func encode(tb testing.TB, m *pd.Manifest) []byte {
	hash, err := wire.ManifestHash(m)
	if err != nil {
		tb.Fatal(err)
	}
	b, err := wire.Encode(&wire.Chunk{Manifest: *m, ManifestHash: hash})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// offerByPage is the baseline: the same bytes named page by page, as if tables
// and copies did not travel as runs.
func offerByPage(tb testing.TB, in adapter.Input) (pd.Manifest, []byte) {
	m, err := adapter.Build(in)
	if err != nil {
		tb.Fatal(err)
	}
	var pages []pd.Copy
	for _, cp := range m.Copies {
		for k := range pd.Page(cp.Count) {
			one := cp
			one.Source, one.Target, one.Count = cp.Source+k, cp.Target+k, 1
			pages = append(pages, one)
		}
	}
	m.Copies = pages
	return m, encode(tb, &m)
}

// runLengths go from a fresh pool to one in which no two pages of a request are
// neighbours.
var runLengths = []int{1 << 20, 64, 16, 4, 2, 1}

func name(run int) string {
	if run > prompt {
		return "contiguous"
	}
	return fmt.Sprintf("runs of %d", run)
}

// BenchmarkOffer is plan, hash and encode of a 524,288-token prompt in one chunk
// for one target rank.
func BenchmarkOffer(b *testing.B) {
	for _, how := range []struct {
		name  string
		offer func(testing.TB, adapter.Input) (pd.Manifest, []byte)
	}{{"runs", offer}, {"baseline page by page", offerByPage}} {
		for _, run := range runLengths {
			b.Run(how.name+"/"+name(run), func(b *testing.B) {
				in := wholePrompt(b, run)
				b.ReportAllocs()
				var m pd.Manifest
				var text []byte
				for b.Loop() {
					m, text = how.offer(b, in)
				}
				b.ReportMetric(float64(len(m.Copies)), "copies")
				b.ReportMetric(float64(len(text)), "encoded-bytes")
			})
		}
	}
}

// BenchmarkStages measures the parts of it, and decode's side.
func BenchmarkStages(b *testing.B) {
	for _, run := range []int{1 << 20, 1} {
		in := wholePrompt(b, run)
		m, text := offer(b, in)
		theirs := in
		theirs.SourceTables = nil
		pages := map[pd.GroupName]int{}
		for _, g := range in.Contract.Groups {
			pages[g.Name] = pd.MaxArenaPages
		}
		for _, stage := range []struct {
			name string
			do   func() error
		}{
			{"plan", func() error { _, err := adapter.Build(in); return err }},
			{"hash", func() error { _, err := wire.ManifestHash(&m); return err }},
			{"encode", func() error {
				_, err := wire.Encode(&wire.Chunk{Manifest: m, ManifestHash: m.MetadataHash})
				return err
			}},
			{"decode and check", func() error { _, err := wire.Decode[wire.Chunk](text); return err }},
			{"plan again", func() error { return adapter.Verify(theirs, &m) }},
			{"lower", func() error { _, err := adapter.Lower(in.Contract, &m, pages, pages, 1, 1); return err }},
		} {
			b.Run(name(run)+"/"+stage.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := stage.do(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkChunk is one chunk of 128 tokens somewhere in a prompt: its cost does
// not depend on where.
func BenchmarkChunk(b *testing.B) {
	whole := wholePrompt(b, 1)
	for _, end := range []int{1 << 10, 1 << 14, 1 << 18} {
		in := whole
		in.Chunk, in.Final, in.SourceHit, in.Span = 9, false, 0, pd.Span{Start: end - 128, End: end}
		b.Run(fmt.Sprintf("at %d", end), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				offer(b, in)
			}
		})
	}
}

// A whole prompt in one chunk fits a message many times over, contiguous pages
// in 64 KiB.
func TestLongestPromptFitsAMessage(t *testing.T) {
	m, text := offer(t, wholePrompt(t, 1<<20))
	require.LessOrEqual(t, len(text), 64<<10)
	require.Less(t, len(m.Copies), 64)
	for _, run := range runLengths[1:] {
		in := wholePrompt(t, run)
		m, text := offer(t, in)
		require.LessOrEqual(t, len(text), pd.MaxControlBytes)
		chunk, err := wire.Decode[wire.Chunk](text)
		require.NoError(t, err)
		theirs := in
		theirs.SourceTables = nil
		require.NoError(t, adapter.Verify(theirs, &chunk.Manifest))
		require.LessOrEqual(t, len(m.Copies), 4*4096/run+64, "four components of 4096 pages in runs of %d, and the windows", run)
	}
}

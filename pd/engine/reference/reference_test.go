package reference_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/engine/reference"
	"github.com/hw-native-sys/pypto-pd/pd/pages"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is one engine on memory of its own.
type bench struct {
	t        *testing.T
	contract pd.Contract
	layout   adapter.Layout
	memory   map[pd.Rank]map[pd.ComponentID][]byte
	engine   *reference.Engine

	chunks  chan engine.ChunkComputed
	stopped chan error
	outputs *engine.Pipe
}

func newBench(t *testing.T, tp int, change func(*reference.Config)) *bench {
	b := &bench{
		t: t, contract: dsv4.Tiny().Contract("revision", "simulator"), memory: map[pd.Rank]map[pd.ComponentID][]byte{},
		chunks: make(chan engine.ChunkComputed, 1), stopped: make(chan error, 1), outputs: engine.NewPipe(nil),
	}
	b.layout = adapter.LayoutFor(&b.contract, adapter.Sizing{Topology: pd.Topology{Ranks: 4, TP: tp}, PoolTokens: 4096, StepTokens: 128, Sequences: 4})
	for r := range pd.Rank(4) {
		b.memory[r] = map[pd.ComponentID][]byte{}
		for _, c := range b.contract.Components {
			b.memory[r][c.ID] = make([]byte, b.contract.RegionBytes(c, b.layout.PagesPerLayer[c.Group]))
		}
		b.memory[r][b.contract.Bootstrap.Component] = make([]byte, b.layout.BootstrapSlots*b.contract.Bootstrap.SlotBytes())
	}
	cfg := reference.Config{
		Contract: &b.contract, Layout: b.layout, MaxTokens: 8192, BatchTokens: 256, ChunkTokens: 128, Sequences: 4, Queued: 4,
		Memory: func(r pd.Rank, c pd.ComponentID) []byte { return b.memory[r][c] },
	}
	if change != nil {
		change(&cfg)
	}
	b.engine = reference.New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { b.engine.Run(ctx, b) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		require.NoError(t, b.engine.Pool().Check())
	})
	return b
}

func (b *bench) ChunkComputed(c engine.ChunkComputed)          { b.chunks <- c }
func (b *bench) PrefillStopped(_ pd.HandoffID, err error)      { b.stopped <- err }
func (b *bench) DecodeStopped(_ pd.HandoffID, o engine.Output) { b.outputs.Send(o) }
func (b *bench) DecodeOutput(_ pd.HandoffID, o engine.Output)  { b.outputs.Send(o) }
func (b *bench) held() map[pd.GroupName]pages.Usage            { return b.engine.Pool().Usage() }
func (b *bench) idle() bool {
	for _, u := range b.held() {
		if u.Held != 0 {
			return false
		}
	}
	return true
}

func continuation(t *testing.T, e *reference.Engine, prompt string, limit int) pd.Continuation {
	tokens, err := e.Tokenize(engine.Prompt{Text: &prompt})
	require.NoError(t, err)
	eos := e.EOS()
	return pd.Continuation{PromptTokens: tokens, MaxNewTokens: limit, EOS: &eos}
}

func drain(t *testing.T, s engine.Stream) (string, []pd.Token, engine.Output) {
	var text strings.Builder
	var tokens []pd.Token
	for {
		o, err := s.Next(t.Context())
		require.NoError(t, err)
		text.WriteString(o.Text)
		tokens = append(tokens, o.Tokens...)
		if o.Finish != 0 {
			return text.String(), tokens, o
		}
	}
}

// behindCopies hides memory of the test behind a copier, as a device's is.
type behindCopies struct {
	memory []byte
	fails  *atomic.Bool
}

func (m behindCopies) CopyIn(offset int64, from []byte) error {
	copy(m.memory[offset:], from)
	return m.err()
}

func (m behindCopies) CopyOut(offset int64, to []byte) error {
	copy(to, m.memory[offset:])
	return m.err()
}

func (m behindCopies) err() error {
	if m.fails.Load() {
		return pd.Errorf(pd.CodeOwnerLost, "copy", "the owner is gone")
	}
	return nil
}

// Memory that the engine can only copy gives the same text; when copying fails
// the request does, too.
func TestMemoryBehindCopies(t *testing.T) {
	var fails atomic.Bool
	b := newBench(t, 2, func(c *reference.Config) {
		memory := c.Memory
		c.Memory = func(pd.Rank, pd.ComponentID) []byte { return nil }
		c.Copier = func(r pd.Rank, id pd.ComponentID) reference.Copier { return behindCopies{memory(r, id), &fails} }
	})
	for _, prompt := range []string{"short", strings.Repeat("long ", 100)} {
		s, err := b.engine.Generate(t.Context(), engine.Request{Continuation: continuation(t, b.engine, prompt, 20)})
		require.NoError(t, err)
		text, _, last := drain(t, s)
		require.NoError(t, last.Err)
		require.Equal(t, combined(t, 2, prompt, 20), text)
	}
	fails.Store(true)
	s, err := b.engine.Generate(t.Context(), engine.Request{Continuation: continuation(t, b.engine, "lost", 20)})
	require.NoError(t, err)
	_, _, last := drain(t, s)
	require.ErrorIs(t, last.Err, pd.CodeOwnerLost)
}

func combined(t *testing.T, tp int, prompt string, limit int) string {
	b := newBench(t, tp, nil)
	s, err := b.engine.Generate(t.Context(), engine.Request{Continuation: continuation(t, b.engine, prompt, limit)})
	require.NoError(t, err)
	text, _, last := drain(t, s)
	require.NoError(t, last.Err)
	return text
}

// handOver prefills on p, copies what the plans say into d's memory, and
// decodes there. spoil may change d's memory before the adoption.
func handOver(t *testing.T, p, d *bench, prompt string, limit int, spoil func(pages.Grant)) (string, engine.Output) {
	return handOverAs(t, p, d, continuation(t, p.engine, prompt, limit), func(_ *engine.Adoption, g pages.Grant) {
		if spoil != nil {
			spoil(g)
		}
	})
}

// handOverAs is handOver of a continuation; change may alter what is adopted, too.
func handOverAs(t *testing.T, p, d *bench, cont pd.Continuation, change func(*engine.Adoption, pages.Grant)) (string, engine.Output) {
	grant, err := d.engine.Pool().Open(pages.Demand{Owner: "h", Tokens: len(cont.PromptTokens), Receiving: true})
	require.NoError(t, err)
	p.engine.Prefill("h", engine.Request{Continuation: cont})
	var c engine.ChunkComputed
	for !c.Final {
		c = <-p.chunks
		key := pages.PinKey{Owner: "h", Chunk: c.Chunk}
		snapshot, err := p.engine.Pool().Pin(key)
		require.NoError(t, err)
		m, err := adapter.Build(adapter.Input{
			Contract: &p.contract, PromptTokens: len(cont.PromptTokens), Chunk: c.Chunk, Span: c.Span, Final: c.Final,
			Source: p.layout.Topology, SourcePartition: c.Partition, SourceTables: snapshot.Tables, SourcePeriods: p.layout.RingPeriods, SourceSlot: snapshot.Slot,
			Target: d.layout.Topology, TargetPartition: grant.Partition, TargetTables: grant.Tables, TargetPeriods: d.layout.RingPeriods, TargetSlot: grant.Slot,
		})
		require.NoError(t, err)
		writes, err := adapter.Lower(&p.contract, &m, p.layout.PagesPerLayer, d.layout.PagesPerLayer, p.layout.BootstrapSlots, d.layout.BootstrapSlots)
		require.NoError(t, err)
		p.engine.Resume("h")
		for _, w := range writes {
			for _, s := range w.Segments {
				copy(d.memory[w.Pair.Target][s.Component][s.TargetOffset:s.TargetOffset+s.Bytes], p.memory[w.Pair.Source][s.Component][s.SourceOffset:s.SourceOffset+s.Bytes])
			}
		}
		p.engine.Pool().Unpin(key)
	}
	p.engine.StopPrefill("h")
	require.NoError(t, <-p.stopped)
	require.True(t, p.idle())
	a := engine.Adoption{Handoff: "h", Continuation: cont, FirstToken: c.FirstToken, Partition: grant.Partition, BootstrapSlot: grant.Slot}
	change(&a, grant)
	d.engine.Pool().Received("h")
	d.engine.Adopt(a)
	text, _, last := drain(t, d.outputs)
	d.engine.Pool().Close("h")
	require.True(t, d.idle())
	return text, last
}

func prompt(n int) string {
	return strings.Repeat("Tell me about the Forbidden City. ", n/34+1)[:n]
}

func TestHandedOverTextEqualsCombinedText(t *testing.T) {
	for _, n := range []int{1, 31, 32, 33, 127, 128, 129, 255, 257, 896, 1500} {
		want := combined(t, 2, prompt(n), 60)
		require.Equal(t, want, combined(t, 4, prompt(n), 60), "layout does not matter")
		for _, tp := range [][2]int{{4, 4}, {4, 1}, {1, 4}, {2, 4}} {
			t.Run(fmt.Sprintf("%d tokens tp%d to tp%d", n, tp[0], tp[1]), func(t *testing.T) {
				got, last := handOver(t, newBench(t, tp[0], nil), newBench(t, tp[1], nil), prompt(n), 60, nil)
				require.NoError(t, last.Err)
				require.Equal(t, want, got)
			})
		}
	}
}

// One wrong byte of a row that decode reads changes the text or fails the
// request: in each of the nine regions, on every target rank.
func TestOneFlippedByteIsSeen(t *testing.T) {
	const n = 200
	want := combined(t, 4, prompt(n), 40)
	contract := dsv4.Tiny().Contract("revision", "simulator")
	for _, c := range contract.Components {
		for rank := range pd.Rank(4) {
			t.Run(fmt.Sprintf("%s rank %d", c.ID, rank), func(t *testing.T) {
				d := newBench(t, 4, nil)
				got, last := handOver(t, newBench(t, 4, nil), d, prompt(n), 40, func(g pages.Grant) {
					group, _ := contract.Group(c.Group)
					row := n/c.RowTokens - 1 // the last whole row is in every window
					page := g.Tables[c.Group][adapter.Slot(group, d.layout.RingPeriods[c.Group], row/c.RowsPerPage)]
					layer := len(c.Layers) - 1
					at := (layer*d.layout.PagesPerLayer[c.Group]+int(page))*c.PageBytes() + row%c.RowsPerPage*c.RowBytes()
					d.memory[rank][c.ID][at+c.RowBytes()-1] ^= 1
				})
				require.True(t, got != want || last.Err != nil)
				require.ErrorIs(t, last.Err, pd.CodeIntegrity, "the replicas disagree")
			})
		}
	}
	for rank := range pd.Rank(4) {
		t.Run(fmt.Sprintf("dspark_hidden rank %d", rank), func(t *testing.T) {
			d := newBench(t, 4, nil)
			_, last := handOver(t, newBench(t, 4, nil), d, prompt(n), 40, func(g pages.Grant) {
				d.memory[rank][dsv4.Hidden][g.Slot*contract.Bootstrap.SlotBytes()+5] ^= 1
			})
			require.ErrorIs(t, last.Err, pd.CodeIntegrity, "the replicas disagree")
		})
	}
	t.Run("dspark_hidden on the only replica", func(t *testing.T) {
		d := newBench(t, 1, nil)
		got, last := handOver(t, newBench(t, 4, nil), d, prompt(n), 40, func(g pages.Grant) {
			d.memory[pd.Rank(g.Partition)][dsv4.Hidden][g.Slot*contract.Bootstrap.SlotBytes()+5] ^= 1
		})
		require.NoError(t, last.Err)
		require.NotEqual(t, want, got)
	})
}

func TestSameBatchOrAloneSameText(t *testing.T) {
	b := newBench(t, 4, nil)
	var streams []engine.Stream
	for i := range 6 {
		s, err := b.engine.Generate(t.Context(), engine.Request{Continuation: continuation(t, b.engine, prompt(100+i), 30)})
		require.NoError(t, err)
		streams = append(streams, s)
	}
	for i, s := range streams {
		text, tokens, last := drain(t, s)
		require.NoError(t, last.Err)
		require.Equal(t, combined(t, 4, prompt(100+i), 30), text)
		require.Len(t, tokens, last.Usage.CompletionTokens)
		require.Equal(t, 100+i, last.Usage.PromptTokens)
	}
	require.True(t, b.idle())
}

func TestStopStringsAndLimits(t *testing.T) {
	full := combined(t, 4, "hello", 50)
	parts := strings.Fields(full)
	require.Greater(t, len(parts), 8)
	b := newBench(t, 4, nil)
	cont := continuation(t, b.engine, "hello", 50)
	cont.Stop = []string{" " + parts[4]}
	s, err := b.engine.Generate(t.Context(), engine.Request{Continuation: cont})
	require.NoError(t, err)
	text, _, last := drain(t, s)
	require.Equal(t, pd.FinishStop, last.Finish)
	require.Equal(t, full[:strings.Index(full, cont.Stop[0])], text)

	cont.Stop, cont.MaxNewTokens = nil, 1
	s, err = b.engine.Generate(t.Context(), engine.Request{Continuation: cont})
	require.NoError(t, err)
	text, tokens, last := drain(t, s)
	require.Equal(t, pd.FinishLength, last.Finish)
	require.Len(t, tokens, 1)
	require.True(t, strings.HasPrefix(full, text) && text != "", text)
}

func TestBoundsAreNamed(t *testing.T) {
	b := newBench(t, 4, func(c *reference.Config) { c.Sequences, c.Queued, c.DecodeRate = 1, 0, 1 })
	cont := continuation(t, b.engine, "hello", 8192)
	_, err := b.engine.Generate(t.Context(), engine.Request{Continuation: cont})
	require.ErrorIs(t, err, pd.CodeContextLength)
	cont.MaxNewTokens = 100
	s, err := b.engine.Generate(t.Context(), engine.Request{Continuation: cont})
	require.NoError(t, err)
	_, err = b.engine.Generate(t.Context(), engine.Request{Continuation: cont})
	require.ErrorIs(t, err, pd.CodeBusy)
	s.Close()
	_, _, last := drain(t, s)
	require.Equal(t, pd.FinishAborted, last.Finish)
	require.True(t, b.idle())
}

// A request that can never get its pages fails and says what was lacking; the
// others go on.
func TestExhaustionFailsExplicitly(t *testing.T) {
	b := newBench(t, 4, nil) // one partition with room for 4096 tokens
	for name, n := range map[string]int{"while prefilling": 4100, "while decoding": 4090} {
		t.Run(name, func(t *testing.T) {
			s, err := b.engine.Generate(t.Context(), engine.Request{Continuation: continuation(t, b.engine, prompt(n), 60)})
			require.NoError(t, err)
			_, _, last := drain(t, s)
			require.ErrorIs(t, last.Err, pd.CodeDecodeExhausted)
			require.ErrorContains(t, last.Err, "cmp_c128: need 1, free 0")
			require.True(t, b.idle())
		})
	}
	var streams []engine.Stream
	for range 3 { // together more than fits: they wait for each other and finish
		s, err := b.engine.Generate(t.Context(), engine.Request{Continuation: continuation(t, b.engine, prompt(1800), 20)})
		require.NoError(t, err)
		streams = append(streams, s)
	}
	for _, s := range streams {
		_, _, last := drain(t, s)
		require.NoError(t, last.Err)
	}
}

func TestChatTemplate(t *testing.T) {
	b := newBench(t, 4, nil)
	tokens, err := b.engine.Tokenize(engine.Prompt{Messages: []engine.Message{{Role: "user", Content: "hi"}}})
	require.NoError(t, err)
	require.Equal(t, []pd.Token{256, 258, 'h', 'i', 259}, tokens)
	_, err = b.engine.Tokenize(engine.Prompt{Messages: []engine.Message{{Role: "wizard", Content: "hi"}}})
	require.ErrorContains(t, err, `messages[0].role "wizard"`)
	empty := ""
	_, err = b.engine.Tokenize(engine.Prompt{Text: &empty})
	require.ErrorIs(t, err, pd.CodeInvalidRequest)
	_, err = b.engine.Tokenize(engine.Prompt{Tokens: []pd.Token{1, 129280}})
	require.ErrorContains(t, err, "token 129280 at position 1")
}

// Behaviours 11, 81, 84 and 86: a prompt is held after each chunk, goes on when
// it is told to, is never decoded here, and says nothing after it was stopped.
func TestPrefillStopsAfterEveryChunk(t *testing.T) {
	b := newBench(t, 4, nil)
	b.engine.Prefill("h", engine.Request{Continuation: continuation(t, b.engine, prompt(300), 60)})
	for i, end := range []int{128, 256, 300} {
		c := <-b.chunks
		require.Equal(t, pd.ChunkID(i), c.Chunk)
		require.Equal(t, end, c.Span.End)
		require.Equal(t, end == 300, c.Final)
		steps := b.engine.Stats().Steps
		b.engine.Resume("other") // nobody's: the prompt stays held
		require.Equal(t, steps, b.engine.Stats().Steps)
		require.Empty(t, b.chunks)
		if !c.Final {
			b.engine.Resume("h")
		}
	}
	b.engine.StopPrefill("h")
	require.NoError(t, <-b.stopped)
	b.engine.Resume("h")
	b.engine.StopPrefill("h")
	b.engine.Prefill("next", engine.Request{Continuation: continuation(t, b.engine, prompt(10), 60)})
	require.Equal(t, pd.HandoffID("next"), (<-b.chunks).Handoff, "nothing more of h")
	b.engine.StopPrefill("next")
	require.NoError(t, <-b.stopped)
	require.Zero(t, b.engine.Stats().VerifySteps, "prefill speculates nothing")
	require.True(t, b.idle())
}

// Behaviours 82 and 87: an adopted request computes no prompt; its bootstrap is
// read once, at admission.
func TestAdoptedRequestSkipsPrefillAndReadsItsBootstrapOnce(t *testing.T) {
	const n = 200
	want := combined(t, 4, prompt(n), 400)
	p, d := newBench(t, 4, nil), newBench(t, 1, func(c *reference.Config) { c.DecodeRate = 2000 })
	got, last := handOver(t, p, d, prompt(n), 400, nil)
	require.NoError(t, last.Err)
	require.Equal(t, want, got)
	require.Zero(t, d.engine.Stats().PrefillTokens)
	require.Positive(t, d.engine.Stats().VerifySteps)
}

// Behaviours 164 and 182: only the last window is captured, by the request whose
// it is, also where two prompts share a step.
func TestCaptureIsTheLastWindowOfItsOwnPrompt(t *testing.T) {
	b := newBench(t, 4, nil)
	size := b.contract.Bootstrap.SlotBytes()
	slot := func(c engine.ChunkComputed) []byte {
		return b.memory[0][dsv4.Hidden][c.BootstrapSlot*size : (c.BootstrapSlot+1)*size]
	}
	captured := func(rows []byte) int {
		n := 0
		for i := range b.contract.Bootstrap.Rows {
			row := rows[i*b.contract.Bootstrap.RowBytes() : (i+1)*b.contract.Bootstrap.RowBytes()]
			if strings.Trim(string(row), "\x00") != "" {
				n++
			}
		}
		return n
	}
	b.engine.Prefill("long", engine.Request{Continuation: continuation(t, b.engine, prompt(400), 1)})
	first := <-b.chunks
	require.Zero(t, captured(slot(first)), "[0,128) is outside the window [272,400)")
	b.engine.Prefill("short", engine.Request{Continuation: continuation(t, b.engine, prompt(5), 1)})
	short := <-b.chunks
	require.Equal(t, 5, captured(slot(short)), "a short prompt leaves the other rows zero")
	for _, want := range []int{0, 112, 128} { // [128,256), [256,384), [384,400)
		b.engine.Resume("long")
		require.Equal(t, want, captured(slot(<-b.chunks)))
	}
	for _, h := range []pd.HandoffID{"long", "short"} {
		b.engine.StopPrefill(h)
		require.NoError(t, <-b.stopped)
	}
}

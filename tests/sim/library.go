package sim

import (
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/engine/reference"
	"github.com/hw-native-sys/pypto-pd/pd/pages"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// model is what is the same in every world: the contract, the prompts that
// clients send, and the truth about both. Worlds share it; it never depends on
// a seed.
var model = newLibrary()

const (
	books      = 6
	bookTokens = 768
	// outputTokens is the longest answer that a client asks for.
	outputTokens = 48
)

// lengths are the prompts of one book: its first so many tokens. They stand
// where pages, windows and alignment begin and end.
var lengths = []int{1, 5, 31, 33, 64, 100, 127, 128, 129, 130, 200, 255, 256, 257, 300, 384, 385, 450, 511, 512, 513, 600, 640, 699}

// prompt names one prompt of the library.
type prompt struct{ book, tokens int }

// library holds contracts and truths. It is safe for concurrent use.
type library struct {
	// contract is that of the first variant; all variants have its components.
	contract pd.Contract
	variants []*variant
	eos      pd.Token
	books    [books][]pd.Token

	mu sync.Mutex
	// guarded by mu
	answers map[prompt][]pd.Token
}

// variant is one rolling policy: another contract, and so other page names.
type variant struct {
	adapter  adapter.Adapter
	contract pd.Contract
	digest   string
	// pages are guarded by the library's mutex.
	pages [books]map[pageName]uint32
}

// pageName is a page's content: its group and the hash that covers it.
type pageName struct {
	group pd.GroupName
	hash  pd.PageHash
}

func newLibrary() *library {
	l := &library{answers: map[prompt][]pd.Token{}}
	for _, policy := range adapter.RollingPolicies() {
		a, err := adapter.WithPolicy(dsv4.Tiny(), policy)
		if err != nil {
			panic(err)
		}
		v := &variant{adapter: a, contract: a.Contract("simulated", "simulator")}
		if v.digest, err = wire.ContractDigest(&v.contract); err != nil {
			panic(err)
		}
		l.variants = append(l.variants, v)
	}
	l.contract = l.variants[0].contract
	r := draw(0, "library")
	for b := range l.books {
		for range bookTokens {
			l.books[b] = append(l.books[b], pd.Token(r.IntN(256)))
		}
	}
	l.eos = l.scratch().EOS()
	return l
}

// scratch is an engine alone in the world, on memory of its own.
func (l *library) scratch() *reference.Engine {
	e, _, _ := l.scratchMemory()
	return e
}

func (l *library) scratchMemory() (*reference.Engine, adapter.Layout, map[pd.ComponentID][]byte) {
	layout := adapter.LayoutFor(&l.contract, adapter.Sizing{Topology: pd.Topology{Ranks: 1, TP: 1}, PoolTokens: 1024, StepTokens: 128, Sequences: 1})
	memory := regions(&l.contract, layout)
	return reference.New(reference.Config{
		Contract: &l.contract, Adapter: dsv4.Tiny(), Layout: layout, MaxTokens: 1024, BatchTokens: 128, ChunkTokens: 128, Sequences: 1, Queued: 1,
		Memory: func(_ pd.Rank, c pd.ComponentID) []byte { return memory[c] },
	}), layout, memory
}

func (l *library) prompt(p prompt) []pd.Token { return l.books[p.book][:p.tokens] }

// answer is what one process that does everything itself says: at most limit
// tokens, ended by the end token if that counts.
func (l *library) answer(p prompt, limit int, eos bool) []pd.Token {
	l.mu.Lock()
	defer l.mu.Unlock()
	tokens, ok := l.answers[p]
	if !ok {
		tokens = l.generate(p)
		l.answers[p] = tokens
	}
	tokens = tokens[:limit]
	if i := slices.Index(tokens, l.eos); eos && i >= 0 {
		tokens = tokens[:i+1]
	}
	return tokens
}

func (l *library) generate(p prompt) []pd.Token {
	e := l.scratch()
	e.Attach(nil)
	s, err := e.Generate(context.Background(), engine.Request{Continuation: pd.Continuation{PromptTokens: l.prompt(p), MaxNewTokens: outputTokens}})
	if err != nil {
		panic(err)
	}
	for {
		if _, ok := e.Begin(); !ok {
			break
		}
		e.End(time.Time{}, time.Time{})
	}
	var tokens []pd.Token
	for {
		o, err := s.Next(context.Background())
		if err != nil || o.Err != nil {
			panic(fmt.Sprint(err, o.Err))
		}
		tokens = append(tokens, o.Tokens...)
		if o.Finish != 0 {
			return tokens
		}
	}
}

// pageSum is what the bytes of a named page add up to.
func (l *library) pageSum(v *variant, book int, group pd.GroupName, hash pd.PageHash) (sum uint32, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v.pages[book] == nil {
		v.pages[book] = l.readBook(v, book)
	}
	sum, ok = v.pages[book][pageName{group, hash}]
	return sum, ok
}

// reader notes every page of a book as the scratch engine completes it.
type reader struct {
	l      *library
	layout adapter.Layout
	memory map[pd.ComponentID][]byte
	pool   *reference.Pool
	engine *reference.Engine
	hashes pd.PrefixHashes
	pages  map[pageName]uint32
	done   bool
}

func (l *library) readBook(v *variant, book int) map[pageName]uint32 {
	e, layout, memory := l.scratchMemory()
	r := &reader{
		l: l, layout: layout, memory: memory, pool: e.Pool(), engine: e, pages: map[pageName]uint32{},
		hashes: adapter.PrefixHashes(&v.contract, v.digest, l.books[book]),
	}
	e.Attach(r)
	e.Prefill("book", engine.Request{Continuation: pd.Continuation{PromptTokens: l.books[book], MaxNewTokens: 1}})
	for !r.done {
		if _, ok := e.Begin(); !ok {
			panic("sim: a book cannot be read")
		}
		e.End(time.Time{}, time.Time{})
	}
	return r.pages
}

// ChunkComputed implements engine.Events.
func (r *reader) ChunkComputed(c engine.ChunkComputed) {
	_, tables := r.pool.Held("book")
	for _, g := range r.l.contract.Groups {
		if g.Kind == pd.FinalOnly {
			continue
		}
		for page := c.Span.Start / g.PageTokens; page < c.Span.End/g.PageTokens; page++ {
			id := tables[g.Name][adapter.Slot(g, r.layout.RingPeriods[g.Name], page)]
			r.pages[pageName{g.Name, r.hashes[g.PageTokens][page]}] = sumPage(&r.l.contract, r.layout, r.memory, g.Name, id)
		}
	}
	r.done = c.Final
	r.engine.Resume("book")
}

// PrefillStopped implements engine.Events.
func (r *reader) PrefillStopped(pd.HandoffID, error) {}

// DecodeStopped implements engine.Events.
func (r *reader) DecodeStopped(pd.HandoffID, engine.Output) {}

// DecodeOutput implements engine.Events.
func (r *reader) DecodeOutput(pd.HandoffID, engine.Output) {}

var table = crc32.MakeTable(crc32.Castagnoli)

// sumPage adds up all bytes of one page on one rank: every component of the
// group, every layer.
func sumPage(c *pd.Contract, l adapter.Layout, memory map[pd.ComponentID][]byte, group pd.GroupName, page pd.Page) uint32 {
	var sum uint32
	for _, comp := range c.Components {
		if comp.Group != group {
			continue
		}
		for layer := range comp.Layers {
			at := (layer*l.PagesPerLayer[group] + int(page)) * comp.PageBytes()
			sum = crc32.Update(sum, table, memory[comp.ID][at:at+comp.PageBytes()])
		}
	}
	return sum
}

// regions allocates the memory of one rank.
func regions(c *pd.Contract, l adapter.Layout) map[pd.ComponentID][]byte {
	m := map[pd.ComponentID][]byte{}
	for _, comp := range c.Components {
		m[comp.ID] = make([]byte, c.RegionBytes(comp, l.PagesPerLayer[comp.Group]))
	}
	m[c.Bootstrap.Component] = make([]byte, l.BootstrapSlots*c.Bootstrap.SlotBytes())
	return m
}

// demand keeps the allocator's words in one place.
type (
	demand = pages.Demand
	grant  = pages.Grant
)

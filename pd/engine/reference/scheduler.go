package reference

import (
	"time"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/pages"
)

// verifyTokens is the width of one verification: the pending token and seven
// drafts.
const verifyTokens = 8

// chunkWork is one prompt's part of a step.
type chunkWork struct {
	r    *request
	span pd.Span
}

// batch is one step: what is computed together.
type batch struct {
	prompts []chunkWork
	decodes []*request
	tokens  int
}

func (b batch) empty() bool { return len(b.prompts) == 0 && len(b.decodes) == 0 }

// plan chooses the next step: every decode that has pages for its verification,
// then prompts in order of arrival within the token budget. Where nothing can
// move and nothing that is under way could free a page, the youngest request
// that lacks one fails, one at a time.
func (e *Engine) plan() batch {
	for {
		b := e.tryPlan()
		if !b.empty() || e.freesPages() {
			return b
		}
		victim := e.youngestStalled()
		if victim == nil {
			return b
		}
		e.fail(victim, &pd.Error{Op: "generate", Code: pd.CodeDecodeExhausted, Text: "no page is free and no request in progress could free one", Err: victim.stalled})
	}
}

// freesPages says whether something outside the batch may bring pages back: a
// pinned transfer, or a prompt held for one.
func (e *Engine) freesPages() bool {
	for _, r := range e.requests {
		if r.phase == held {
			return true
		}
	}
	return e.pool.pinned()
}

func (e *Engine) youngestStalled() *request {
	for i := len(e.requests) - 1; i >= 0; i-- {
		if e.requests[i].stalled != nil {
			return e.requests[i]
		}
	}
	return nil
}

func (e *Engine) tryPlan() batch {
	var b batch
	running := 0
	for _, r := range e.requests {
		if r.phase != waiting {
			running++
		}
		if r.phase == starting || r.phase == decoding {
			if e.grow(r, r.computed+verifyTokens) {
				b.decodes = append(b.decodes, r)
			}
		}
	}
	budget := e.cfg.BatchTokens - len(b.decodes)*verifyTokens
	for _, r := range e.requests {
		if r.phase == waiting && running < e.cfg.Sequences && budget > 0 && e.open(r) {
			r.phase = prefilling
			running++
		}
		if r.phase != prefilling || budget <= 0 {
			continue
		}
		n := min(e.cfg.ChunkTokens, budget, len(r.cont.PromptTokens)-r.computed)
		if e.grow(r, r.computed+n) {
			b.prompts = append(b.prompts, chunkWork{r, pd.Span{Start: r.computed, End: r.computed + n}})
			budget -= n
			b.tokens += n
		}
	}
	return b
}

func (e *Engine) open(r *request) bool {
	d := pages.Demand{Owner: r.id, Resume: true}
	if e.cfg.PrefixCaching {
		if r.prefix == nil {
			r.prefix = adapter.PrefixHashes(e.cfg.Contract, e.cfg.ContractDigest, r.cont.PromptTokens)
		}
		d.Prefix, d.HitLimit = r.prefix, e.cfg.Adapter.SourceHitLimit(len(r.cont.PromptTokens))
	}
	g, err := e.pool.Open(d)
	r.stalled = err
	if err != nil {
		return false
	}
	r.opened, r.partition, r.slot = true, g.Partition, g.Slot
	r.keys = newKeys(e.cfg.Contract.ModelRevision).extend(r.cont.PromptTokens[:g.HitTokens])
	r.computed, r.cached = g.HitTokens, g.HitTokens
	e.hitTokens.Add(int64(g.HitTokens))
	if g.HitTokens > 0 {
		r.keys = e.store.resume(r.partition, g.Tables, r.keys, g.HitTokens)
	}
	return true
}

func (e *Engine) grow(r *request, tokens int) bool {
	tables, err := e.pool.grow(r.id, tokens)
	r.stalled = err
	if err != nil {
		return false
	}
	r.tables = tables
	return true
}

// prefill computes one chunk of one prompt: its rows, its part of the hidden
// window and, at the end, the first token.
func (e *Engine) prefill(w chunkWork, began time.Time, end func() time.Time) {
	r, prompt := w.r, w.r.cont.PromptTokens
	r.keys = r.keys.extend(prompt[w.span.Start:w.span.End])
	e.store.write(r.partition, r.tables, r.keys, w.span)
	e.store.capture(r.partition, r.slot, r.keys, w.span, len(prompt))
	r.computed = w.span.End
	e.prefillTokens.Add(int64(w.span.Len()))
	e.pool.publish(r.id, r.computed)
	final := r.computed == len(prompt)
	var first pd.Token
	if final {
		seen, err := e.store.digest(r.partition, r.tables, r.computed)
		if err != nil {
			e.fail(r, err)
			return
		}
		if first, err = r.firstToken(seen); err != nil {
			e.fail(r, err)
			return
		}
		e.hash(r)
	}
	if r.pipe != nil {
		if final {
			e.start(r, first)
		}
		return
	}
	r.phase = held
	r.chunk++
	if r.chunk == 1 {
		w.span.Start = 0 // the first chunk hands over what the cache had, too
	}
	e.events.ChunkComputed(engine.ChunkComputed{
		Handoff: r.id, Partition: r.partition, Chunk: r.chunk - 1, Span: w.span, Final: final, HitTokens: r.cached,
		BootstrapSlot: r.slot, FirstToken: first, Began: began, Ended: end(),
	})
}

// hash tells what is in some pages of a handoff.
func (e *Engine) hash(r *request) {
	if e.cfg.VerifyPages == 0 || r.pipe != nil {
		return
	}
	hashes, err := e.store.hashes(r.partition, r.tables, r.computed, e.cfg.VerifyPages)
	if err != nil {
		hashes = err.Error()
	}
	e.cfg.Hashed(r.id, hashes)
}

// verify runs one step of a generation and says how many tokens it accepted.
// The first step is the drafter's bootstrap; it yields no token.
func (e *Engine) verify(r *request) (int, error) {
	if r.phase == starting {
		seen, err := e.store.digest(r.partition, r.tables, r.computed)
		if err != nil {
			return 0, err
		}
		hidden, err := e.store.bootstrap(r.partition, r.slot, r.computed)
		if err != nil {
			return 0, err
		}
		e.hash(r)
		r.chain, r.phase = begin(r.pending, seen, hidden), decoding
		return 0, nil
	}
	e.append(r, r.pending)
	seen, err := e.store.digest(r.partition, r.tables, r.computed)
	if err != nil {
		return 0, err
	}
	r.chain = r.chain.next(seen[:])
	n := r.chain.accepted()
	var tokens []pd.Token
	for i := range n {
		t, err := r.sampled(r.chain, i)
		if err != nil {
			return 0, err
		}
		tokens = append(tokens, t)
		if r.matcher != nil && r.matcher.over {
			break // a grammar has nothing behind its end
		}
	}
	n = len(tokens)
	for _, t := range tokens[:n-1] {
		e.append(r, t)
	}
	r.pending = tokens[n-1]
	e.verifySteps.Add(1)
	e.acceptedTokens.Add(int64(n))
	e.say(r, tokens)
	return n, nil
}

// append computes the cache rows of one token.
func (e *Engine) append(r *request, t pd.Token) {
	r.keys = r.keys.extend([]pd.Token{t})
	e.store.write(r.partition, r.tables, r.keys, pd.Span{Start: r.computed, End: r.computed + 1})
	r.computed++
}

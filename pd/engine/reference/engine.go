package reference

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
)

// Config describes one engine.
type Config struct {
	Contract *pd.Contract
	// Adapter knows the prefix rules. ContractDigest is part of every page's
	// name; without PrefixCaching nothing is looked up or published.
	Adapter        adapter.Adapter
	ContractDigest string
	PrefixCaching  bool
	Layout         adapter.Layout
	// Memory gives the arena of one component on one rank; it stays owned by
	// whoever allocated it and must outlive the engine.
	Memory func(pd.Rank, pd.ComponentID) []byte
	// Copier, if set, is the way to an arena for which Memory gives nil. It is for
	// bringing a machine up: every row is a copy.
	Copier func(pd.Rank, pd.ComponentID) Copier
	// VerifyPages is how many pages of every component are hashed when a prompt is
	// handed over and when it is adopted; Hashed gets the hashes, as text that is
	// equal on both sides. For bringing a machine up.
	VerifyPages int
	Hashed      func(h pd.HandoffID, hashes string)
	// MaxTokens bounds prompt plus output of one request.
	MaxTokens int
	// BatchTokens is how many tokens one step computes at most, ChunkTokens how
	// many of them one prompt gets.
	BatchTokens, ChunkTokens int
	// Sequences is how many requests run at once; Queued how many more a
	// combined engine lets wait.
	Sequences, Queued int
	// PrefillRate is the imitated speed in prompt tokens per second, DecodeRate
	// in steps per second; 0 is as fast as the machine.
	PrefillRate, DecodeRate float64
	// DecodeBatch, if set, is told of every decode batch, from the step loop; it
	// must not block. Prompts and outputs are not part of it.
	DecodeBatch func(DecodeBatch)
}

// DecodeBatch is one decode step of all requests that took part.
type DecodeBatch struct {
	Step int64
	// Began and Ended bound the step from dispatch to the use of its results,
	// the preparation inside the engine included.
	Began, Ended time.Time
	// MixedPrefill says that the same step computed prompts.
	MixedPrefill bool
	// Accepted holds the raw count of accepted tokens of each request, the bonus
	// token included, before any output limit cut them.
	Accepted []int
}

// Stats are counters since the start.
type Stats struct {
	PrefillTokens, HitTokens, VerifySteps, AcceptedTokens, Steps int64
}

// phase is where a request stands in the engine.
type phase int

const (
	waiting phase = iota + 1
	prefilling
	held // a chunk is computed; the node says when to go on
	starting
	decoding
)

// request is one request in the engine. The step loop owns it.
type request struct {
	id      pd.HandoffID
	cont    pd.Continuation
	phase   phase
	pipe    *engine.Pipe // combined only
	adopted bool         // decode only: pages belong to the node's ledger

	partition pd.Partition
	slot      int
	opened    bool
	tables    adapter.Tables
	keys      keys
	prefix    pd.PrefixHashes
	computed  int
	chunk     pd.ChunkID
	cached    int

	chain   chain
	pending pd.Token
	// matcher follows the output through the request's grammar; nil without one.
	matcher *matcher
	writer  writer
	stalled error
}

// Engine is the reference engine. It implements engine.Model, engine.PD and,
// for a node without a role, engine.Generator.
type Engine struct {
	// constant
	cfg   Config
	store *store
	pool  *Pool
	wake  chan struct{}

	// owned by the step loop
	requests []*request // in order of arrival
	events   engine.Events
	// now is the clock of a real run; nil where the caller's time counts.
	now  func() time.Time
	next batch // chosen by Begin, computed by End

	// guarded by mu
	mu     sync.Mutex
	inbox  []func()
	active int // combined: accepted and not ended
	serial int

	// atomic
	prefillTokens, hitTokens, verifySteps, acceptedTokens, steps atomic.Int64
}

var (
	_ engine.Model       = (*Engine)(nil)
	_ engine.Constrainer = (*Engine)(nil)
	_ engine.PD          = (*Engine)(nil)
	_ engine.Generator   = (*Engine)(nil)
)

// New makes an engine over memory that it fills with poison.
func New(cfg Config) *Engine {
	e := &Engine{cfg: cfg, wake: make(chan struct{}, 1)}
	e.store = newStore(&e.cfg)
	e.pool = newPool(e.store, e.signal)
	return e
}

// Pool is the page allocator that the engine and a node's ledger share.
func (e *Engine) Pool() *Pool { return e.pool }

// MaxTokens implements engine.Model.
func (e *Engine) MaxTokens() int { return e.cfg.MaxTokens }

// Revision implements engine.Model.
func (e *Engine) Revision() string { return e.cfg.Contract.ModelRevision }

// Stats shows the counters.
func (e *Engine) Stats() Stats {
	return Stats{e.prefillTokens.Load(), e.hitTokens.Load(), e.verifySteps.Load(), e.acceptedTokens.Load(), e.steps.Load()}
}

func (e *Engine) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// command queues work for the step loop. The queue is bounded by what callers
// hold: a node by its capacity, a combined engine by Sequences and Queued.
func (e *Engine) command(f func()) {
	e.mu.Lock()
	e.inbox = append(e.inbox, f)
	e.mu.Unlock()
	e.signal()
}

// Prefill implements engine.PD.
func (e *Engine) Prefill(h pd.HandoffID, r engine.Request) {
	e.command(func() {
		e.requests = append(e.requests, &request{id: h, cont: r.Continuation, phase: waiting})
	})
}

// Resume implements engine.PD.
func (e *Engine) Resume(h pd.HandoffID) {
	e.command(func() {
		if r := e.find(h); r != nil && r.phase == held {
			r.phase = prefilling
		}
	})
}

// StopPrefill implements engine.PD.
func (e *Engine) StopPrefill(h pd.HandoffID) {
	e.command(func() {
		if r := e.find(h); r != nil {
			e.endPrefill(r, nil)
		}
	})
}

// Adopt implements engine.PD.
func (e *Engine) Adopt(a engine.Adoption) {
	e.command(func() {
		r := &request{
			id: a.Handoff, cont: a.Continuation, adopted: true, partition: a.Partition, slot: a.BootstrapSlot, opened: true,
			keys: newKeys(e.cfg.Contract.ModelRevision).extend(a.Continuation.PromptTokens), computed: len(a.Continuation.PromptTokens),
			cached: a.CachedTokens,
		}
		e.requests = append(e.requests, r)
		if err := r.takeSeed(a.FirstToken); err != nil {
			e.fail(r, err)
			return
		}
		e.start(r, a.FirstToken)
	})
}

// StopDecode implements engine.PD.
func (e *Engine) StopDecode(h pd.HandoffID) {
	e.command(func() {
		if r := e.find(h); r != nil {
			e.finish(r, engine.Output{Finish: pd.FinishAborted, Err: pd.CodeAborted})
		}
	})
}

// Generate implements engine.Generator for a node without a role.
func (e *Engine) Generate(_ context.Context, q engine.Request) (engine.Stream, error) {
	if n := len(q.Continuation.PromptTokens); n+q.Continuation.MaxNewTokens > e.cfg.MaxTokens {
		return nil, pd.Errorf(pd.CodeContextLength, "generate", "%d prompt tokens and %d new ones exceed the model's %d", n, q.Continuation.MaxNewTokens, e.cfg.MaxTokens)
	}
	e.mu.Lock()
	if limit := e.cfg.Sequences + e.cfg.Queued; e.active >= limit {
		e.mu.Unlock()
		return nil, pd.Errorf(pd.CodeBusy, "generate", "%d requests run or wait, the limit is %d", limit, limit)
	}
	e.active++
	e.serial++
	r := &request{id: pd.HandoffID(fmt.Sprintf("combined-%d", e.serial)), cont: q.Continuation, phase: waiting}
	e.mu.Unlock()
	r.pipe = engine.NewPipe(func() {
		e.command(func() {
			if e.find(r.id) != nil {
				e.finish(r, engine.Output{Finish: pd.FinishAborted, Err: pd.CodeClientGone})
			}
		})
	})
	e.command(func() { e.requests = append(e.requests, r) })
	return r.pipe, nil
}

func (e *Engine) find(h pd.HandoffID) *request {
	if i := slices.IndexFunc(e.requests, func(r *request) bool { return r.id == h }); i >= 0 {
		return e.requests[i]
	}
	return nil
}

func (e *Engine) remove(r *request) {
	e.requests = slices.DeleteFunc(e.requests, func(o *request) bool { return o == r })
}

// Run is the step loop; it ends with the context. events is nil on a node
// without a role. What still runs then is failed.
func (e *Engine) Run(ctx context.Context, events engine.Events) {
	e.Attach(events)
	e.now = time.Now
	for {
		takes, ok := e.Begin()
		if ctx.Err() != nil {
			break
		}
		if ok {
			began := time.Now()
			wait(ctx, takes)
			e.End(began, time.Now())
			continue
		}
		select {
		case <-e.wake:
		case <-ctx.Done():
		}
	}
	for _, r := range slices.Clone(e.requests) {
		e.fail(r, pd.Errorf(pd.CodeDraining, "generate", "the engine was stopped"))
	}
}

// Attach names who hears what a prefill or decode engine does. It precedes the
// first Begin.
func (e *Engine) Attach(events engine.Events) { e.events = events }

// Begin takes in what was ordered since and chooses the next step; ok is false
// while there is nothing to compute. The imitated device needs takes for it.
// Begin and End are what Run is made of, for callers with a clock of their own;
// they belong to one goroutine, and nothing else runs the engine then.
func (e *Engine) Begin() (takes time.Duration, ok bool) {
	e.mu.Lock()
	commands := e.inbox
	e.inbox = nil
	e.mu.Unlock()
	for _, f := range commands {
		f()
	}
	if e.next = e.plan(); e.next.empty() {
		return 0, false
	}
	return e.duration(e.next), true
}

// End computes the step that Begin has chosen and reports what came of it. The
// two times bound the step, for people.
func (e *Engine) End(began, ended time.Time) {
	b := e.next
	e.next = batch{}
	step := e.steps.Add(1)
	end := func() time.Time {
		if e.now != nil {
			return e.now() // what was computed here took its time, too
		}
		return ended
	}
	for _, w := range b.prompts {
		e.prefill(w, began, end)
	}
	var accepted []int
	for _, r := range b.decodes {
		n, err := e.verify(r)
		switch {
		case err != nil:
			e.fail(r, err)
		case n > 0:
			accepted = append(accepted, n)
		}
	}
	if e.cfg.DecodeBatch != nil && len(accepted) > 0 {
		e.cfg.DecodeBatch(DecodeBatch{Step: step, Began: began, Ended: end(), MixedPrefill: len(b.prompts) > 0, Accepted: accepted})
	}
}

// endPrefill lets a prompt of a prefill node go and closes its table.
func (e *Engine) endPrefill(r *request, err error) {
	e.remove(r)
	if r.opened {
		e.pool.Close(r.id)
	}
	e.events.PrefillStopped(r.id, err)
}

// fail ends a request with an error, on whichever side it is.
func (e *Engine) fail(r *request, err error) {
	if r.pipe == nil && !r.adopted {
		e.endPrefill(r, err)
		return
	}
	e.finish(r, engine.Failure(err))
}

// finish ends a generation. The request is out of every batch; its pages are
// closed here (combined) or by the node once it heard (decode).
func (e *Engine) finish(r *request, last engine.Output) {
	e.remove(r)
	last.Usage = engine.Usage{PromptTokens: len(r.cont.PromptTokens), CompletionTokens: r.writer.count, CachedTokens: r.cached}
	if r.pipe == nil {
		e.events.DecodeStopped(r.id, last)
		return
	}
	if r.opened {
		e.pool.Close(r.id)
	}
	e.mu.Lock()
	e.active--
	e.mu.Unlock()
	r.pipe.Send(last)
}

// start begins a generation with its first token, which needs no step.
func (e *Engine) start(r *request, first pd.Token) {
	r.phase, r.pending = starting, first
	r.writer = writer{stops: r.cont.Stop, eos: r.cont.EOS, limit: r.cont.MaxNewTokens}
	if r.matcher != nil {
		// Behind its end a grammar has no token, whatever the client ignores.
		end := tokenEnd
		r.writer.eos = &end
	}
	e.say(r, []pd.Token{first})
}

// say gives tokens away and ends the request where they end it.
func (e *Engine) say(r *request, tokens []pd.Token) {
	out, text, finish := r.writer.add(tokens)
	o := engine.Output{Tokens: out, Text: text, Finish: finish}
	switch {
	case finish != 0:
		e.finish(r, o)
	case r.pipe != nil:
		r.pipe.Send(o)
	default:
		e.events.DecodeOutput(r.id, o)
	}
}

// duration is how long the imitated device needs for a step.
func (e *Engine) duration(b batch) time.Duration {
	var d time.Duration
	if e.cfg.PrefillRate > 0 {
		d += time.Duration(float64(b.tokens) / e.cfg.PrefillRate * float64(time.Second))
	}
	if len(b.decodes) > 0 && e.cfg.DecodeRate > 0 {
		d += time.Duration(float64(time.Second) / e.cfg.DecodeRate)
	}
	return d
}

// wait lets the time of a step pass.
func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

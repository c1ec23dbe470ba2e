package sim

import (
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/node"
)

// client sends one request and reads its answer.
type client struct {
	// constant
	world  *World
	name   string
	prompt prompt
	limit  int
	eos    bool
	stream bool
	pair   [2]*host // where a request must go; nil elsewhere
	// leaveOn is the journal event of its handoff upon which it leaves.
	leaveOn string

	flight *flight
	tokens []pd.Token
	done   bool
	left   bool
	err    error
}

func (w *World) newClient(name string) *client {
	r := w.rand("clients")
	c := &client{
		world: w, name: name, limit: 1 + r.IntN(w.set.maxNew), eos: r.IntN(4) > 0, stream: r.IntN(4) > 0,
		prompt: prompt{book: r.IntN(books), tokens: lengths[r.IntN(len(lengths))]},
	}
	if w.set.cachePrefill || w.set.cacheDecode {
		c.prompt.book %= 2 // prompts that share prefixes
	}
	for c.prompt.tokens > w.set.maxPrompt {
		c.prompt.tokens = lengths[r.IntN(len(lengths))]
	}
	w.clients = append(w.clients, c)
	return c
}

// continuation is the request as prefill tokenizes it.
func (c *client) continuation() *pd.Continuation {
	k := &pd.Continuation{
		PromptTokens: model.prompt(c.prompt), MaxNewTokens: c.limit, Temperature: "0", TopP: "1", Stop: []string{}, Stream: c.stream,
	}
	if c.eos {
		k.EOS = &model.eos
	}
	return k
}

// states are the journal events of a handoff at which clients leave.
var states = []string{
	"HANDOFF_CREATED", "HANDOFF_RESERVED", "CHUNK_PLANNED", "CHUNK_REGISTERED", "CHUNK_SUBMITTED", "CHUNK_SETTLED",
	"DECODE_ADMITTED", "HANDOFF_COMMITTED", "HANDOFF_COMPLETED",
}

// send gives the request to a router, which may be dead.
func (c *client) send(r *router) {
	w := c.world
	if w.hit(ClientCancelAtEveryState, 0.4) {
		c.leaveOn = states[w.rand("leave").IntN(len(states))]
	}
	c.offer(r, 40)
}

// offer tries a router until it takes the request, as clients do that are told
// to come again.
func (c *client) offer(r *router, tries int) {
	w := c.world
	w.after(w.latency(), func() {
		if !r.dead && r.take(c) {
			return
		}
		if tries--; tries > 0 && c.pair[0] == nil {
			w.after(between(w.rand("retry"), 200*time.Millisecond, time.Second), func() { c.offer(r, tries) })
			return
		}
		w.tally.Refused++
		c.end(nil, pd.CodeNoPair)
	})
}

// leave is the client closing its connection.
func (c *client) leave(state string) {
	w := c.world
	if c.done || c.flight == nil {
		return
	}
	w.happened(ClientCancelAtEveryState)
	w.tally.Cancels[state]++
	w.note(c.name, "leaves", c.flight.fence.Handoff, "at %s", state)
	f := c.flight
	if r := w.rand("who cancels"); r.IntN(4) == 0 {
		// An operator cancels it, on one side; the client is told.
		if p := f.legs[1+r.IntN(2)].host.proc; p != nil {
			w.note("ops", "cancel", f.fence.Handoff, "at %s", p.name())
			p.ask(node.CancelOrder{Request: f.fence.Request}, func(any, error) {})
			return
		}
	}
	c.left = true
	f.answer(nil, pd.CodeClientGone)
	f.abandon("the client is gone")
}

// cancelOn lets clients leave at what a node has just recorded of their handoff.
func (w *World) cancelOn(r node.Record) {
	if !w.set.active.Has(ClientCancelAtEveryState) || r.Fence.Handoff == "" {
		return
	}
	f := w.flight(r.Fence.Handoff)
	if f == nil || f.client.leaveOn != r.Event || f.client.done {
		return
	}
	f.client.leaveOn = ""
	w.after(between(w.rand("leave"), 0, 4*time.Millisecond), func() { f.client.leave(r.Event) })
}

// end is the end of the client's request: an answer, or an error.
func (c *client) end(last *engine.Output, err error) {
	w := c.world
	if c.done {
		w.broken("OneEndPerRequest", "request %s ended twice", c.name)
	}
	c.done = true
	h := pd.HandoffID("")
	if c.flight != nil {
		h = c.flight.fence.Handoff
	}
	if last != nil {
		c.tokens = append(c.tokens, last.Tokens...)
		if last.Err != nil {
			err = last.Err
		}
	}
	c.err = err
	w.note(c.name, "end", h, "%s, %d tokens", outcome(err), len(c.tokens))
	switch {
	case c.left:
		w.tally.Cancelled++
	case err != nil:
		w.tally.Failed++
		w.tally.Failures[outcome(err)]++
	default:
		w.tally.Succeeded++
	}
	// What a client has read is right, also of an answer that broke off.
	want := model.answer(c.prompt, c.limit, c.eos)
	if n := len(c.tokens); n > len(want) || !slices.Equal(c.tokens, want[:n]) || err == nil && n != len(want) {
		w.broken("SuccessEqualsCombined", "request %s of %v limit %d: %d tokens are not the %d of one process", c.name, c.prompt, c.limit, n, len(want))
	}
}

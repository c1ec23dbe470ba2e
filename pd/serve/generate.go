package serve

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

// generation is one request on its way through the node.
type generation struct {
	server *Server
	call   *edge.Call
	ctx    context.Context
	facts  *openai.Facts
	fence  *pd.Fence
	answer openai.Answer
	result Result
	buf    []byte
}

func (s *Server) generate(c *edge.Call, kind openai.Kind) {
	// The call's context lives as long as the connection, the generation does not.
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	now := s.config.Now()
	g := &generation{
		server: s, call: c, ctx: ctx,
		answer: openai.Answer{Kind: kind, Created: now.Unix(), Model: s.config.ServedModel},
		result: Result{Kind: kind, Started: now},
	}
	if err := g.run(kind); err != nil {
		g.fail(err)
	}
	g.end()
}

// run returns an error only while no answer has begun.
func (g *generation) run(kind openai.Kind) error {
	s := g.server
	id := kind.NewRequestID()
	if s.config.Role != 0 {
		fence, err := s.route(g.call, kind)
		if err != nil {
			return err
		}
		g.fence, id = fence, fence.Request
		g.result.Handoff = fence.Handoff
	}
	g.answer.ID, g.result.Request = id, id
	// A client's own id comes back to it; behind a router, the router does that.
	if own := g.call.Header("X-Request-Id"); own != "" && s.config.Role == 0 {
		g.call.SetHeader("X-Request-Id", own)
	} else {
		g.call.SetHeader("X-Request-Id", string(id))
	}
	facts, continuation, err := s.read(kind, g.call.Body())
	if err != nil {
		return err
	}
	g.facts, g.result.Stream, g.answer.Usage = facts, facts.Stream, facts.IncludeUsage
	// A pipelined request of a client that has left still arrives here.
	if g.ctx.Err() != nil {
		return context.Cause(g.ctx)
	}
	stream, err := s.config.Generator.Generate(g.ctx, engine.Request{ID: id, Continuation: continuation, Fence: g.fence})
	if err != nil {
		return err
	}
	defer stream.Close()
	g.result.Admitted = g.since()
	if r, ok := stream.(engine.Reserved); ok {
		g.call.SetHeader(openai.HitTokens, strconv.Itoa(r.HitTokens()))
	}
	switch {
	case s.config.Role == pd.Prefill:
		return g.retired(stream)
	case facts.Stream:
		g.stream(stream)
		return nil
	}
	return g.whole(stream)
}

// next gives the next output; a failed generation is an error.
func (g *generation) next(s engine.Stream) (engine.Output, error) {
	o, err := s.Next(g.ctx)
	if err != nil {
		return o, err
	}
	if g.result.First == 0 && len(o.Tokens) > 0 {
		g.result.First = g.since()
	}
	if o.Finish == 0 {
		return o, nil
	}
	g.result.Finish, g.result.Usage = o.Finish, o.Usage
	if o.Finish != pd.FinishFailed && o.Finish != pd.FinishAborted {
		return o, nil
	}
	if o.Err == nil {
		o.Err = pd.Errorf(pd.CodeAborted, "generate", "the generation was aborted")
	}
	return o, o.Err
}

// retired answers for a prefill node: no tokens, once everything is given back.
func (g *generation) retired(s engine.Stream) error {
	for {
		o, err := g.next(s)
		if err != nil {
			return err
		}
		if o.Finish != 0 {
			g.call.Reply(200, openai.TypeJSON, g.answer.AppendRetired(nil, *g.fence, usage(o.Usage)))
			return nil
		}
	}
}

func (g *generation) whole(s engine.Stream) error {
	var text strings.Builder
	for {
		o, err := g.next(s)
		if err != nil {
			return err
		}
		text.WriteString(o.Text)
		if o.Finish != 0 {
			body, err := g.appendWhole(text.String(), o)
			if err == nil {
				g.call.Reply(200, openai.TypeJSON, body)
			}
			return err
		}
	}
}

func (g *generation) appendWhole(text string, o engine.Output) ([]byte, error) {
	p := g.outputParser()
	if p == nil {
		return g.answer.AppendWhole(nil, text, o.Finish, usage(o.Usage)), nil
	}
	m, called, err := p.read(text, o.Finish, g.answer)
	if err != nil {
		return nil, err
	}
	return g.answer.AppendWholeMessage(nil, m, called, o.Finish, usage(o.Usage)), nil
}

func (g *generation) stream(s engine.Stream) {
	g.call.SetHeader("Cache-Control", "no-cache")
	g.call.SetHeader("X-Accel-Buffering", "no")
	g.call.Stream(200, openai.TypeEvents, func(w *edge.StreamWriter) error {
		if g.answer.Kind == openai.Chat {
			if err := g.event(w, g.answer.AppendRole(g.buf[:0])); err != nil {
				return err
			}
		}
		write := g.chunk
		if p := g.outputParser(); p != nil {
			write = g.chunkInParts(p)
		}
		for {
			o, err := g.next(s)
			if err != nil {
				return g.failStream(w, err)
			}
			if err := write(w, o); err != nil {
				if _, ours := errors.AsType[*pd.Error](err); ours {
					return g.failStream(w, err)
				}
				return err
			}
			if o.Finish == 0 {
				continue
			}
			if g.facts.IncludeUsage {
				if err := g.event(w, g.answer.AppendUsageChunk(g.buf[:0], usage(o.Usage))); err != nil {
					return err
				}
			}
			return w.WriteEvent([]byte(openai.Done))
		}
	})
	if context.Cause(g.ctx) != nil && g.result.Finish == 0 && g.result.Code == 0 {
		g.result.Code = pd.CodeClientGone
	}
}

// chunk writes one output as it is.
func (g *generation) chunk(w *edge.StreamWriter, o engine.Output) error {
	if o.Text == "" && o.Finish == 0 {
		return nil
	}
	return g.event(w, g.answer.AppendChunk(g.buf[:0], o.Text, o.Finish))
}

// chunkInParts writes outputs whose text may hold reasoning and calls. What cannot
// be read is a *pd.Error.
func (g *generation) chunkInParts(p *outputParser) func(*edge.StreamWriter, engine.Output) error {
	write := func(w *edge.StreamWriter, pieces []piece) error {
		for _, x := range pieces {
			switch {
			case x.reasoning != "":
				g.buf = g.answer.AppendReasoning(g.buf[:0], x.reasoning)
			case x.content != "":
				g.buf = g.answer.AppendChunk(g.buf[:0], x.content, 0)
			case x.name != "":
				g.buf = g.answer.AppendCall(g.buf[:0], x.call, openai.ToolCall{ID: g.answer.CallID(x.call), Name: x.name})
			default:
				g.buf = g.answer.AppendArguments(g.buf[:0], x.call, x.arguments)
			}
			if err := w.WriteEvent(g.buf); err != nil {
				return err
			}
		}
		return nil
	}
	return func(w *edge.StreamWriter, o engine.Output) error {
		pieces, err := p.feed(o.Text)
		if err != nil {
			return err
		}
		if err := write(w, pieces); err != nil || o.Finish == 0 {
			return err
		}
		pieces, called, err := p.end(o.Finish)
		if err != nil {
			return err
		}
		if err := write(w, pieces); err != nil {
			return err
		}
		if called {
			return g.event(w, g.answer.AppendCallsEnd(g.buf[:0]))
		}
		return g.event(w, g.answer.AppendChunk(g.buf[:0], "", o.Finish))
	}
}

func (g *generation) event(w *edge.StreamWriter, data []byte) error {
	g.buf = data
	return w.WriteEvent(data)
}

// failStream ends a stream whose status has gone out: one error event, then the
// end. Clients must look at events.
func (g *generation) failStream(w *edge.StreamWriter, err error) error {
	err = g.classify(err)
	if g.result.Code == pd.CodeClientGone {
		return err
	}
	if err := w.WriteEvent(openai.AppendError(nil, err)); err != nil {
		return err
	}
	return w.WriteEvent([]byte(openai.Done))
}

func (g *generation) fail(err error) {
	replyError(g.call, g.classify(err))
}

func (g *generation) classify(raw error) error {
	err := classify(g.ctx, raw)
	if g.result.Code = pd.CodeOf(err); g.result.Code == pd.CodeInternal {
		g.server.config.Log.Error("generation failed", "request", g.result.Request, "handoff", g.result.Handoff, "error", raw)
	}
	return err
}

func (g *generation) end() {
	r := &g.result
	r.Status, r.Ended = g.call.Status(), g.since()
	attrs := []any{
		"request", r.Request, "kind", r.Kind.String(), "stream", r.Stream, "status", r.Status,
		"prompt_tokens", r.Usage.PromptTokens, "cached_tokens", r.Usage.CachedTokens, "completion_tokens", r.Usage.CompletionTokens,
		"admitted", r.Admitted, "first", r.First, "ended", r.Ended,
	}
	if r.Handoff != "" {
		attrs = append(attrs, "handoff", r.Handoff)
	}
	if r.Finish != 0 {
		attrs = append(attrs, "finish", r.Finish.String())
	}
	if r.Code != 0 {
		attrs = append(attrs, "code", r.Code.String())
	}
	g.server.config.Log.Info("generation ended", attrs...)
	if g.server.config.Done != nil {
		g.server.config.Done(*r)
	}
}

func (g *generation) since() time.Duration { return g.server.config.Now().Sub(g.result.Started) }

func usage(u engine.Usage) openai.Usage {
	return openai.Usage{PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens, CachedTokens: u.CachedTokens}
}

package sim

import (
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// execute carries one effect out, as pd/shell does.
func (p *process) execute(effect node.Effect) {
	w := p.host.world
	defer w.catch()
	w.check.effect(p, effect)
	switch e := effect.(type) {
	case node.Record:
		w.note(p.name(), e.Event, e.Fence.Handoff, "%s", recorded(e))
		w.cancelOn(e)
	case node.Call:
		key := outgoing{e.Handoff, e.Op}
		p.outgoing[key] = w.call(p, w.host(e.Peer.Node), e.Message, e.Timeout, func(a any, err error) {
			delete(p.outgoing, key)
			p.step(node.Returned{Handoff: e.Handoff, Op: e.Op, Answer: a, Err: err})
		})
	case node.OpenSession:
		hello := p.node.Hello()
		hello.Nonce = w.hexID("nonce")
		w.call(p, w.host(e.Peer.Node), hello, e.Timeout, func(a any, err error) {
			if err != nil {
				p.step(node.SessionReturned{Peer: e.Peer, Err: err})
				return
			}
			answer := a.(wire.Session)
			p.step(node.SessionReturned{Peer: e.Peer, Answer: &answer})
		})
	case node.CancelCall:
		if c := p.outgoing[outgoing{e.Handoff, e.Op}]; c != nil {
			c.end(0, nil, pd.Errorf(pd.CodeAborted, e.Op.String(), "cancelled"))
		}
	case node.Answer:
		if in := p.calls[e.Call]; in != nil {
			delete(p.calls, e.Call)
			in.reply(e.Message, e.Err)
		}
	case node.AcceptPost:
		p.posts[e.Post].accepted()
	case node.EndPost:
		p.endPost(e)
	case node.InstallPeer:
		if err := p.owners.install(e.Peer, e.Registry); err != nil {
			p.soon(func() { p.step(node.InstallFailed{Peer: e.Peer, Err: err}) })
		}
	case node.Submit:
		if err := p.owners.submit(e); err != nil {
			p.soon(func() { p.step(node.SubmitRefused{Handoff: e.Handoff, Chunk: e.Chunk, Err: err}) })
		}
	case node.Seal:
		p.owners.seal(e.Handoff)
	case node.Fence:
		p.owners.fence()
	case node.Forget:
		p.owners.forget(e.Handoff)
	case node.StartPrefill:
		p.prompts[e.Handoff] = true
		p.engine.Prefill(e.Handoff, engine.Request{ID: e.Request, Continuation: *e.Continuation})
	case node.ResumePrefill:
		p.engine.Resume(e.Handoff)
	case node.StopPrefill:
		p.engine.StopPrefill(e.Handoff)
	case node.Adopt:
		p.engine.Adopt(engine.Adoption{
			Handoff: e.Handoff, Request: e.Request, Continuation: *e.Continuation, FirstToken: e.FirstToken,
			Partition: e.Partition, HitTokens: e.HitTokens, CachedTokens: e.CachedTokens, BootstrapSlot: e.BootstrapSlot,
		})
	case node.StopDecode:
		p.engine.StopDecode(e.Handoff)
	case node.FreeLease, node.FreePin:
		p.node.Free(e)
	default:
		panic(fmt.Sprintf("sim: unknown effect %T", effect))
	}
}

// endPost ends a POST as pd/shell does: decode's last output goes out now.
func (p *process) endPost(e node.EndPost) {
	l := p.posts[e.Post]
	delete(p.posts, e.Post)
	last, decoded := engine.Output{}, false
	if p.byID[e.Handoff] == l {
		delete(p.byID, e.Handoff)
		last, decoded = p.lasts[e.Handoff]
		delete(p.lasts, e.Handoff)
	}
	switch {
	case e.Err != nil:
		last = engine.Failure(e.Err)
	case !decoded:
		last = engine.Output{Finish: pd.FinishStop}
	}
	l.ended(last, e.Err)
}

// handoffOf is which handoff an event is about.
func handoffOf(e node.Event) pd.HandoffID {
	switch e := e.(type) {
	case node.PrefillPosted:
		return e.Fence.Handoff
	case node.DecodePosted:
		return e.Fence.Handoff
	case node.Returned:
		return e.Handoff
	case node.ChunkComputed:
		return e.Handoff
	case node.PrefillStopped:
		return e.Handoff
	case node.DecodeStopped:
		return e.Handoff
	case node.ChunkSettled:
		return e.Handoff
	case node.SourceFreed:
		return e.Handoff
	case node.SubmitRefused:
		return e.Handoff
	case node.Sealed:
		return e.Handoff
	case node.Called:
		return fenceOf(e.Message).Handoff
	}
	return ""
}

// fenceOf is the fence of a message; empty where it has none.
func fenceOf(message any) pd.Fence {
	switch m := message.(type) {
	case wire.Reserve:
		return m.Fence
	case wire.Chunk:
		return m.Manifest.Fence
	case wire.Results:
		return m.Fence
	case wire.Commit:
		return m.Fence
	case wire.Abort:
		return m.Fence
	case wire.StatusQuery:
		return m.Fence
	}
	return pd.Fence{}
}

// describe is what a line of the log says of an event.
func describe(e node.Event) string {
	switch e := e.(type) {
	case node.Called:
		return messageText(e.Message)
	case node.Returned:
		if e.Err != nil {
			return fmt.Sprintf("%v %v", e.Op, pd.CodeOf(e.Err))
		}
		return fmt.Sprintf("%v %s", e.Op, messageText(e.Answer))
	case node.SessionReturned:
		return outcome(e.Err)
	case node.ChunkComputed:
		return fmt.Sprintf("chunk=%d %v final=%t hit=%d", e.Chunk, e.Span, e.Final, e.HitTokens)
	case node.ChunkSettled:
		worst := pd.Settlement(0)
		for _, r := range e.Results {
			worst = worst.Worse(r.Settlement)
		}
		return fmt.Sprintf("chunk=%d %v source_free=%t", e.Chunk, worst, e.SourceFree)
	case node.SourceFreed:
		return fmt.Sprintf("chunk=%d", e.Chunk)
	case node.SubmitRefused:
		return fmt.Sprintf("chunk=%d %s", e.Chunk, outcome(e.Err))
	case node.Sealed:
		return e.Fact.String()
	case node.Fenced:
		return outcome(e.Err)
	case node.PrefillStopped:
		return outcome(e.Err)
	case node.DecodeStopped:
		return outcome(e.Err)
	case node.LoopPaused:
		return e.For.String()
	}
	return ""
}

func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return pd.CodeOf(err).String()
}

func messageText(message any) string {
	switch m := message.(type) {
	case nil:
		return ""
	case wire.Chunk:
		return fmt.Sprintf("chunk %d %v final=%t", m.Manifest.Chunk, m.Manifest.Span, m.Manifest.Final)
	case wire.Results:
		return fmt.Sprintf("results of %d units", len(m.Results))
	case wire.Abort:
		return fmt.Sprintf("abort from %s fact=%q %s", m.From, m.Fact, m.Reason)
	case wire.Status:
		return fmt.Sprintf("status %s fact=%q admitted=%t held=%d", m.State, m.Fact, m.Admitted, m.Held)
	case wire.Reserved:
		return fmt.Sprintf("reserved partition=%d hit=%d slot=%d", m.Partition, m.HitTokens, m.BootstrapSlot)
	case wire.ChunkAck:
		return fmt.Sprintf("ack %d", m.Chunk)
	case node.Receipt:
		return m.Text
	}
	return wire.Name(message)
}

func recorded(r node.Record) string {
	out := ""
	if r.Bytes > 0 {
		out = fmt.Sprintf("chunk=%d %v bytes=%d", r.Chunk, r.Span, r.Bytes)
	}
	if r.Code != 0 {
		out += fmt.Sprintf(" %v %s", r.Code, r.Detail)
	}
	return out
}

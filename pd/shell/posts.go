package shell

import (
	"context"
	"sync"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// post is one generation POST that is open here.
type post struct {
	pipe *engine.Pipe
	// decided is closed when the POST is accepted or has ended; err says why it
	// ended before that.
	decided chan struct{}
	once    sync.Once
	err     error
	usage   engine.Usage
	// hit is written before decided is closed.
	hit int
}

// reserved is the stream of a decode node, with what its cache had of the prompt.
type reserved struct {
	*engine.Pipe
	hit int
}

// HitTokens implements engine.Reserved.
func (r reserved) HitTokens() int { return r.hit }

var _ engine.Reserved = reserved{}

// accept lets Generate return the stream.
func (p *post) accept(hit int) {
	p.once.Do(func() {
		p.hit = hit
		close(p.decided)
	})
}

// end delivers the last output, or the error of a POST that was not accepted.
func (p *post) end(last engine.Output, err error) {
	p.pipe.Send(last)
	p.once.Do(func() {
		p.err = err
		close(p.decided)
	})
}

// Generate implements engine.Generator for a node with a role: it posts the
// request to the loop and waits until it is decided. The digests are computed
// here, off the loop.
func (s *Shell) Generate(ctx context.Context, r engine.Request) (engine.Stream, error) {
	id := node.PostID(s.serial.Add(1))
	p := &post{decided: make(chan struct{}), usage: engine.Usage{PromptTokens: len(r.Continuation.PromptTokens)}}
	p.pipe = engine.NewPipe(func() { s.event(node.PostClosed{Post: id}) })
	var e node.Event = node.DecodePosted{Post: id, Fence: *r.Fence, Stream: r.Continuation.Stream}
	if s.cfg.Node.Role == pd.Prefill {
		hash, err := wire.MetadataHash(&r.Continuation)
		if err != nil {
			return nil, err
		}
		digest, err := wire.PreparedDigest(hash)
		if err != nil {
			return nil, err
		}
		e = node.PrefillPosted{Post: id, Fence: *r.Fence, Continuation: &r.Continuation, MetadataHash: hash, PreparedDigest: digest}
	}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil, &pd.Error{Op: "generate", Code: pd.CodeDraining, Node: s.cfg.Node.Self.Node, Text: "the node was stopped"}
	}
	s.posts[id] = p
	if s.byID[r.Fence.Handoff] == nil {
		s.byID[r.Fence.Handoff] = p
	}
	s.mu.Unlock()
	s.event(e)
	select {
	case <-p.decided:
	case <-ctx.Done():
		p.pipe.Close()
		return nil, context.Cause(ctx)
	}
	if p.err != nil {
		return nil, p.err
	}
	if s.cfg.Node.Role == pd.Decode {
		return reserved{p.pipe, p.hit}, nil
	}
	return p.pipe, nil
}

func (s *Shell) acceptPost(e node.AcceptPost) {
	s.mu.Lock()
	p := s.posts[e.Post]
	s.mu.Unlock()
	if p != nil {
		p.accept(e.HitTokens)
	}
}

// endPost ends a POST: by then the node has retired the request, or never took
// it in.
func (s *Shell) endPost(e node.EndPost) {
	s.mu.Lock()
	p := s.posts[e.Post]
	delete(s.posts, e.Post)
	var last engine.Output
	var decoded bool
	if p != nil && s.byID[e.Handoff] == p {
		delete(s.byID, e.Handoff)
		last, decoded = s.lasts[e.Handoff]
		delete(s.lasts, e.Handoff)
	}
	s.mu.Unlock()
	if p == nil {
		return
	}
	switch {
	case e.Err != nil:
		p.end(engine.Failure(e.Err), e.Err)
	case decoded:
		p.end(last, nil)
	default:
		p.end(engine.Output{Finish: pd.FinishStop, Usage: p.usage}, nil)
	}
}

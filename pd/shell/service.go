package shell

import (
	"context"
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// ask gives a control message to the loop and waits for its answer.
func ask[A any](ctx context.Context, s *Shell, message any) (A, error) {
	return call[A](ctx, s, node.Called{Message: message})
}

func call[A any](ctx context.Context, s *Shell, e node.Called) (A, error) {
	var zero A
	id := node.CallID(s.serial.Add(1))
	ch := make(chan answer, 1)
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return zero, &pd.Error{Op: "control", Code: pd.CodeDraining, Node: s.cfg.Node.Self.Node, Text: "the node was stopped"}
	}
	s.answers[id] = ch
	s.mu.Unlock()
	e.Call = id
	s.event(e)
	select {
	case a := <-ch:
		if a.err != nil {
			return zero, a.err
		}
		m, ok := a.message.(A)
		if !ok {
			return zero, fmt.Errorf("control: answer %T to %T", a.message, e.Message)
		}
		return m, nil
	case <-ctx.Done():
		s.mu.Lock()
		delete(s.answers, id)
		s.mu.Unlock()
		return zero, context.Cause(ctx)
	}
}

// Order gives an operator's order (node.FenceOrder, …) to the node and waits
// for its answer: a node.Receipt, or a wire.Status for a cancelled request.
func (s *Shell) Order(ctx context.Context, order any) (any, error) {
	return call[any](ctx, s, node.Called{Message: order})
}

// reply ends a waiting call; its caller may have left.
func (s *Shell) reply(id node.CallID, a answer) {
	s.mu.Lock()
	ch := s.answers[id]
	delete(s.answers, id)
	s.mu.Unlock()
	if ch != nil {
		ch <- a
	}
}

// Node implements control.Service.
func (s *Shell) Node(context.Context) (wire.Node, error) {
	d, v := s.cfg.Descriptor, s.Snapshot()
	d.Health, d.Reason, d.Capacity = v.Health, v.Reason, v.Capacity
	return d, nil
}

// Session implements control.Service.
func (s *Shell) Session(ctx context.Context, m wire.Session) (wire.Session, error) {
	return ask[wire.Session](ctx, s, m)
}

// Status implements control.Service.
func (s *Shell) Status(ctx context.Context, m wire.StatusQuery) (wire.Status, error) {
	return ask[wire.Status](ctx, s, m)
}

// Abort implements control.Service.
func (s *Shell) Abort(ctx context.Context, m wire.Abort) (wire.Status, error) {
	return ask[wire.Status](ctx, s, m)
}

// Reserve implements control.Service. The page hashes of a long prompt are
// computed here, off the loop.
func (s *Shell) Reserve(ctx context.Context, m wire.Reserve) (wire.Reserved, error) {
	return call[wire.Reserved](ctx, s, node.Called{Message: m, Prefix: s.node.Prefix(m.Continuation.PromptTokens)})
}

// Chunk implements control.Service.
func (s *Shell) Chunk(ctx context.Context, m wire.Chunk) (wire.ChunkAck, error) {
	return ask[wire.ChunkAck](ctx, s, m)
}

// Results implements control.Service.
func (s *Shell) Results(ctx context.Context, m wire.Results) (wire.Ack, error) {
	return ask[wire.Ack](ctx, s, m)
}

// Commit implements control.Service.
func (s *Shell) Commit(ctx context.Context, m wire.Commit) (wire.Committed, error) {
	return ask[wire.Committed](ctx, s, m)
}

// SourceStopped implements control.Service.
func (s *Shell) SourceStopped(ctx context.Context, m wire.SourceStopped) (wire.Ack, error) {
	return ask[wire.Ack](ctx, s, m)
}

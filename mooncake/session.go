package mooncake

import (
	"context"
	"fmt"
	"maps"
	"net"
	"sync/atomic"
	"time"

	"github.com/hw-native-sys/pypto-pd/cgo/te"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// connectTimeout bounds a Connect whose context has no deadline.
const connectTimeout = 10 * time.Second

// Whatever Submit takes fits into one native batch.
const _ = uint(te.MaxTasks - pd.MaxSegmentTasks)

// sessionKey is one life of one target rank (decisions.md "PD wire" 16).
type sessionKey struct {
	identity transfer.Identity
	endpoint string
}

// session is an open way to one target rank.
type session struct {
	// constant
	engine  *engine
	life    *life
	rank    pd.Rank
	segment te.Segment
	row     uintptr
	regions map[pd.ComponentID]remote
	extents transfer.Extents

	window *window // shared with earlier sessions to the same endpoint

	dead atomic.Bool  // something went wrong on it
	open atomic.Int64 // its segments whose batch has not ended, also late ones

	// owned by the caller's goroutine
	requests []te.Request // reused by every Submit
}

// window counts what is open in the library towards one endpoint. Its queue
// is the same for every session, so what an earlier one left there counts.
type window struct{ open atomic.Int64 }

// windowOf gives the window of an endpoint.
func (l *life) windowOf(endpoint string) *window {
	w := l.windows[endpoint]
	if w == nil {
		if len(l.windows) >= maxSessions {
			// Peers come and go; an empty window is like a new one.
			maps.DeleteFunc(l.windows, func(_ string, w *window) bool { return w.open.Load() == 0 })
		}
		w = &window{}
		l.windows[endpoint] = w
	}
	return w
}

// count adds segments to what is open.
func (s *session) count(segments int) {
	s.open.Add(int64(segments))
	s.window.open.Add(int64(segments))
}

// Connect implements transfer.Engine.
func (e *engine) Connect(ctx context.Context, t transfer.Target) (transfer.Session, error) {
	op := fmt.Sprintf("connect to rank %d", t.Identity.Rank)
	if err := e.check(op); err != nil {
		return nil, err
	}
	if !e.frozen {
		return nil, pd.Errorf(pd.CodeInternal, op, "freeze the regions first")
	}
	if err := e.life.check(op); err != nil {
		return nil, err
	}
	refuse := func(code pd.Code, err error) error {
		return &pd.Error{Op: op, Code: code, Node: t.Peer.Node, Err: err}
	}
	if err := t.Identity.Check(); err != nil {
		return nil, refuse(pd.CodeRegistryMismatch, err)
	}
	if _, _, err := net.SplitHostPort(t.Endpoint); err != nil {
		return nil, refuse(pd.CodeRegistryMismatch, fmt.Errorf("endpoint: %w", err))
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	key := sessionKey{identity: t.Identity, endpoint: t.Endpoint}
	if s := e.sessions[key]; s != nil && !s.dead.Load() {
		if s.open.Load() > 0 {
			return s, nil // its batches tell if the peer goes
		}
		// The library does not tell when a peer goes; a write would, and hold memory.
		err := s.verify(ctx, t.Identity)
		if err == nil {
			return s, nil
		}
		s.dead.Store(true)
		return nil, refuse(codeOr(err, pd.CodePeerUnreachable), err)
	}
	for old, s := range e.sessions {
		if s.dead.Load() {
			delete(e.sessions, old)
		}
	}
	if len(e.sessions) >= maxSessions {
		return nil, pd.Errorf(pd.CodeBusy, op, "%d sessions are open", len(e.sessions))
	}
	regions, extents, row, err := readRegions(t.Regions, e.provider.options.Protocol)
	if err != nil {
		return nil, refuse(pd.CodeRegistryMismatch, err)
	}
	segment, err := e.openSegment(ctx, t.Endpoint)
	if err != nil {
		return nil, refuse(codeOr(err, pd.CodePeerUnreachable), err)
	}
	s := &session{
		engine: e, life: e.life, rank: t.Identity.Rank, segment: segment, window: e.life.windowOf(t.Endpoint), row: row, regions: regions, extents: extents,
		requests: make([]te.Request, 0, pd.MaxSegmentTasks),
	}
	if err := s.verify(ctx, t.Identity); err != nil {
		return nil, refuse(codeOr(err, pd.CodePeerUnreachable), err)
	}
	e.sessions[key] = s
	return s, nil
}

// verify reads the identity row of whoever answers now and compares it.
func (s *session) verify(ctx context.Context, want transfer.Identity) error {
	got, err := s.engine.readRow(ctx, s.segment, s.row)
	if err != nil {
		return err
	}
	if got != want {
		return pd.Errorf(pd.CodeStaleBoot, "compare identity rows", "boot %s, rank %d, epoch %d answers; want boot %s, rank %d, epoch %d",
			got.Boot, got.Rank, got.Epoch, want.Boot, want.Rank, want.Epoch)
	}
	return nil
}

// openSegment asks the library for a peer. The call may block for a minute;
// then it goes on alone, and the engine's end waits for it.
func (e *engine) openSegment(ctx context.Context, endpoint string) (te.Segment, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	l := e.life
	select {
	case l.opens <- struct{}{}:
	default:
		return 0, pd.Errorf(pd.CodeBusy, "open segment", "%d earlier attempts have not returned from the library", maxOpens)
	}
	type answer struct {
		segment te.Segment
		err     error
	}
	answers := make(chan answer, 1)
	go func() {
		defer func() { <-l.opens }()
		segment, err := l.native.OpenSegment(endpoint)
		answers <- answer{segment, err}
	}()
	select {
	case a := <-answers:
		return a.segment, a.err
	case <-ctx.Done():
		return 0, fmt.Errorf("openSegmentNoCache has not returned: %w", ctx.Err())
	}
}

// readRow reads the identity row of whoever answers at a segment.
func (e *engine) readRow(ctx context.Context, segment te.Segment, row uintptr) (transfer.Identity, error) {
	var none transfer.Identity
	var slot int
	select {
	case slot = <-e.home.slots:
	default:
		return none, pd.Errorf(pd.CodeBusy, "read identity row", "%d earlier reads have not ended", cap(e.home.slots))
	}
	read := &rowRead{slots: e.home.slots, slot: slot, answer: make(chan te.Report, 1)}
	offset := int64(slot * transfer.RowBytes)
	// Whatever an earlier read left there must not be taken for an answer.
	var blank [transfer.RowBytes]byte
	if err := e.home.memory.CopyIn(offset, blank[:]); err != nil {
		e.home.slots <- slot
		return none, err
	}
	request := []te.Request{{Source: e.home.memory.Base() + uintptr(offset), Target: row, Segment: segment, Bytes: transfer.RowBytes}}
	if err := e.life.submit(te.Read, request, &batch{segments: 1, read: read}); err != nil {
		e.home.slots <- slot
		return none, fmt.Errorf("read identity row: %w", err)
	}
	var report te.Report
	select {
	case report = <-read.answer:
	case <-ctx.Done():
		read.abandon()
		return none, fmt.Errorf("read identity row: %w", ctx.Err())
	}
	defer func() { e.home.slots <- slot }()
	if how := endingOf(&report, e.provider.options.Protocol, 0, e.provider.options.TransferTimeout); how != allCompleted {
		return none, fmt.Errorf("read identity row: %s", detail(&report, proofOf(how)))
	}
	var got [transfer.RowBytes]byte
	if err := e.home.memory.CopyOut(offset, got[:]); err != nil {
		return none, err
	}
	identity, err := transfer.ParseRow(got[:])
	if err != nil {
		return none, &pd.Error{Op: "read identity row", Code: pd.CodeStaleBoot, Err: err}
	}
	return identity, nil
}

// Submit implements transfer.Session.
func (s *session) Submit(segments []pd.Segment) (transfer.Ticket, error) {
	op := fmt.Sprintf("submit to rank %d", s.rank)
	e := s.engine
	if err := e.check(op); err != nil {
		return 0, err
	}
	if err := s.life.check(op); err != nil {
		return 0, err
	}
	if n := len(segments); n < 1 || n > pd.MaxSegmentTasks {
		return 0, pd.Errorf(pd.CodeInvalidPlan, op, "%d segments: want 1..%d", n, pd.MaxSegmentTasks)
	}
	if _, err := transfer.CheckSegments(segments, e.extents, s.extents); err != nil {
		return 0, &pd.Error{Op: op, Code: pd.CodeInvalidPlan, Err: err}
	}
	switch {
	case s.dead.Load():
		return 0, pd.Errorf(pd.CodePeerUnreachable, op, "an earlier batch did not complete on this session; connect again")
	case s.window.open.Load()+int64(len(segments)) > pd.MaxOutstandingTasks:
		return 0, pd.Errorf(pd.CodeBusy, op, "%d tasks have not ended, %d more would exceed %d", s.window.open.Load(), len(segments), pd.MaxOutstandingTasks)
	}
	s.lower(segments)
	b := &batch{ticket: e.lastTicket + 1, session: s, segments: len(segments)}
	s.count(len(segments))
	if err := s.life.submit(te.Write, s.requests, b); err != nil {
		s.count(-len(segments))
		return 0, &pd.Error{Op: op, Code: pd.CodeTransferFailed, Text: "nothing was written", Err: err}
	}
	e.lastTicket++
	return b.ticket, nil
}

// lower turns checked segments into requests; neighbours that continue each
// other at both ends become one.
func (s *session) lower(segments []pd.Segment) {
	s.requests = s.requests[:0]
	var component pd.ComponentID
	var source, target uintptr
	for i := range segments {
		g := &segments[i]
		fresh := i == 0 || g.Component != component
		if fresh {
			component = g.Component
			source, target = s.engine.memory[component].Base(), s.regions[component].base
		}
		from, to := source+uintptr(g.SourceOffset), target+uintptr(g.TargetOffset)
		if !fresh {
			last := &s.requests[len(s.requests)-1]
			if last.Source+uintptr(last.Bytes) == from && last.Target+uintptr(last.Bytes) == to {
				last.Bytes += g.Bytes
				continue
			}
		}
		s.requests = append(s.requests, te.Request{Source: from, Target: to, Segment: s.segment, Bytes: g.Bytes})
	}
}

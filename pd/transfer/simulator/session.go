package simulator

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// dial opens a connection to endpoint and compares the identity row of whoever
// answers with the wanted one.
func dial(ctx context.Context, endpoint string, want transfer.Identity) (net.Conn, *pd.Error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return nil, &pd.Error{Code: pd.CodePeerUnreachable, Err: err}
	}
	// A done context ends the exchange by closing the connection under it.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	got, err := exchangeHello(conn)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil && got == want {
		return conn, nil
	}
	conn.Close()
	if err != nil {
		return nil, &pd.Error{Code: pd.CodePeerUnreachable, Text: "read the identity row", Err: err}
	}
	return nil, pd.Errorf(pd.CodeStaleBoot, "", "boot %s rank %d epoch %d answers, want boot %s rank %d epoch %d",
		got.Boot, got.Rank, got.Epoch, want.Boot, want.Rank, want.Epoch)
}

func exchangeHello(conn net.Conn) (transfer.Identity, error) {
	var hello [helloBytes]byte
	putHello(hello[:])
	if _, err := conn.Write(hello[:]); err != nil {
		return transfer.Identity{}, err
	}
	var row [transfer.RowBytes]byte
	if _, err := io.ReadFull(conn, row[:]); err != nil {
		return transfer.Identity{}, err
	}
	return transfer.ParseRow(row[:])
}

// session is one connection to one target rank. Submit appends to pending, the
// writer sends in that order, the reader settles.
//
// Invariant SourceStableUntilSourceDone: no verdict is given while the writer
// may still read the batch's source bytes. An answer of the target implies
// that it has them all; every other verdict waits for the writer's return.
type session struct {
	// constant
	engine  *engine
	conn    net.Conn
	target  pd.Rank
	regions map[pd.ComponentID]uint32
	extents transfer.Extents
	// kick tells the writer of new work; done is closed when writer and reader
	// have returned and everything is settled.
	kick chan struct{}
	done chan struct{}
	// lost is closed when the connection is to be used no more.
	lost chan struct{}
	// writerDone is closed when the writer has returned.
	writerDone chan struct{}

	mu sync.Mutex
	// pending holds the unsettled batches in the order of Submit; the first
	// posted of them have been taken by the writer.
	pending []*batch
	posted  int
	tasks   int
	cause   error // why the session is lost
	ended   bool  // lost by Close or Fence
	spare   []*batch
}

func newSession(e *engine, conn net.Conn, target pd.Rank, regions map[pd.ComponentID]uint32, extents transfer.Extents) *session {
	return &session{
		engine: e, conn: conn, target: target, regions: regions, extents: extents,
		kick: make(chan struct{}, 1), done: make(chan struct{}),
		lost: make(chan struct{}), writerDone: make(chan struct{}),
	}
}

func (s *session) start() {
	go func() {
		defer close(s.writerDone)
		w := writer{session: s}
		w.run()
	}()
	go s.read()
}

func (s *session) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause == nil
}

var errEnded = errors.New("the engine was closed or fenced")

// end closes the session from outside.
func (s *session) end() {
	s.mu.Lock()
	s.ended = true
	s.loseLocked(errEnded)
	s.mu.Unlock()
	s.conn.Close()
}

// lose ends the session because of what happened on the connection.
func (s *session) lose(cause error) {
	s.mu.Lock()
	s.loseLocked(cause)
	s.mu.Unlock()
	s.conn.Close()
}

func (s *session) loseLocked(cause error) {
	if s.cause == nil {
		s.cause = cause
		close(s.lost)
	}
}

// Submit implements transfer.Session.
func (s *session) Submit(segments []pd.Segment) (transfer.Ticket, error) {
	const op = "submit"
	e := s.engine
	if err := e.check(op); err != nil {
		return 0, err
	}
	if n := len(segments); n < 1 || n > pd.MaxSegmentTasks {
		return 0, pd.Errorf(pd.CodeInvalidPlan, op, "batch of %d segments: want 1..%d", n, pd.MaxSegmentTasks)
	}
	bytes, err := transfer.CheckSegments(segments, e.extents, s.extents)
	if err != nil {
		return 0, &pd.Error{Op: op, Code: pd.CodeInvalidPlan, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return 0, &pd.Error{Op: op, Code: pd.CodePeerUnreachable, Text: "the session is lost", Err: s.cause}
	}
	if s.tasks+len(segments) > pd.MaxOutstandingTasks {
		return 0, pd.Errorf(pd.CodeBusy, op, "%d segments are unsettled, %d more would exceed %d",
			s.tasks, len(segments), pd.MaxOutstandingTasks)
	}
	fault := e.provider.fault(s.target, segments)
	if fault.is(SubmitFailed) {
		return 0, pd.Errorf(pd.CodeTransferFailed, op, "fault %s", SubmitFailed)
	}
	e.lastTicket++
	now := time.Now()
	b := s.newBatchLocked()
	b.ticket, b.bytes, b.fault = e.lastTicket, bytes, fault
	b.due, b.deadline = e.pacer.due(now, bytes), now.Add(e.timeout)
	if fault.is(VerdictLateNeverPosted) {
		b.due = b.deadline.Add(maxFaultDelay)
	}
	for _, seg := range segments {
		b.segments = append(b.segments, posting{
			region: s.regions[seg.Component], component: seg.Component, offset: seg.TargetOffset,
			source: e.source[seg.Component][seg.SourceOffset : seg.SourceOffset+seg.Bytes],
		})
	}
	if fault.is(ReorderedPages) {
		rng := rand.New(rand.NewPCG(e.provider.config.Seed, uint64(b.ticket)))
		rng.Shuffle(len(b.segments), func(i, j int) { b.segments[i], b.segments[j] = b.segments[j], b.segments[i] })
	}
	s.pending = append(s.pending, b)
	s.tasks += len(segments)
	if len(s.pending) == 1 {
		s.armLocked()
	}
	s.kickWriter()
	return b.ticket, nil
}

// kickWriter makes the writer look at pending again.
func (s *session) kickWriter() {
	select {
	case s.kick <- struct{}{}:
	default: // it will look anyway
	}
}

// armLocked sets the reader's deadline to that of the oldest unsettled batch.
// Batches have one timeout, so the oldest is always the next to expire.
func (s *session) armLocked() {
	var at time.Time
	if len(s.pending) > 0 {
		at = s.pending[0].deadline
	}
	// An error means that the connection is closed, which the reader sees too.
	_ = s.conn.SetReadDeadline(at)
}

// read settles batches by the target's answers until the connection ends, and
// then settles the rest by what is known of them.
func (s *session) read() {
	defer close(s.done)
	r := bufio.NewReaderSize(s.conn, 16*answerBytes)
	for {
		raw, err := r.Peek(answerBytes)
		if err == nil {
			var a answer
			if a, err = parseAnswer(raw); err == nil {
				_, _ = r.Discard(answerBytes) // it was peeked, so it is there
				s.answered(a)
				continue
			}
		}
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() && s.expire() {
			continue
		}
		s.lose(err)
		break
	}
	<-s.writerDone
	s.settleRest()
}

// answered settles the batch that a target's answer names. An answer for a
// batch that is settled already, or on a session that is lost, changes nothing.
func (s *session) answered(a answer) {
	s.mu.Lock()
	i := slices.IndexFunc(s.pending[:s.posted], func(b *batch) bool { return b.ticket == a.ticket })
	if i < 0 || s.cause != nil {
		s.mu.Unlock()
		s.engine.provider.lateAnswers.Add(1)
		return
	}
	b := s.pending[i]
	if (b.fault.is(VerdictNever) || b.fault.is(VerdictAfterDeadline)) && !b.withheld {
		b.withheld, b.answer = true, a
		s.mu.Unlock()
		return
	}
	v := transfer.Verdict{Ticket: b.ticket, SourceFree: true}
	switch {
	case a.status == refused:
		v.Settlement, v.Detail = pd.Failed, "refused by the target"
	case a.bytes != b.bytes:
		v.Settlement, v.Detail = pd.Uncertain, "acknowledged short"
	default:
		v.Settlement = pd.Done
	}
	s.removeLocked(i)
	s.mu.Unlock()
	s.engine.Tell(v)
}

// expire handles the deadline of the oldest batch and says whether the session
// can go on.
func (s *session) expire() bool {
	s.mu.Lock()
	if len(s.pending) == 0 || time.Now().Before(s.pending[0].deadline) {
		s.armLocked()
		s.mu.Unlock()
		return true
	}
	b := s.pending[0]
	v := transfer.Verdict{Ticket: b.ticket, SourceFree: true}
	late := answer{}
	switch {
	case s.posted == 0:
		v.Settlement, v.Detail = pd.Failed, "timeout before the first byte left"
	case b.withheld:
		v.Settlement, v.Detail = pd.Uncertain, "timeout"
		if b.fault.is(VerdictAfterDeadline) {
			late = b.answer
		}
	default:
		// The writer may be in the middle of it: only the end of the connection
		// ends its reading of the source.
		s.mu.Unlock()
		return false
	}
	s.removeLocked(0)
	s.mu.Unlock()
	s.engine.Tell(v)
	if late.ticket != 0 {
		s.answered(late)
	}
	return true
}

// removeLocked takes a settled batch out of pending.
func (s *session) removeLocked(i int) {
	b := s.pending[i]
	s.pending = slices.Delete(s.pending, i, i+1)
	s.tasks -= len(b.segments)
	if i < s.posted {
		s.posted--
	} else {
		s.kickWriter() // it may wait for this batch's time on the link
	}
	s.recycleLocked(b)
	if i == 0 {
		s.armLocked()
	}
}

// settleRest gives the verdicts of a lost session; the writer has returned.
func (s *session) settleRest() {
	s.mu.Lock()
	rest, posted := s.pending, s.posted
	s.pending, s.posted, s.tasks = nil, 0, 0
	cause, ended := s.cause, s.ended
	s.mu.Unlock()
	for i, b := range rest {
		v := transfer.Verdict{Ticket: b.ticket, Settlement: pd.Uncertain, SourceFree: true, Detail: "connection lost"}
		switch {
		case ended:
			v.Detail = "engine ended"
		case isTimeout(cause):
			v.Detail = "timeout"
		}
		if !ended && i >= posted {
			v.Settlement, v.Detail = pd.Failed, "connection lost before the first byte left"
		}
		s.engine.Tell(v)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

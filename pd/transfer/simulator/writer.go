package simulator

import (
	"errors"
	"net"
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// inlineBytes is up to which length a segment is copied into the frame buffer.
// Copying 64 bytes is about 15 % cheaper than one more entry of a gathered
// write; at 4 KiB the two are equal (docs/performance.md).
const inlineBytes = 2 << 10

// posting is one segment ready to be sent.
type posting struct {
	component pd.ComponentID
	region    uint32
	offset    int64
	source    []byte
}

// batch is one submitted batch. Its fields are set by Submit and constant from
// then on, except the flags, which the session's mutex guards.
type batch struct {
	ticket        transfer.Ticket
	segments      []posting
	bytes         int64
	due, deadline time.Time
	fault         *armedFault

	// withheld: a fault keeps the answer back.
	withheld bool
	answer   answer
	// sending: the writer still refers to the batch; settled: pending does not.
	// It is used again when neither holds.
	sending, settled bool
}

func (s *session) newBatchLocked() *batch {
	if n := len(s.spare); n > 0 {
		b := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return b
	}
	return &batch{}
}

// recycleLocked is called when the batch was settled and when the writer is
// through with it; the second call frees it.
func (s *session) recycleLocked(b *batch) {
	b.settled = true
	s.reuseLocked(b)
}

func (s *session) reuseLocked(b *batch) {
	if b.sending || !b.settled {
		return
	}
	clear(b.segments)
	*b = batch{segments: b.segments[:0]}
	s.spare = append(s.spare, b)
}

// writer sends the batches of one session in order.
type writer struct {
	session *session
	timer   *time.Timer
	// frame holds head, table and small segments; vector gathers it with the
	// source bytes of large ones. Sending eats vector; gather keeps its room.
	frame  []byte
	gather [][]byte
	vector net.Buffers
}

func (w *writer) run() {
	s := w.session
	for {
		b := w.next()
		if b == nil {
			return
		}
		err := w.send(b)
		s.mu.Lock()
		b.sending = false
		s.reuseLocked(b)
		s.mu.Unlock()
		if errors.Is(err, errInjected) {
			// The target must see the end after everything that was sent, and its
			// own close ends the reader.
			continue
		}
		if err != nil {
			s.lose(err)
			return
		}
	}
}

// next waits for the oldest batch that is not posted and for its time on the
// link, and marks it posted: from here on it can only be Done or Uncertain,
// unless the target refuses it. It returns nil when the session is lost.
func (w *writer) next() *batch {
	s := w.session
	for {
		s.mu.Lock()
		if s.cause != nil {
			s.mu.Unlock()
			return nil
		}
		if s.posted == len(s.pending) {
			s.mu.Unlock()
			select {
			case <-s.kick:
			case <-s.lost:
			}
			continue
		}
		b := s.pending[s.posted]
		pause := time.Until(b.due)
		if b.due.IsZero() || pause <= 0 {
			s.posted++
			b.sending = true
			s.mu.Unlock()
			return b
		}
		s.mu.Unlock()
		w.sleep(pause)
	}
}

// sleep waits for the link. Any change to what is pending ends it early, and so
// does losing the session.
func (w *writer) sleep(pause time.Duration) {
	if w.timer == nil {
		w.timer = time.NewTimer(pause)
	} else {
		w.timer.Reset(pause)
	}
	select {
	case <-w.timer.C:
	case <-w.session.kick:
		w.timer.Stop()
	case <-w.session.lost:
		w.timer.Stop()
	}
}

// errInjected: a fault ended the session in its own way.
var errInjected = errors.New("fault")

func (w *writer) send(b *batch) error {
	s := w.session
	if b.fault.is(FlippedByte) {
		flip(b)
	}
	w.build(b)
	if b.fault.is(PartialApplyThenFailed) {
		w.cut(int64(headBytes+len(b.segments)*segmentBytes) + b.bytes/2)
	}
	if b.fault.is(RouteFailsAllPending) {
		// Lost before the target can answer, so that the loss is what counts.
		s.mu.Lock()
		s.loseLocked(errInjected)
		s.mu.Unlock()
	}
	passage.Add(1)
	if _, err := w.vector.WriteTo(s.conn); err != nil {
		return err
	}
	switch {
	case b.fault.is(PartialApplyThenFailed), b.fault.is(RouteFailsAllPending):
		return s.hangUp(nil)
	case b.fault.is(LateWriteAfterFailed):
		return s.hangUp(b)
	}
	return nil
}

// hangUp loses the session as a broken connection would, but so that the
// target still sees every byte that was sent, and only then the end. first, if
// set, is settled before the target can know.
func (s *session) hangUp(first *batch) error {
	s.mu.Lock()
	s.loseLocked(errInjected)
	settled := false
	for i, b := range s.pending {
		if b == first {
			s.removeLocked(i)
			settled = true
			break
		}
	}
	s.mu.Unlock()
	if settled {
		s.engine.Tell(transfer.Verdict{
			Ticket: first.ticket, Settlement: pd.Uncertain, SourceFree: true, Detail: "connection lost",
		})
	}
	if half, ok := s.conn.(*net.TCPConn); ok {
		if err := half.CloseWrite(); err != nil {
			return err
		}
	}
	return errInjected
}

// build lays out the batch as frame and vector.
func (w *writer) build(b *batch) {
	segments := b.segments
	size := headBytes + len(segments)*segmentBytes
	for _, p := range segments {
		if len(p.source) <= inlineBytes {
			size += len(p.source)
		}
	}
	if cap(w.frame) < size {
		w.frame = make([]byte, 0, size)
	}
	frame := w.frame[:headBytes+len(segments)*segmentBytes]
	order, delay := b.fault.directive()
	putHead(frame, head{segments: len(segments), directive: order, ticket: b.ticket, bytes: b.bytes, delay: delay})
	for i, p := range segments {
		putEntry(frame[headBytes+i*segmentBytes:], entry{region: p.region, offset: p.offset, length: int64(len(p.source))})
	}
	vector := w.gather[:0]
	from := 0
	for _, p := range segments {
		if len(p.source) <= inlineBytes {
			frame = append(frame, p.source...) // within the capacity made above
			continue
		}
		if from < len(frame) {
			vector = append(vector, frame[from:])
			from = len(frame)
		}
		vector = append(vector, p.source)
	}
	if from < len(frame) {
		vector = append(vector, frame[from:])
	}
	w.frame, w.gather, w.vector = frame[:0], vector, vector
}

// cut shortens what will be sent to the first keep bytes.
func (w *writer) cut(keep int64) {
	for i, part := range w.vector {
		if int64(len(part)) >= keep {
			w.vector[i] = part[:keep]
			w.vector = w.vector[:i+1]
			return
		}
		keep -= int64(len(part))
	}
}

// flip replaces the segment that the fault names by a copy with one byte
// inverted; the source itself stays as it is.
func flip(b *batch) {
	i := max(0, slices.IndexFunc(b.segments, func(p posting) bool { return p.component == b.fault.Component }))
	wrong := slices.Clone(b.segments[i].source)
	wrong[b.fault.Offset%int64(len(wrong))] ^= 0xff
	b.segments[i].source = wrong
}

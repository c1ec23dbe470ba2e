package owner

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// errClosed is the ordered end.
var errClosed = errors.New("closed")

// read takes what the owner says until the connection ends, and says why it did.
func (r *remote) read() error {
	for {
		if err := r.link.conn.SetReadDeadline(time.Now().Add(r.tick)); err != nil {
			return r.explain(err)
		}
		f, err := r.link.in.next()
		var timeout net.Error
		switch {
		case errors.As(err, &timeout) && timeout.Timeout():
			if err := r.ticked(); err != nil {
				return err
			}
			continue
		case err != nil:
			return r.explain(err)
		}
		m, err := decode(f, false)
		if err == nil {
			r.quiet = 0
			if _, sign := m.(pongMessage); !sign {
				r.idle = 0
			}
			err = r.take(m)
		}
		switch {
		case err == errClosed:
			return err
		case err != nil:
			return r.explain(err)
		}
	}
}

// ticked asks for a sign of life and says when there were none for too long.
// Only ticks are counted: while this process stands still, so does the count.
func (r *remote) ticked() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.quiet++
	r.idle++
	if len(r.jobs) == 0 {
		r.idle = 0
	}
	switch {
	case r.quiet > r.silent:
		return fmt.Errorf("process %d has not answered for %v", r.process.PID, time.Duration(r.quiet)*r.tick)
	case r.idle > r.stuck:
		return fmt.Errorf("the data plane of process %d has said nothing of %d open jobs for %v", r.process.PID, len(r.jobs), time.Duration(r.idle)*r.tick)
	}
	r.tellLocked(pingMessage{})
	return nil
}

// take acts on one message. An error ends the connection.
func (r *remote) take(m message) error {
	switch m := m.(type) {
	case pongMessage:
	case beganMessage:
		if j := r.job(m.Job); j != nil {
			r.reports.began(j.job)
			return nil
		}
		return malformed("the owner began a job that it was not given")
	case settledMessage:
		j := r.job(m.Job)
		if j == nil || !j.settle(m.First, m.Count) {
			return malformed("the owner settled segments %d+%d of a job that has them not open", m.First, m.Count)
		}
		if !m.Outcome.sourceFree {
			j.reading++
		}
		if j.left == 0 {
			r.mu.Lock()
			delete(r.jobs, m.Job)
			r.mu.Unlock()
			if j.reading > 0 {
				r.reading[m.Job] = j
			}
		}
		r.reports.settled(j.job, m.First, m.Count, m.Outcome)
	case freedMessage:
		j := r.job(m.Job)
		if j == nil {
			j = r.reading[m.Job]
		}
		if j == nil || j.reading == 0 {
			return malformed("the owner freed the source of a job that leaves none in use")
		}
		if j.reading--; j.reading == 0 {
			delete(r.reading, m.Job)
		}
		r.reports.sourceFreed(j.job)
	case sealedMessage:
		r.reports.sealed(r.rank, m.Handoff)
	case fencedMessage:
		return r.fenced(m)
	case copiedMessage:
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.copies) == 0 {
			return malformed("the owner copied what nobody asked for")
		}
		r.copies[0] <- m
		r.copies = r.copies[1:]
	case closedMessage:
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.over {
			return malformed("the owner closed without an order")
		}
		return errClosed
	default:
		return malformed("%T out of place", m)
	}
	return nil
}

func (r *remote) job(id uint64) *openJob {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.jobs[id]
}

// settle marks segments as reported; false if they were, or do not exist.
func (j *openJob) settle(first, count int) bool {
	if first > len(j.segments)-count {
		return false
	}
	for i := first; i < first+count; i++ {
		if bit := uint64(1) << (i % 64); j.done[i/64]&bit == 0 {
			j.done[i/64] |= bit
		} else {
			return false
		}
	}
	j.left -= count
	return true
}

// rest calls f for every run of segments that was not reported.
func (j *openJob) rest(f func(first, count int)) {
	open := func(i int) bool { return i < len(j.segments) && j.done[i/64]&(1<<(i%64)) == 0 }
	for i := 0; i < len(j.segments); i++ {
		first := i
		for open(i) {
			i++
		}
		if i > first {
			f(first, i-first)
		}
	}
}

// fenced takes the end of the oldest fence.
func (r *remote) fenced(m fencedMessage) error {
	r.mu.Lock()
	if len(r.fences) == 0 {
		r.mu.Unlock()
		return malformed("the owner fenced without an order")
	}
	f := r.fences[0]
	r.fences = r.fences[1:]
	r.mu.Unlock()
	if m.Life == nil {
		f.answer(&pd.Error{Op: fmt.Sprintf("fence rank %d", r.rank), Code: m.Code, Text: m.Text})
		return nil
	}
	if err := m.Life.check(); err != nil {
		return err
	}
	clear(r.reading) // no more is heard of them
	f.answer(r.reports.fenced(r.rank, m.Life.life()))
	return nil
}

// lose ends the connection for good. The group hears of it before anything else,
// so that it gives the rank no further jobs. Whatever is open, posted or not, is
// Uncertain and may still be read: nobody can say what the owner did with it.
func (r *remote) lose(why error) {
	r.reports.lost(r.rank, why)
	r.link.conn.Close()
	r.mu.Lock()
	r.why = why
	jobs, fences, copies := r.jobs, r.fences, r.copies
	r.jobs, r.fences, r.copies, r.outbox = nil, nil, nil, nil
	r.mu.Unlock()
	close(r.gone)
	for _, j := range jobs {
		j.rest(func(first, count int) {
			r.reports.settled(j.job, first, count, outcome{settlement: pd.Uncertain, detail: pd.CodeOwnerLost.String()})
		})
	}
	for _, f := range fences {
		f.answer(goneError(r.rank, why))
	}
	for _, c := range copies {
		close(c)
	}
}

// remoteMemory is a region that only its owner can reach.
type remoteMemory struct {
	remote    *remote
	component uint16
	bytes     int64
}

func (m *remoteMemory) Base() uintptr { return 0 }
func (m *remoteMemory) Len() int64    { return m.bytes }
func (m *remoteMemory) Bytes() []byte { return nil }

// CopyIn implements transfer.Copier.
func (m *remoteMemory) CopyIn(offset int64, from []byte) error {
	return m.copy(offset, len(from), func(first, count int) (message, func([]byte) error) {
		data := append([]byte(nil), from[first:first+count]...) // the writer takes it later
		return copyMessage{Component: m.component, Offset: offset + int64(first), Length: count, Data: data}, func(b []byte) error {
			if len(b) != 0 {
				return malformed("copied in, and %d bytes came out", len(b))
			}
			return nil
		}
	})
}

// CopyOut implements transfer.Copier.
func (m *remoteMemory) CopyOut(offset int64, to []byte) error {
	return m.copy(offset, len(to), func(first, count int) (message, func([]byte) error) {
		return copyMessage{Component: m.component, Offset: offset + int64(first), Length: count}, func(b []byte) error {
			if len(b) != count {
				return malformed("copied %d bytes out of %d", len(b), count)
			}
			copy(to[first:], b)
			return nil
		}
	})
}

func (m *remoteMemory) copy(offset int64, length int, part func(first, count int) (message, func([]byte) error)) error {
	const op = "copy"
	if offset < 0 || int64(length) > m.bytes || offset > m.bytes-int64(length) {
		return pd.Errorf(pd.CodeInvalidLength, op, "%d bytes at %d of a region of %d", length, offset, m.bytes)
	}
	r := m.remote
	for first := 0; first < length; first += maxCopyBytes {
		order, take := part(first, min(maxCopyBytes, length-first))
		answer := make(chan copiedMessage, 1)
		r.mu.Lock()
		if r.why != nil || r.over {
			r.mu.Unlock()
			return pd.Errorf(pd.CodeOwnerLost, op, "the owner of rank %d is gone or closing", r.rank)
		}
		r.copies = append(r.copies, answer)
		r.tellLocked(order)
		r.mu.Unlock()
		a, ok := <-answer
		switch {
		case !ok:
			return pd.Errorf(pd.CodeOwnerLost, op, "the owner of rank %d is gone", r.rank)
		case a.Text != "":
			return pd.Errorf(pd.CodeInternal, op, "%s", a.Text)
		}
		if err := take(a.Data); err != nil {
			return err
		}
	}
	return nil
}

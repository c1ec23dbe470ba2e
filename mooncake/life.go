package mooncake

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hw-native-sys/pypto-pd/cgo/handle"
	"github.com/hw-native-sys/pypto-pd/cgo/te"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

const (
	// pollWait is how long one call polls before Go looks around; a submit ends it
	// earlier. Each return wakes the Go runtime's own watch on such calls.
	pollWait = 10 * time.Millisecond
	// quietAfter is how long nothing happens before polls become rare: a stalled
	// peer shall not cost a part of a core. The pauses are then one part in quietShare
	// of the time for which nothing happened, and at most quietMost.
	quietAfter = 200 * time.Millisecond
	quietShare = 100
	quietMost  = 50 * time.Millisecond
	// maxOpens bounds the calls that may block in the library for a minute.
	maxOpens = 16
)

// batch is one submitted batch until the library has freed it.
type batch struct {
	ticket   transfer.Ticket
	session  *session // nil for a read
	segments int
	begun    time.Time
	// read is set for a read of an identity row.
	read *rowRead

	// guarded by life.mu; reading: its verdict left the source in use.
	settled, reading bool
}

// life is one native engine, from create to destroy.
type life struct {
	// constant
	engine *engine
	native *te.Engine
	opens  chan struct{} // a token per OpenSegment that has not returned
	kick   chan struct{}
	stop   chan struct{}
	done   chan struct{}

	windows  map[string]*window // by endpoint; owned by the caller's goroutine
	held     int                // tokens of opens that idle has; owned by its caller
	ended    atomic.Bool
	openLate atomic.Int64 // batches that were settled before they ended
	batches  handle.Table[*batch]

	mu sync.Mutex
	// waiting are batches in the order of their time-outs, which is that of their
	// submits; settled ones leave it when they come to the front.
	waiting []*batch
}

func startLife(e *engine, native *te.Engine) *life {
	l := &life{
		engine: e, native: native, opens: make(chan struct{}, maxOpens), windows: map[string]*window{},
		kick: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go l.poll()
	return l
}

// submit begins a batch. After an error nothing was begun.
func (l *life) submit(op te.Opcode, requests []te.Request, b *batch) error {
	b.begun = time.Now()
	owner := l.batches.Put(b)
	l.mu.Lock()
	l.waiting = append(l.waiting, b)
	l.mu.Unlock()
	err := l.native.Submit(op, requests, owner)
	if broken, ok := err.(*te.Error); err == nil || ok && !broken.Refused() { // the concrete type: te wraps nothing
		select {
		case l.kick <- struct{}{}:
		default:
		}
		return nil
	}
	l.batches.Take(owner)
	l.mu.Lock()
	b.settled = true
	l.mu.Unlock()
	return err
}

// poll asks for the ends of batches until the life is stopped.
func (l *life) poll() {
	defer close(l.done)
	// Never unlocked: what freed batches leave behind in the thread goes with it.
	runtime.LockOSThread()
	te.Yielding()
	var reports []te.Report
	pause := time.NewTimer(time.Hour)
	defer pause.Stop()
	last := time.Now()
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		if l.native.Live() == 0 {
			select {
			case <-l.stop:
				return
			case <-l.kick:
				last = time.Now()
			}
			continue
		}
		select {
		case <-l.kick:
			last = time.Now()
		default:
		}
		reports = l.native.Poll(reports[:0], pollWait, time.Since(last))
		now := time.Now()
		for i := range reports {
			l.report(&reports[i], now)
		}
		if l.expire(now) || len(reports) > 0 {
			last = now
		}
		quiet := now.Sub(last)
		if quiet < quietAfter {
			continue
		}
		pause.Reset(min(quiet/quietShare, quietMost))
		select {
		case <-l.stop:
			return
		case <-l.kick:
			last = time.Now()
		case <-pause.C:
		}
	}
}

// report takes in what polling has learnt of one batch.
func (l *life) report(r *te.Report, now time.Time) {
	b, ok := l.batches.Get(r.Owner)
	if !ok {
		return // ended before, and only now freed
	}
	if r.Ended {
		l.batches.Take(r.Owner)
		if b.session != nil {
			// Before the verdict: who has it may submit as much again.
			b.session.count(-b.segments)
		}
	}
	o := &l.engine.provider.options
	l.settle(b, r, endingOf(r, o.Protocol, now.Sub(b.begun), o.TransferTimeout))
	if r.Ended && b.read != nil {
		b.read.end(r)
	}
}

// expire settles the batches whose time is over.
func (l *life) expire(now time.Time) (any bool) {
	for {
		l.mu.Lock()
		for len(l.waiting) > 0 && l.waiting[0].settled {
			l.waiting[0] = nil
			l.waiting = l.waiting[1:]
		}
		var b *batch
		if len(l.waiting) > 0 && now.Sub(l.waiting[0].begun) >= l.engine.timeout {
			b = l.waiting[0]
		}
		l.mu.Unlock()
		if b == nil {
			return any
		}
		any = true
		l.settle(b, &te.Report{Tasks: b.segments}, attemptOver)
	}
}

// settle gives a batch its verdict, unless it has one.
func (l *life) settle(b *batch, r *te.Report, how ending) {
	p := proofOf(how)
	provider := l.engine.provider
	sourceFree := p.sourceFree(provider.options.Protocol)
	l.mu.Lock()
	was, reading := b.settled, b.reading
	b.settled, b.reading = true, !sourceFree
	l.mu.Unlock()
	if was {
		if r.Ended {
			l.lateEnded(1)
			if reading && sourceFree && b.session != nil {
				l.engine.Tell(transfer.Verdict{Ticket: b.ticket, Settlement: pd.Uncertain, SourceFree: true, Detail: "ended after its verdict: " + detail(r, p)})
			}
		}
		return
	}
	if !r.Ended && how != engineGone {
		provider.late.Add(1)
		provider.openLate.Add(1)
		l.openLate.Add(1)
	}
	if b.session == nil {
		return
	}
	if how != allCompleted {
		// What went wrong once on this way is not tried again on it.
		b.session.dead.Store(true)
	}
	l.engine.Tell(transfer.Verdict{
		Ticket: b.ticket, Settlement: p.settlement,
		SourceFree: sourceFree, Detail: detail(r, p),
	})
}

// lateEnded counts batches that ended after they were settled.
func (l *life) lateEnded(n int64) {
	l.openLate.Add(-n)
	l.engine.provider.openLate.Add(-n)
}

// halt stops the polling. No call into the engine follows but those that were
// begun before, which idle waits for.
func (l *life) halt() {
	if !l.ended.Swap(true) {
		close(l.stop)
	}
	<-l.done
}

// idle waits until no OpenSegment is in the library any more, and lets none in.
// It may be called again after an error.
func (l *life) idle(ctx context.Context) error {
	for l.held < maxOpens {
		select {
		case l.opens <- struct{}{}:
			l.held++
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// abandon settles everything that is unsettled, as the engine is gone or
// hangs.
func (l *life) abandon(destroyed bool) {
	l.mu.Lock()
	waiting := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	how := engineGone
	if !destroyed {
		how = attemptOver
	}
	for _, b := range waiting {
		l.settle(b, &te.Report{Tasks: b.segments}, how)
	}
	if destroyed {
		l.lateEnded(l.openLate.Load())
	}
}

// check refuses work for a life that has ended.
func (l *life) check(op string) error {
	if l == nil || l.ended.Load() {
		return pd.Errorf(pd.CodeOwnerLost, op, "the engine was closed or fenced")
	}
	return nil
}

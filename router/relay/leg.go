package relay

import (
	"context"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// Leg is one upstream request of a call. Its goroutine sends the request and
// waits for the answer's head; the answer then belongs to whoever started it.
type Leg struct {
	// constant
	cancel  context.CancelCauseFunc
	sent    chan struct{}
	head    chan struct{}
	started time.Time

	// written before head is closed
	exchange *edge.Exchange
	err      error
	headAt   time.Time
}

// Start sends a request. It ends with ctx or Cancel. The request's fields are
// borrowed until Sent is closed.
func Start(ctx context.Context, client *edge.Client, r edge.Request) *Leg {
	ctx, cancel := context.WithCancelCause(ctx)
	l := &Leg{cancel: cancel, sent: make(chan struct{}), head: make(chan struct{}), started: time.Now()}
	go l.run(ctx, client, r)
	return l
}

func (l *Leg) run(ctx context.Context, client *edge.Client, r edge.Request) {
	x, err := client.Send(ctx, r)
	close(l.sent)
	if err == nil {
		if err = x.Await(); err != nil {
			x.Close()
			x = nil
		}
	}
	l.exchange, l.err, l.headAt = x, err, time.Now()
	close(l.head)
}

// Sent is closed when the request was sent or has failed: nothing of it is
// borrowed any more.
func (l *Leg) Sent() <-chan struct{} { return l.sent }

// Head is closed when the answer's head is there or the leg has failed. The
// leg's goroutine has then ended.
func (l *Leg) Head() <-chan struct{} { return l.head }

// Answer is the exchange after its head, or the error, an *edge.ExchangeError.
// It waits for Head. The caller closes the exchange.
func (l *Leg) Answer() (*edge.Exchange, error) {
	<-l.head
	return l.exchange, l.err
}

// Cancel closes the leg's connection, whatever it waits for; its reads then
// return why. It is harmless after the leg's end, and must be called at some
// time to release the leg's context.
func (l *Leg) Cancel(why error) { l.cancel(why) }

// Close cancels the leg, waits for its goroutine and closes its exchange.
func (l *Leg) Close(why error) {
	l.cancel(why)
	<-l.head
	if l.exchange != nil {
		l.exchange.Close()
	}
}

// Elapsed is how long the head took; it waits for Head.
func (l *Leg) Elapsed() time.Duration {
	<-l.head
	return l.headAt.Sub(l.started)
}

package relay

import (
	"context"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// Leg is one upstream request of a call, which its owner can await and cancel
// from other goroutines than the one that runs it.
type Leg struct {
	// constant
	ctx     context.Context
	cancel  context.CancelCauseFunc
	client  *edge.Client
	request edge.Request
	sent    chan struct{}
	head    chan struct{}

	// written before head is closed
	exchange *edge.Exchange
	err      error
	took     time.Duration
}

// NewLeg prepares a request that ends with ctx or Cancel. Its fields are
// borrowed until Sent is closed.
func NewLeg(ctx context.Context, client *edge.Client, r edge.Request) *Leg {
	ctx, cancel := context.WithCancelCause(ctx)
	return &Leg{ctx: ctx, cancel: cancel, client: client, request: r, sent: make(chan struct{}), head: make(chan struct{})}
}

// Run sends the request and waits for the answer's head. It is called once, on
// a goroutine of the owner's.
func (l *Leg) Run() {
	started := time.Now()
	x, err := l.client.Send(l.ctx, l.request)
	l.request = edge.Request{}
	close(l.sent)
	if err == nil {
		if err = x.Await(); err != nil {
			x.Close()
			x = nil
		}
	}
	l.exchange, l.err, l.took = x, err, time.Since(started)
	close(l.head)
}

// Sent is closed when the request was sent or has failed: nothing of it is
// borrowed any more.
func (l *Leg) Sent() <-chan struct{} { return l.sent }

// Head is closed when the answer's head is there or the leg has failed.
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

// Close cancels the leg, waits for Run and closes the exchange. It is the last use
// of the answer, which is let go of: a leg that has ended may be known for long.
func (l *Leg) Close(why error) {
	l.cancel(why)
	<-l.head
	if l.exchange != nil {
		l.exchange.Close()
		l.exchange, l.err = nil, why
	}
}

// Took is how long the head took; it waits for Head.
func (l *Leg) Took() time.Duration {
	<-l.head
	return l.took
}

package engine

import (
	"context"
	"sync"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Pipe is a Stream whose outputs are sent by an engine. It is bounded by the
// request's own token limit: an engine sends each token once.
type Pipe struct {
	// constant
	stop func()
	wake chan struct{}

	// guarded by mu
	mu     sync.Mutex
	queue  []Output
	closed bool
}

// NewPipe makes an empty pipe. stop is called once, by the first Close before
// the end; it must not block.
func NewPipe(stop func()) *Pipe {
	return &Pipe{stop: stop, wake: make(chan struct{}, 1)}
}

// Send appends one output. It never blocks. What follows an output with Finish
// set is dropped: a request has one end.
func (p *Pipe) Send(o Output) {
	p.mu.Lock()
	if n := len(p.queue); n == 0 || p.queue[n-1].Finish == 0 {
		p.queue = append(p.queue, o)
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Next implements Stream. Outputs that wait are joined into one, so that a slow
// reader costs no memory per token.
func (p *Pipe) Next(ctx context.Context) (Output, error) {
	for {
		p.mu.Lock()
		if len(p.queue) > 0 {
			o := p.queue[0]
			for _, more := range p.queue[1:] {
				o.Tokens = append(o.Tokens, more.Tokens...)
				o.Text += more.Text
				o.Finish, o.Err, o.Usage = more.Finish, more.Err, more.Usage
			}
			p.queue = nil
			if o.Finish != 0 {
				p.closed = true
			}
			p.mu.Unlock()
			return o, nil
		}
		p.mu.Unlock()
		select {
		case <-p.wake:
		case <-ctx.Done():
			return Output{}, context.Cause(ctx)
		}
	}
}

// Close implements Stream.
func (p *Pipe) Close() {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.mu.Unlock()
	if first && p.stop != nil {
		p.stop()
	}
}

// Failure is the last output of a request that failed.
func Failure(err error) Output { return Output{Finish: pd.FinishFailed, Err: err} }

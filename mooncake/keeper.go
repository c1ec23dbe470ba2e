package mooncake

import (
	"context"
	"runtime"
)

// keeper is one OS thread that makes the calls which need it. The device's
// context belongs to the thread, so it ends with the thread.
type keeper struct {
	orders chan order
	done   chan struct{}
}

type order struct {
	call  func()
	ended chan struct{}
}

func startKeeper() *keeper {
	k := &keeper{orders: make(chan order), done: make(chan struct{})}
	go func() {
		defer close(k.done)
		// Never unlocked: the thread is not for anybody else.
		runtime.LockOSThread()
		for o := range k.orders {
			o.call()
			close(o.ended)
		}
	}()
	return k
}

// start hands a call to the thread and returns a channel that closes when the
// call returned. It waits for earlier calls until ctx ends.
func (k *keeper) start(ctx context.Context, call func()) (<-chan struct{}, error) {
	o := order{call: call, ended: make(chan struct{})}
	select {
	case k.orders <- o:
		return o.ended, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// do makes a call on the thread and waits for it. Calls that do not touch the
// network only: they are not abandoned.
func (k *keeper) do(call func()) {
	ended, _ := k.start(context.Background(), call) // a context that does not end gives no error
	<-ended
}

// end lets the thread go after the calls that it was given.
func (k *keeper) end() {
	close(k.orders)
	<-k.done
}

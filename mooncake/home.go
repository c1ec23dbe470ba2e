package mooncake

import (
	"fmt"
	"sync/atomic"

	"github.com/hw-native-sys/pypto-pd/cgo/te"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// homeBytes is the size of the memory that an engine has for itself: one
// identity row, which peers read, and as many rows to read those of peers into.
// It is what host memory is aligned to on Ascend.
const homeBytes = 64 << 10

// home is an engine's own registered memory. It outlives every fence, so that
// the row stays where envelopes say it is.
type home struct {
	memory memory
	slots  chan int // free places for rows of peers
	free   func() error
}

// memory is memory that is reached through copies, because it may be a
// device's.
type memory interface {
	transfer.Memory
	transfer.Copier
}

// allocator gives memory of the kind that the protocol moves.
type allocator interface {
	allocate(bytes int64) (memory, func() error, error)
}

func newHome(a allocator) (*home, error) {
	m, free, err := a.allocate(homeBytes)
	if err != nil {
		return nil, fmt.Errorf("memory for the identity row: %w", err)
	}
	h := &home{memory: m, free: free}
	h.reset()
	return h, nil
}

// reset takes every place back. Nothing may read into any.
func (h *home) reset() {
	const places = homeBytes/transfer.RowBytes - 1
	h.slots = make(chan int, places)
	for i := range places {
		h.slots <- i + 1
	}
}

// write sets the engine's own row.
func (h *home) write(i transfer.Identity) error {
	row := i.Row()
	return h.memory.CopyIn(0, row[:])
}

// rowRead is one read of a peer's row. Whoever is last of the two, the reader
// who gives up and the batch that ends, gives the place back.
type rowRead struct {
	slots  chan<- int
	slot   int
	answer chan te.Report // has room for one
	left   atomic.Bool
}

// end takes the end of the batch in.
func (r *rowRead) end(report *te.Report) {
	if r.left.Swap(true) {
		r.slots <- r.slot
		return
	}
	r.answer <- *report
}

// abandon leaves the read to itself.
func (r *rowRead) abandon() {
	if r.left.Swap(true) {
		r.slots <- r.slot
	}
}

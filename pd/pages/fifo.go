package pages

import (
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// fifo is a queue of ids with a fixed bound: what came back first goes out
// first, so that reuse is as late as possible.
type fifo struct {
	ids  []pd.Page
	head int
	n    int
}

// newFIFO makes a queue that holds 0..n-1.
func newFIFO(n int) fifo {
	f := fifo{ids: make([]pd.Page, n), n: n}
	for i := range f.ids {
		f.ids[i] = pd.Page(i)
	}
	return f
}

func (f *fifo) len() int { return f.n }

func (f *fifo) pop() pd.Page {
	id := f.ids[f.head]
	f.head = (f.head + 1) % len(f.ids)
	f.n--
	return id
}

func (f *fifo) push(id pd.Page) {
	f.ids[(f.head+f.n)%len(f.ids)] = id
	f.n++
}

// check compares the queue with reference counts: free exactly once if zero.
func (f *fifo) check(refs []int32) error {
	seen := make([]bool, len(refs))
	for i := range f.n {
		id := f.ids[(f.head+i)%len(f.ids)]
		if seen[id] || refs[id] != 0 {
			return fmt.Errorf("id %d is free and has %d references (twice free: %t)", id, refs[id], seen[id])
		}
		seen[id] = true
	}
	for id, r := range refs {
		if r == 0 && !seen[id] {
			return fmt.Errorf("id %d is neither free nor held", id)
		}
	}
	return nil
}

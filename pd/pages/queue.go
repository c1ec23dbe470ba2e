package pages

import (
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// queue holds ids in the order in which they came back: what stands there the
// longest goes out first, so that reuse is as late as possible. An id can be
// taken out of the middle.
type queue struct {
	next, prev []int32 // the last place is the anchor of the ring
	n          int
}

const absent = -1

// newQueue makes a queue that holds 0..n-1 in order.
func newQueue(n int) queue {
	q := newEmptyQueue(n)
	for i := range n {
		q.push(pd.Page(i))
	}
	return q
}

// newEmptyQueue makes a queue that can hold 0..n-1.
func newEmptyQueue(n int) queue {
	q := queue{next: make([]int32, n+1), prev: make([]int32, n+1)}
	q.next[n], q.prev[n] = int32(n), int32(n)
	for i := range n {
		q.next[i] = absent
	}
	return q
}

func (q *queue) anchor() int32 { return int32(len(q.next) - 1) }

func (q *queue) len() int { return q.n }

func (q *queue) holds(id pd.Page) bool { return q.next[id] != absent }

// push puts an id at the end.
func (q *queue) push(id pd.Page) {
	a := q.anchor()
	last := q.prev[a]
	q.next[last], q.prev[id], q.next[id], q.prev[a] = int32(id), last, a, int32(id)
	q.n++
}

// remove takes an id out, wherever it stands.
func (q *queue) remove(id pd.Page) {
	q.next[q.prev[id]], q.prev[q.next[id]] = q.next[id], q.prev[id]
	q.next[id] = absent
	q.n--
}

// pop takes the id that is free the longest.
func (q *queue) pop() pd.Page {
	id := pd.Page(q.next[q.anchor()])
	q.remove(id)
	return id
}

// check compares the queue with what it should hold.
func (q *queue) check(want []bool) error {
	n := 0
	for id := q.next[q.anchor()]; id != q.anchor(); id = q.next[id] {
		if n++; n > len(want) {
			return fmt.Errorf("it runs in a circle")
		}
		if !want[id] {
			return fmt.Errorf("it holds id %d", id)
		}
	}
	for id, in := range want {
		if in != q.holds(pd.Page(id)) {
			return fmt.Errorf("id %d stands in it: %t, want %t", id, !in, in)
		}
	}
	if n != q.n {
		return fmt.Errorf("it counts %d ids and holds %d", q.n, n)
	}
	return nil
}

package pages

import (
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// queue holds free ids in the order in which they came back: what is free the
// longest goes out first, so that reuse is as late as possible and a cached
// page lives as long as possible. An id can be taken out of the middle.
type queue struct {
	next, prev []int32 // the last place is the anchor of the ring
	n          int
}

const absent = -1

// newQueue makes a queue that holds 0..n-1 in order.
func newQueue(n int) queue {
	q := queue{next: make([]int32, n+1), prev: make([]int32, n+1)}
	q.next[n], q.prev[n] = int32(n), int32(n)
	for i := range n {
		q.next[i] = absent
		q.push(pd.Page(i))
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

// check compares the queue with reference counts: free exactly if zero.
func (q *queue) check(refs []int32) error {
	n := 0
	for id := q.next[q.anchor()]; id != q.anchor(); id = q.next[id] {
		if n++; n > len(refs) {
			return fmt.Errorf("the free queue runs in a circle")
		}
		if refs[id] != 0 {
			return fmt.Errorf("id %d is free and has %d references", id, refs[id])
		}
	}
	for id, r := range refs {
		if (r == 0) != q.holds(pd.Page(id)) {
			return fmt.Errorf("id %d has %d references and is free: %t", id, r, q.holds(pd.Page(id)))
		}
	}
	if n != q.n {
		return fmt.Errorf("the free queue counts %d ids and holds %d", q.n, n)
	}
	return nil
}

// Package handle names native objects by numbers that cannot be mistaken for
// one another: a handle holds a generation, so the handle of an object that has
// ended never names the one that took its place. A native id, which a library
// may follow as a pointer, stays behind its handle.
//
// It owns the slots and refuses to know what is in them. It starts no
// goroutine.
package handle

import "sync"

// Handle names one object of one Table; it is never reused. The zero Handle
// names nothing.
type Handle uint64

func join(index, generation uint32) Handle { return Handle(uint64(generation)<<32 | uint64(index)) }

func (h Handle) index() uint32      { return uint32(h) }
func (h Handle) generation() uint32 { return uint32(h >> 32) }

// Table holds objects of one kind. The zero Table is empty and ready; it is
// safe for concurrent use.
type Table[T any] struct {
	mu    sync.Mutex
	slots []slot[T]
	// free are the indexes of empty slots; a slot whose generation is used up is
	// not among them any more.
	free []uint32
	live int
}

type slot[T any] struct {
	value      T
	generation uint32
	used       bool
}

// Put keeps a value and returns its handle.
func (t *Table[T]) Put(value T) Handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live++
	if n := len(t.free); n > 0 {
		i := t.free[n-1]
		t.free = t.free[:n-1]
		s := &t.slots[i]
		s.value, s.used = value, true
		return join(i, s.generation)
	}
	t.slots = append(t.slots, slot[T]{value: value, generation: 1, used: true})
	return join(uint32(len(t.slots)-1), 1)
}

// Get finds the value of a handle; false if the handle has ended or never was.
func (t *Table[T]) Get(h Handle) (T, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.find(h); s != nil {
		return s.value, true
	}
	var none T
	return none, false
}

// Take ends a handle and returns its value; false if it had ended.
func (t *Table[T]) Take(h Handle) (T, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var none T
	s := t.find(h)
	if s == nil {
		return none, false
	}
	value := s.value
	s.value, s.used = none, false
	t.live--
	if s.generation++; s.generation != 0 {
		t.free = append(t.free, h.index())
	}
	return value, true
}

// Len counts the live handles.
func (t *Table[T]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live
}

func (t *Table[T]) find(h Handle) *slot[T] {
	if uint64(h.index()) >= uint64(len(t.slots)) {
		return nil
	}
	s := &t.slots[h.index()]
	if !s.used || s.generation != h.generation() {
		return nil
	}
	return s
}

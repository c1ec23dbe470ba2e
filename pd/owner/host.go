package owner

import (
	"unsafe"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// HostArena is host memory of this process, for providers that write host
// memory. It is not safe for concurrent use.
type HostArena struct {
	blocks []*hostMemory
	closed bool
}

// NewHostArena makes an empty arena.
func NewHostArena() *HostArena { return &HostArena{} }

// Allocate returns zeroed memory whose base is a multiple of
// transfer.Alignment.
func (a *HostArena) Allocate(component pd.ComponentID, bytes int64) (transfer.Memory, error) {
	op := "allocate " + string(component)
	switch {
	case a.closed:
		return nil, pd.Errorf(pd.CodeOwnerLost, op, "the arena is closed")
	case bytes <= 0 || bytes > int64(maxInt)-transfer.Alignment:
		return nil, pd.Errorf(pd.CodeInvalidConfig, op, "%d bytes: want more than 0 and what can be addressed", bytes)
	}
	room := make([]byte, bytes+transfer.Alignment)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(room))) % transfer.Alignment
	m := &hostMemory{bytes: room[skip : skip+uintptr(bytes) : skip+uintptr(bytes)]}
	a.blocks = append(a.blocks, m)
	return m, nil
}

const maxInt = int(^uint(0) >> 1)

// Close lets the memory go; no engine may have it registered.
func (a *HostArena) Close() error {
	for _, m := range a.blocks {
		m.bytes = nil
	}
	a.blocks, a.closed = nil, true
	return nil
}

// hostMemory is one allocation. The heap of Go does not move.
type hostMemory struct{ bytes []byte }

func (m *hostMemory) Base() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(m.bytes))) }
func (m *hostMemory) Len() int64    { return int64(len(m.bytes)) }
func (m *hostMemory) Bytes() []byte { return m.bytes }

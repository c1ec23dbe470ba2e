package host

import (
	"unsafe"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// hostMemory is an arena that the host gave. The host keeps it where it is until
// Close has returned nil.
type hostMemory struct {
	base  uintptr
	bytes []byte
}

func (m *hostMemory) Base() uintptr { return m.base }
func (m *hostMemory) Len() int64    { return int64(len(m.bytes)) }
func (m *hostMemory) Bytes() []byte { return m.bytes }

// arena is the host's memory of one rank; the owner of that rank allocates from
// it.
type arena map[pd.ComponentID]*hostMemory

// give takes memory from the host. It must not overlap what others were given.
func (a arena) give(component pd.ComponentID, address uintptr, bytes int64, others ...arena) error {
	bad := func(format string, args ...any) error {
		return pd.Errorf(pd.CodeInvalidRequest, "memory of "+string(component), format, args...)
	}
	switch {
	case a[component] != nil:
		return bad("it was given before")
	case address == 0 || address%transfer.Alignment != 0:
		return bad("the address must be a multiple of %d bytes", transfer.Alignment)
	case bytes <= 0 || uint64(address)+uint64(bytes) < uint64(address):
		return bad("%d bytes from there", bytes)
	}
	for rank, other := range others {
		for name, m := range other {
			if address < m.base+uintptr(len(m.bytes)) && m.base < address+uintptr(bytes) {
				return bad("it overlaps %s of rank %d", name, rank)
			}
		}
	}
	a[component] = &hostMemory{base: address, bytes: unsafe.Slice((*byte)(pointer(address)), bytes)}
	return nil
}

// pointer turns an address of C memory into a pointer without passing through
// an integer that the compiler would take for one.
func pointer(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// Allocate implements transfer.Arena.
func (a arena) Allocate(component pd.ComponentID, bytes int64) (transfer.Memory, error) {
	m := a[component]
	if m == nil || m.Len() != bytes {
		return nil, pd.Errorf(pd.CodeInvalidConfig, "start", "the memory of %s (%d bytes) was not given", component, bytes)
	}
	return m, nil
}

// Close implements transfer.Arena; the memory is the host's.
func (a arena) Close() error { return nil }

package mooncake

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"unsafe"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// Arena is memory of the kind that the provider's protocol moves: of this
// process outside the Go heap for TCP, because the library keeps addresses
// between calls; of the rank's device for Ascend. It is not safe for concurrent
// use.
type Arena struct {
	allocator allocator
	frees     []func() error
	finish    func()
	closed    bool
}

// NewArena makes an empty arena for one rank. The caller closes it after the
// rank's engine.
func (p *Provider) NewArena(rank pd.Rank) (transfer.Arena, error) {
	if p.options.Protocol == TCP {
		return &Arena{allocator: hostAllocator{}, finish: func() {}}, nil
	}
	_, api, err := p.load("")
	if err != nil {
		return nil, err
	}
	k := startKeeper()
	device, err := openDevice(api, k, p.options.Device(rank))
	if err != nil {
		k.end()
		return nil, &pd.Error{Op: fmt.Sprintf("open device of rank %d", rank), Code: pd.CodeInternal, Err: err}
	}
	return &Arena{allocator: device, finish: k.end}, nil
}

// Allocate implements transfer.Arena. Memory of a device has no Bytes; it is a
// DeviceMemory.
func (a *Arena) Allocate(component pd.ComponentID, bytes int64) (transfer.Memory, error) {
	op := "allocate " + string(component)
	switch {
	case a.closed:
		return nil, pd.Errorf(pd.CodeOwnerLost, op, "the arena is closed")
	case bytes <= 0 || bytes > maxAllocation:
		return nil, pd.Errorf(pd.CodeInvalidConfig, op, "%d bytes: want 1..%d", bytes, int64(maxAllocation))
	}
	m, free, err := a.allocator.allocate(bytes)
	if err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeCapacityExhausted, Text: fmt.Sprintf("%d bytes", bytes), Err: err}
	}
	a.frees = append(a.frees, free)
	return m, nil
}

// maxAllocation is above any device and far from an overflow.
const maxAllocation = 1 << 46

// Close implements transfer.Arena. It is idempotent.
func (a *Arena) Close() error {
	if a.closed {
		return nil
	}
	a.closed = true
	var all []error
	for _, free := range a.frees {
		all = append(all, free())
	}
	a.frees = nil
	a.finish()
	return errors.Join(all...)
}

// hostAllocator maps memory of this process.
type hostAllocator struct{}

func (hostAllocator) allocate(bytes int64) (memory, func() error, error) {
	b, err := syscall.Mmap(-1, 0, int(bytes), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, nil, fmt.Errorf("mmap: %w", err)
	}
	return hostMemory(b), func() error { return syscall.Munmap(b) }, nil
}

// hostMemory is one mapping, aligned to pages.
type hostMemory []byte

func (m hostMemory) Base() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(m))) }
func (m hostMemory) Len() int64    { return int64(len(m)) }
func (m hostMemory) Bytes() []byte { return m }

func (m hostMemory) CopyIn(offset int64, from []byte) error {
	if err := checkRange(len(from), offset, m.Len()); err != nil {
		return err
	}
	copy(m[offset:], from)
	return nil
}

func (m hostMemory) CopyOut(offset int64, to []byte) error {
	if err := checkRange(len(to), offset, m.Len()); err != nil {
		return err
	}
	copy(to, m[offset:])
	return nil
}

// checkRange refuses a copy that leaves the memory.
func checkRange(n int, offset, length int64) error {
	if offset < 0 || int64(n) > length || offset > length-int64(n) {
		return fmt.Errorf("%d bytes at %d of %d: %w", n, offset, length, io.ErrUnexpectedEOF)
	}
	return nil
}

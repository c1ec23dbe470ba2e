package owner

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// pageBytes is what an allocation in shared memory is rounded up to.
var pageBytes = int64(os.Getpagesize())

// newMemoryFile makes an empty file that only lives in memory. The caller closes
// it.
func newMemoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("create shared memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// SharedArena is host memory in a memory file that a node and the owner process
// of one rank both map: the owner registers it, the node's engine computes in
// it. It is not safe for concurrent use.
type SharedArena struct {
	file   *os.File
	blocks []*sharedMemory
	size   int64
	sealed bool
	closed bool
}

// NewSharedArena makes an arena that fills a memory file, which stays the
// caller's.
func NewSharedArena(file *os.File) *SharedArena { return &SharedArena{file: file} }

// Allocate returns zeroed memory whose base is a page's.
func (a *SharedArena) Allocate(component pd.ComponentID, bytes int64) (transfer.Memory, error) {
	op := "allocate " + string(component)
	switch {
	case a.closed || a.sealed:
		return nil, pd.Errorf(pd.CodeOwnerLost, op, "the arena is closed or sealed")
	case bytes <= 0 || bytes > int64(maxInt)-a.size-pageBytes:
		return nil, pd.Errorf(pd.CodeInvalidConfig, op, "%d bytes: want more than 0 and what can be addressed", bytes)
	}
	offset := a.size
	size := offset + (bytes+pageBytes-1)/pageBytes*pageBytes
	if err := unix.Ftruncate(int(a.file.Fd()), size); err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeInvalidConfig, Text: fmt.Sprintf("grow shared memory to %d bytes", size), Err: err}
	}
	m, err := mapShared(a.file, offset, bytes)
	if err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeInvalidConfig, Err: err}
	}
	a.size = size
	a.blocks = append(a.blocks, m)
	return m, nil
}

// seal ends allocation and fixes the file's length for good: whoever maps it
// cannot lose the memory under its hands.
func (a *SharedArena) seal() error {
	if _, err := unix.FcntlInt(a.file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("seal shared memory: %w", err)
	}
	a.sealed = true
	return nil
}

// Close unmaps the memory; no engine may have it registered, and nobody of this
// process may look at it any more.
func (a *SharedArena) Close() error {
	a.closed = true
	return closeBlocks(a.blocks)
}

func closeBlocks(blocks []*sharedMemory) error {
	var all []error
	for _, m := range blocks {
		all = append(all, m.unmap())
	}
	return errors.Join(all...)
}

// sharedMemory is one mapped range of a memory file.
type sharedMemory struct {
	bytes  []byte
	offset int64
}

func mapShared(file *os.File, offset, bytes int64) (*sharedMemory, error) {
	b, err := unix.Mmap(int(file.Fd()), offset, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of shared memory: %w", bytes, err)
	}
	return &sharedMemory{bytes: b, offset: offset}, nil
}

// adoptShared maps what an owner process says that it made. The file must be
// sealed: a shorter one would end this process at its next access.
func adoptShared(file *os.File, regions []madeInto) (map[pd.ComponentID]transfer.Memory, []*sharedMemory, error) {
	seals, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, nil, malformed("the owner's shared memory is not sealed (%v)", err)
	}
	info, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	memory, blocks := map[pd.ComponentID]transfer.Memory{}, []*sharedMemory{}
	for _, r := range regions {
		offset := r.Offset - 1
		if offset < 0 || offset%pageBytes != 0 || r.Bytes < 1 || r.Bytes > info.Size() || offset > info.Size()-r.Bytes {
			return nil, blocks, malformed("region %s of %d bytes at %d of %d bytes of shared memory", r.Component, r.Bytes, offset, info.Size())
		}
		m, err := mapShared(file, offset, r.Bytes)
		if err != nil {
			return nil, blocks, err
		}
		memory[r.Component] = m
		blocks = append(blocks, m)
	}
	return memory, blocks, nil
}

func (m *sharedMemory) unmap() error {
	if m.bytes == nil {
		return nil
	}
	b := m.bytes
	m.bytes = nil
	return unix.Munmap(b)
}

func (m *sharedMemory) Base() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(m.bytes))) }
func (m *sharedMemory) Len() int64    { return int64(len(m.bytes)) }
func (m *sharedMemory) Bytes() []byte { return m.bytes }

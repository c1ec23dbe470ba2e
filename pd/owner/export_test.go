package owner

import (
	"fmt"
	"os"
)

// MemoryFiles is one memory file, opened twice.
func MemoryFiles(name string) (a, b *os.File, err error) {
	if a, err = newMemoryFile(name); err != nil {
		return nil, nil, err
	}
	b, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", a.Fd()), os.O_RDWR, 0)
	return a, b, err
}

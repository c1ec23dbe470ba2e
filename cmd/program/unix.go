package program

import (
	"fmt"
	"os"
	"path/filepath"
)

// UnixSocket gives a path for a socket in a folder that stays below the 108
// bytes that the kernel allows, however long the folder's own path is. The path
// is valid in this process until done is called.
func UnixSocket(folder, name string) (path string, done func(), err error) {
	d, err := os.Open(folder)
	if err != nil {
		return "", nil, fmt.Errorf("open the folder of socket %s: %w", name, err)
	}
	return filepath.Join("/proc/self/fd", fmt.Sprint(d.Fd()), name), func() { d.Close() }, nil
}

package mooncake

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// ownListeners gives the TCP ports on which this process listens; known is
// false where that cannot be seen.
func ownListeners() (ports map[int]bool, known bool) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, false
	}
	sockets := map[string]bool{}
	for _, f := range files {
		link, err := os.Readlink("/proc/self/fd/" + f.Name())
		if inode, ok := strings.CutPrefix(link, "socket:["); err == nil && ok {
			sockets[strings.TrimSuffix(inode, "]")] = true
		}
	}
	ports = map[int]bool{}
	for _, name := range []string{"/proc/self/net/tcp6", "/proc/self/net/tcp"} {
		table, err := os.Open(name)
		if err != nil {
			continue // no such family here
		}
		known = true
		listeners(table, func(port int, inode string) {
			if sockets[inode] {
				ports[port] = true
			}
		})
		table.Close()
	}
	return ports, known
}

// listeners reads a table of sockets up to the first that does not listen:
// those that do come first, and the others may be many.
func listeners(table io.Reader, found func(port int, inode string)) {
	lines := bufio.NewScanner(table)
	lines.Scan() // the heading
	for lines.Scan() {
		// sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode; 0A
		// is LISTEN.
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[3] != "0A" {
			return
		}
		_, digits, _ := strings.Cut(f[1], ":")
		if port, err := strconv.ParseUint(digits, 16, 16); err == nil {
			found(int(port), f[9])
		}
	}
}

// rlimitMemlock is RLIMIT_MEMLOCK of Linux.
const rlimitMemlock = 8

// memlock is how many bytes this process may pin; unlimited is ^0.
func memlock() (uint64, error) {
	var limit syscall.Rlimit
	err := syscall.Getrlimit(rlimitMemlock, &limit)
	return limit.Cur, err
}

func memlockText() string {
	n, err := memlock()
	switch {
	case err != nil:
		return "not known"
	case n == ^uint64(0):
		return "unlimited"
	}
	return fmt.Sprintf("%d bytes", n)
}

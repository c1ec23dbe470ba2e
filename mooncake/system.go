package mooncake

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// listensOn says whether somebody in this network namespace listens on a port;
// known is false where that cannot be seen.
func listensOn(port int) (listening, known bool) {
	want := fmt.Sprintf(":%04X", port)
	for _, name := range []string{"/proc/self/net/tcp6", "/proc/self/net/tcp"} {
		table, err := os.Open(name)
		if err != nil {
			continue
		}
		known = true
		// Listeners come first, so a table of many connections is seldom read far.
		for lines := bufio.NewScanner(table); lines.Scan() && !listening; {
			// sl local_address rem_address st; 0A is LISTEN.
			f := strings.Fields(lines.Text())
			listening = len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1], want)
		}
		table.Close()
		if listening {
			return true, true
		}
	}
	return false, known
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

package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Listening ports are taken below the range from which the kernel gives ports
// to outgoing connections, so that no connection of any test can take one
// between its choice and its use.
const (
	lowestPort  = 12000
	highestPort = 32000
)

var ports struct {
	mu    sync.Mutex
	given map[int]bool
}

// Ports chooses n ports that nobody listens on. They are held together until
// all are chosen, and given out once per run.
func Ports(t testing.TB, n int) []int {
	t.Helper()
	var out []int
	for range 1000 {
		if len(out) == n {
			return out
		}
		port := lowestPort + rand.IntN(outgoingPorts()-lowestPort)
		if !reserve(port) {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue // somebody else's
		}
		defer l.Close()
		out = append(out, port)
	}
	t.Fatalf("found %d of %d free ports", len(out), n)
	return nil
}

func reserve(port int) bool {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	if ports.given == nil {
		ports.given = map[int]bool{}
	}
	fresh := !ports.given[port]
	ports.given[port] = true
	return fresh
}

// outgoingPorts is the first port that the kernel gives to connections, as far
// as it leaves room below.
var outgoingPorts = sync.OnceValue(func() int {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return highestPort
	}
	low, err := strconv.Atoi(strings.Fields(string(b))[0])
	if err != nil || low < lowestPort+1000 {
		return highestPort
	}
	return min(low, highestPort)
})

// Address is a port on loopback.
func Address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

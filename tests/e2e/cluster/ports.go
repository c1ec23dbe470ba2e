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
	// A run takes blocks of so many ports, which are its alone: a node that is
	// started again finds its port free, whatever other runs start meanwhile.
	blockPorts = 500
)

var ports struct {
	mu sync.Mutex
	// guarded by mu: the ports of the blocks that were not given out yet, and
	// what claims the blocks
	free   []int
	claims []net.Listener
}

// Ports chooses n ports that nobody listens on. Each is given out once per run.
func Ports(t testing.TB, n int) []int {
	t.Helper()
	ports.mu.Lock()
	defer ports.mu.Unlock()
	var out []int
	for len(out) < n {
		if len(ports.free) == 0 {
			if err := claimPortsLocked(); err != nil {
				t.Fatal(err)
			}
		}
		port := ports.free[0]
		ports.free = ports.free[1:]
		l, err := net.Listen("tcp", Address(port))
		if err != nil {
			continue // somebody else's
		}
		l.Close()
		out = append(out, port)
	}
	return out
}

// claimPortsLocked takes a block of ports. The claim is a name that the kernel
// drops with the process, if end does not before.
func claimPortsLocked() error {
	blocks := (outgoingPorts() - lowestPort) / blockPorts
	for _, block := range rand.Perm(blocks) {
		l, err := net.Listen("unix", fmt.Sprintf("@pypto-pd-ports-%d", block))
		if err != nil {
			continue // another run's
		}
		ports.claims = append(ports.claims, l)
		for i := range blockPorts {
			ports.free = append(ports.free, lowestPort+block*blockPorts+i)
		}
		return nil
	}
	return fmt.Errorf("all %d blocks of ports are taken", blocks)
}

// releasePorts drops the claims.
func releasePorts() {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	for _, l := range ports.claims {
		l.Close()
	}
	ports.claims, ports.free = nil, nil
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

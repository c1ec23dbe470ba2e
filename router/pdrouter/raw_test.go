package pdrouter

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// rawNode is the HTTP side of a node whose bytes a test writes itself: what edge's
// own server never sends, others may.
type rawNode struct {
	role pd.Role
	at   *net.TCPAddr
	// answer gets each request, read to its end, and owns the connection until it
	// returns; then it is closed.
	answer func(nc *net.TCPConn, r *http.Request, body string)

	mu sync.Mutex
	// guarded by mu
	open  int
	asked int
}

// listenRaw serves until the test ends. A node answers nothing until its answer is
// set, which is to be before the first request.
func listenRaw(t testing.TB, role pd.Role) *rawNode {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n := &rawNode{role: role, at: l.Addr().(*net.TCPAddr)}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { n.one(nc.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return n
}

func (n *rawNode) one(nc *net.TCPConn) {
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(patience))
	r, err := http.ReadRequest(bufio.NewReaderSize(nc, 1<<10))
	if err != nil {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	n.count(1)
	defer n.count(-1)
	n.answer(nc, r, string(body))
}

func (n *rawNode) count(by int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open += by
	n.asked += max(by, 0)
}

// counts are how many requests run on the node and how many ever came.
func (n *rawNode) counts() (open, asked int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.open, n.asked
}

const (
	rawJSONHead   = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n"
	rawStreamHead = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	rawStreamEnd  = "0\r\n\r\n"
)

// rawJSON is a whole answer.
func rawJSON(body string) string {
	return fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", rawJSONHead, len(body), body)
}

// rawChunk is one piece of a stream.
func rawChunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

// rawRetires is a prefill node's success.
func rawRetires(nc *net.TCPConn, _ *http.Request, _ string) {
	io.WriteString(nc, rawJSON(`{"state":"RETIRED"}`))
}

// rawStand is a router over raw nodes. Prefill succeeds, decode does what answer
// says.
func rawStand(t testing.TB, o settings, answer func(nc *net.TCPConn, r *http.Request, body string)) (s *stand, nodes []*rawNode) {
	t.Helper()
	o.tap = func(n *standNode) {
		node := listenRaw(t, n.role)
		node.answer = rawRetires
		if n.role == pd.Decode {
			node.answer = answer
		}
		nodes = append(nodes, node)
		n.port, n.id = node.at.Port, pd.NodeID(node.at.String())
		n.says.Node, n.says.HTTPAddress = n.id, node.at.String()
	}
	s = newStand(t, o)
	s.discard()
	return s, nodes
}

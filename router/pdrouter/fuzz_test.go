package pdrouter

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

// strictNode is the HTTP side of a node that reads what a router sends it byte by
// byte and finds fault with everything that has two readings.
type strictNode struct {
	answer string
	mu     sync.Mutex
	faults []string
	served int
}

// listenStrict serves until the test ends.
func listenStrict(t testing.TB, answer string) (*strictNode, *net.TCPAddr) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n := &strictNode{answer: answer}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer nc.Close()
				nc.SetDeadline(time.Now().Add(patience))
				whole, fault := n.one(nc)
				n.mu.Lock()
				defer n.mu.Unlock()
				if whole {
					n.served++
				}
				if fault != nil {
					n.faults = append(n.faults, fault.Error())
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return n, l.Addr().(*net.TCPAddr)
}

// one reads one request, answers it and sees that nothing follows. A request that
// breaks off is the router's right, whole is then false.
func (n *strictNode) one(nc net.Conn) (whole bool, fault error) {
	br := bufio.NewReader(nc)
	line, err := br.ReadString('\n')
	if err != nil {
		return false, nil
	}
	if f := strings.Split(line, " "); len(f) != 3 || f[0] != "POST" || f[2] != "HTTP/1.1\r\n" {
		return false, fmt.Errorf("request line %q", line)
	}
	count := map[string]int{}
	length := -1
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			return false, nil
		}
		if line == "\r\n" {
			break
		}
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\r\n"), ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t\r\x00") || strings.ContainsAny(value, "\r\n\x00") {
			return false, fmt.Errorf("header line %q", line)
		}
		name = strings.ToLower(name)
		count[name]++
		if name == "content-length" {
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil || length < 0 || " "+strconv.Itoa(length) != value {
				return false, fmt.Errorf("length %q", value)
			}
		}
	}
	for _, name := range append([]string{"content-length", "host"}, openai.RouteHeaders[:]...) {
		if count[strings.ToLower(name)] != 1 {
			return false, fmt.Errorf("%d lines of %s", count[strings.ToLower(name)], name)
		}
	}
	for name := range count {
		switch known := strings.HasPrefix(name, "x-pd-"); {
		case name == "transfer-encoding", name == "trailer", name == "upgrade", name == "te":
			return false, fmt.Errorf("a %s line", name)
		case known && !isRoute(name):
			return false, fmt.Errorf("a client's %s line", name)
		}
	}
	if _, err := io.CopyN(io.Discard, br, int64(length)); err != nil {
		return false, nil
	}
	if _, err := io.WriteString(nc, n.answer); err != nil {
		return false, nil
	}
	nc.(*net.TCPConn).CloseWrite()
	rest, _ := io.ReadAll(io.LimitReader(br, 64))
	if len(rest) > 0 {
		return true, fmt.Errorf("after the request: %q", rest)
	}
	return true, nil
}

func isRoute(lower string) bool {
	for _, name := range openai.RouteHeaders {
		if strings.EqualFold(name, lower) {
			return true
		}
	}
	return false
}

// take gives the faults that were found and how many requests came whole.
func (n *strictNode) take() (faults []string, served int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	faults, n.faults = n.faults, nil
	return faults, n.served
}

// strictStand is a router between raw clients and strict nodes.
func strictStand(t testing.TB, log *slog.Logger) (*stand, []*strictNode) {
	var nodes []*strictNode
	s := newStand(t, settings{
		server: edge.ServerConfig{HeaderTimeout: 60 * time.Millisecond, BodyTimeout: 60 * time.Millisecond, IdleTimeout: 60 * time.Millisecond, MaxBody: 1 << 20, Log: log},
		tap: func(n *standNode) {
			body := `{"state":"RETIRED"}`
			strict, at := listenStrict(t, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body))
			nodes = append(nodes, strict)
			n.port, n.id = at.Port, pd.NodeID(at.String())
			n.says.Node, n.says.HTTPAddress = n.id, at.String()
		},
	})
	s.discard()
	return s, nodes
}

// rawRequests are seeds; the lengths are those of plain.
var rawRequests = []string{
	"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 26\r\n\r\n" + plain,
	"POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1a\r\n" + plain + "\r\n0\r\n\r\n",
	"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 26\r\nTransfer-Encoding: chunked\r\n\r\n1a\r\n" + plain + "\r\n0\r\n\r\n",
	"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 26\r\nContent-Length: 25\r\n\r\n" + plain,
	"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 26, 26\r\n\r\n" + plain,
	"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: +26\r\n\r\n" + plain,
	"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length : 26\r\n\r\n" + plain,
	"POST /v1/completions HTTP/1.1\r\nHost: h\r\nX: 1\r\n Content-Length: 0\r\nContent-Length: 26\r\n\r\n" + plain,
	"POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\nContent-Length: 26\r\n\r\n" + plain,
	"POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, chunked\r\n\r\n1a\r\n" + plain + "\r\n0\r\n\r\n",
	"POST /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: content-length, x-pd-self\r\nContent-Length: 26\r\nX-PD-Self: evil;1\r\n\r\n" + plain,
	"POST /v1/completions HTTP/1.1\r\nHost: a\r\nHost: b\r\nX-PD-Anything: evil\r\nContent-Length: 26\r\n\r\n" + plain,
	"POST /v1/completions HTTP/1.1\r\nHost: h\r\nX-Twisted: a\rX-PD-Self: evil\r\nContent-Length: 26\r\n\r\n" + plain,
	"POST /v1/completions HTTP/1.1\r\nHost: h\r\nX-Zero: a\x00b\r\nContent-Length: 26\r\n\r\n" + plain,
	"POST /v1/completions?a=b c HTTP/1.1\r\nHost: h\r\nContent-Length: 26\r\n\r\n" + plain,
	"POST http://elsewhere/v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 26\r\n\r\n" + plain,
	"POST /v1/completions HTTP/1.1\nHost: h\nContent-Length: 26\n\n" + plain,
	"POST /v1/completions HTTP/1.0\r\nContent-Length: 26\r\n\r\n" + plain + "GET /health HTTP/1.1\r\n\r\n",
	"GET /health HTTP/1.1\r\nHost: h\r\n\r\nPOST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 50\r\n\r\n" + `{"messages":[{"role":"user","content":"content"}]}`,
	"\x16\x03\x01\x02\x00\x01\x00", "\r\n\r\n", "",
}

// FuzzRouterPort feeds raw bytes to the router's port: nothing panics, and no
// node ever gets a request with two readings, or a route that a client wrote.
//
// Case B36.
func FuzzRouterPort(f *testing.F) {
	for _, r := range rawRequests {
		f.Add([]byte(r))
	}
	var log capture
	s, nodes := strictStand(f, slog.New(slog.NewTextHandler(&log, nil)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		nc, err := net.Dial("tcp", s.address)
		require.NoError(t, err)
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(patience))
		nc.Write(raw) // the router may have closed in its middle
		got, err := io.ReadAll(nc)
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			t.Fatalf("the connection stays open after %q", got)
		}
		if len(got) > 0 && !bytes.HasPrefix(got, []byte("HTTP/1.1 ")) {
			t.Fatalf("an answer that is none: %q", got)
		}
		for _, n := range nodes {
			if faults, _ := n.take(); len(faults) > 0 {
				t.Fatalf("a node got %q", faults)
			}
		}
		if strings.Contains(log.String(), "panicked") {
			t.Fatal(log.String())
		}
	})
}

// The strict node sees requests at all, and would find fault.
func TestStrictNodesSeeWhatIsWrong(t *testing.T) {
	s, nodes := strictStand(t, nil)
	r, _ := s.ask("POST", "/v1/completions", plain, "X-PD-Self: evil")
	require.Equal(t, 200, r.StatusCode)
	s.untilFree()
	for _, n := range nodes {
		require.Eventually(t, func() bool { _, served := n.take(); return served == 1 }, patience, time.Millisecond)
	}
	routes := ""
	for _, name := range openai.RouteHeaders {
		routes += name + ": x\r\n"
	}
	const begin = "POST /v1/completions HTTP/1.1\r\nHost: h\r\n"
	for text, want := range map[string]string{
		begin + routes + "Content-Length: 1\r\n\r\na":                               "",
		begin + routes + "Content-Length: 1\r\nContent-Length: 1\r\n\r\na":          "2 lines of content-length",
		begin + routes + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\na": "a transfer-encoding line",
		begin + routes + "Content-Length: +1\r\n\r\na":                              "length",
		begin + routes + "Content-Length: 1\r\n\r\nab":                              "after the request",
		begin + routes + "X-PD-Other: 1\r\nContent-Length: 1\r\n\r\na":              "a client's x-pd-other",
		begin + routes + "X: a\rb\r\nContent-Length: 1\r\n\r\na":                    "header line",
		begin + routes + "\r\n":                                                     "0 lines of content-length",
		"POST / x HTTP/1.1\r\n":                                                     "request line",
		begin + "Content-Length: 1\r\n\r\na":                                        "0 lines of X-PD",
	} {
		n, at := listenStrict(t, "x")
		nc, err := net.Dial("tcp", at.String())
		require.NoError(t, err)
		_, err = io.WriteString(nc, text)
		require.NoError(t, err)
		nc.(*net.TCPConn).CloseWrite()
		io.ReadAll(nc)
		nc.Close()
		var faults []string
		require.Eventually(t, func() bool {
			more, served := n.take()
			faults = append(faults, more...)
			return served+len(faults) > 0
		}, patience, time.Millisecond)
		if want == "" {
			require.Empty(t, faults)
			continue
		}
		require.Contains(t, strings.Join(faults, " "), want)
	}
}

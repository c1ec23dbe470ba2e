package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// Connection is a client whose end the test decides.
type Connection struct {
	tcp *net.TCPConn
	in  *bufio.Reader
}

// Dial opens a connection and sends a request over it. It is closed with the
// test, if not before.
func Dial(t testing.TB, url string, q Completion) *Connection {
	t.Helper()
	c, err := Connect(url, q)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Connect is Dial without a test; the caller closes the connection. The server
// closes it after its answer.
func Connect(url string, q Completion) (*Connection, error) {
	nc, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		return nil, err
	}
	c := &Connection{tcp: nc.(*net.TCPConn), in: bufio.NewReader(nc)}
	if err := nc.SetDeadline(time.Now().Add(Patience)); err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	body := q.Body()
	_, err = fmt.Fprintf(nc, "POST %s HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", q.Path(), len(body), body)
	if err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	return c, nil
}

// Line reads lines until one that begins so.
func (c *Connection) Line(t testing.TB, prefix string) string {
	t.Helper()
	for {
		line, err := c.in.ReadString('\n')
		if err != nil {
			t.Fatalf("wait for a line %q: %v", prefix, err)
		}
		if strings.HasPrefix(line, prefix) {
			return strings.TrimSpace(line)
		}
	}
}

// Wait reads n lines, or to the end of the answer.
func (c *Connection) Wait(n int) {
	for range n {
		if _, err := c.in.ReadString('\n'); err != nil {
			return
		}
	}
}

// Close leaves politely: the other side sees the end of what was sent.
func (c *Connection) Close() { c.tcp.Close() }

// Reset leaves as a client does that has crashed: the other side sees a reset.
func (c *Connection) Reset() {
	_ = c.tcp.SetLinger(0) // fails on a closed connection only
	c.tcp.Close()
}

package edge

import (
	"context"
	"fmt"
	"iter"
	"net"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

// Field is one header line. Names keep the spelling they came with.
type Field struct {
	Name  string
	Value string
}

// Call is one request and its answer. It belongs to the connection's goroutine
// and is valid until the handler returns.
type Call struct {
	// constant
	conn *conn
	// owned by the connection's goroutine
	method   string
	http11   bool
	raw      string // header lines as they arrived
	target   string
	path     string
	query    string
	body     []byte
	header   []Field
	answered bool
	status   int
	sent     int64
}

func (c *Call) begin() {
	h := &c.conn.head
	c.method, c.http11 = methodOf(h.Method()), h.IsHTTP11()
	c.raw = string(h.RawHeaders())
	c.target = string(h.RequestURI())
	origin := c.target
	if origin[0] != '/' {
		// Absolute form: the authority is this server, whatever it is called.
		if _, rest, ok := strings.Cut(origin, "://"); ok {
			if i := strings.IndexAny(rest, "/?"); i >= 0 {
				origin = rest[i:]
			} else {
				origin = ""
			}
		}
		if origin == "" || origin[0] == '?' {
			origin = "/" + origin
		}
	}
	c.path, c.query, _ = strings.Cut(origin, "?")
	c.target = origin
	c.header = c.header[:0]
	c.answered, c.status, c.sent = false, 0, 0
}

func (c *Call) end() {
	if cap(c.body) > keepBody {
		c.body = nil
	}
}

// Method is the request method as it came.
func (c *Call) Method() string { return c.method }

// methodOf makes the usual methods without an allocation.
func methodOf(b []byte) string {
	switch string(b) {
	case "GET":
		return "GET"
	case "POST":
		return "POST"
	}
	return string(b)
}

// Target is path and query exactly as they came; nothing is decoded, merged or
// cleaned.
func (c *Call) Target() string { return c.target }

// Path is the target up to the question mark.
func (c *Call) Path() string { return c.path }

// Query is the target after the question mark, undecoded.
func (c *Call) Query() string { return c.query }

// Header is the first value of a header, "" if absent. Names match in any case.
func (c *Call) Header(name string) string {
	for n, v := range c.Headers() {
		if len(n) == len(name) && strings.EqualFold(n, name) {
			return v
		}
	}
	return ""
}

// Headers iterates over the header lines in their order and spelling; repeated
// ones stay apart. The strings may be kept.
func (c *Call) Headers() iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for line := range strings.Lines(c.raw) {
			name, value, ok := strings.Cut(line, ":")
			if ok && !yield(name, strings.Trim(value, " \t\r\n")) {
				return
			}
		}
	}
}

// Body is the whole request body. It is borrowed until the handler returns.
func (c *Call) Body() []byte { return c.body }

// Forget lets go of the request's header lines and body, which are empty from then
// on: a long stream need not hold what it was asked for. Nobody may still borrow
// the body.
func (c *Call) Forget() { c.raw, c.body = "", nil }

// RemoteAddr is the client's address and port.
func (c *Call) RemoteAddr() net.Addr { return c.conn.nc.RemoteAddr() }

// Context ends with cause ErrClientGone when the client hangs up, and with
// ErrStopping when the server's time to drain is over. It lives as long as the
// connection: it does not end by itself when the handler returns.
func (c *Call) Context() context.Context { return c.conn.ctx }

// SetHeader sets a header of the answer, replacing an earlier value. Framing
// and connection headers belong to the edge and are ignored here.
func (c *Call) SetHeader(name, value string) {
	for i := range c.header {
		if strings.EqualFold(c.header[i].Name, name) {
			c.header[i].Value = value
			return
		}
	}
	c.AddHeader(name, value)
}

// AddHeader adds a header line to the answer.
func (c *Call) AddHeader(name, value string) {
	if strings.ContainsAny(name, "\r\n: ") || strings.ContainsAny(value, "\r\n") || ownHeader(name) {
		return
	}
	c.header = append(c.header, Field{name, value})
}

// ownHeader says that a header line of the answer is the edge's alone.
func ownHeader(name string) bool {
	switch strings.ToLower(name) {
	case "content-length", "transfer-encoding", "connection", "keep-alive", "content-type", "trailer", "upgrade":
		return true
	}
	return false
}

// Answered says that an answer was begun.
func (c *Call) Answered() bool { return c.answered }

// Status is the status of the answer, 0 before it began.
func (c *Call) Status() int { return c.status }

// Sent is how many bytes of the answer's body were written.
func (c *Call) Sent() int64 { return c.sent }

// Reply sends a whole answer. Only the first answer of a call is sent. A failed
// write ends the connection and the call's context.
func (c *Call) Reply(status int, contentType string, body []byte) {
	if c.answered {
		return
	}
	if noContent(status) {
		body = nil
	}
	head := c.beginHead(status, contentType)
	if !noContent(status) {
		head = append(head, "Content-Length: "...)
		head = strconv.AppendInt(head, int64(len(body)), 10)
		head = append(head, "\r\n"...)
	}
	head = append(head, "\r\n"...)
	c.conn.out = head
	if c.conn.noBody || len(body) == 0 {
		c.conn.write(head)
		return
	}
	if c.conn.write(head, body) == nil {
		c.sent += int64(len(body))
	}
}

// Stream sends the head at once and runs body, which writes the rest. It
// returns when the stream has ended. When body returns nil the stream is ended
// properly; after an error the connection is closed in the middle, so that no
// client takes the answer for whole. The returned error is body's or that of a
// failed write.
func (c *Call) Stream(status int, contentType string, body func(w *StreamWriter) error) error {
	return c.stream(status, contentType, -1, body)
}

// StreamSized is Stream for a body of a length that is known, which the head
// announces. A body that ends before it, or would go beyond, is an error.
func (c *Call) StreamSized(status int, contentType string, length int64, body func(w *StreamWriter) error) error {
	return c.stream(status, contentType, max(length, 0), body)
}

// stream streams a body of a length, or of a negative one that is not known.
func (c *Call) stream(status int, contentType string, length int64, body func(w *StreamWriter) error) error {
	if c.answered {
		return errAnswered
	}
	head := c.beginHead(status, contentType)
	// An HTTP/1.0 client knows no chunks; for it the connection's end is the end.
	chunked := c.http11 && length < 0
	switch {
	case chunked:
		head = append(head, "Transfer-Encoding: chunked\r\n"...)
	case length >= 0:
		head = append(head, "Content-Length: "...)
		head = strconv.AppendInt(head, length, 10)
		head = append(head, "\r\n"...)
	}
	head = append(head, "\r\n"...)
	c.conn.out = head
	if err := c.conn.write(head); err != nil {
		return err
	}
	if c.conn.noBody {
		return nil
	}
	c.conn.lighten()
	w := &StreamWriter{call: c, chunked: chunked, length: length}
	defer w.release()
	err := body(w)
	if err == nil {
		err = w.finish()
	}
	if err == nil && length >= 0 && c.sent < length {
		err = fmt.Errorf("%w: it has %d bytes of %d", errLength, c.sent, length)
	}
	if err != nil {
		c.conn.broken = true
	}
	return err
}

func (c *Call) beginHead(status int, contentType string) []byte {
	k := c.conn
	c.answered, c.status = true, status
	if !c.http11 {
		k.close = true
	}
	b := append(k.out[:0], "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	b = append(b, statusText(status)...)
	b = append(b, "\r\n"...)
	// A relayed answer keeps the words of whoever made it.
	if k.server.config.Name != "" && fieldValue(c.header, "Server") == "" {
		b = appendField(b, "Server", k.server.config.Name)
	}
	if fieldValue(c.header, "Date") == "" {
		b = append(b, k.server.date.at(time.Now())...)
	}
	if contentType != "" && !strings.ContainsAny(contentType, "\r\n") {
		b = appendField(b, "Content-Type", contentType)
	}
	for _, f := range c.header {
		b = appendField(b, f.Name, f.Value)
	}
	if k.close = k.close || k.server.isDraining(); k.close {
		b = append(b, "Connection: close\r\n"...)
	}
	return b
}

func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}

// noContent says that answers of a status have no body and no length.
func noContent(status int) bool { return status < 200 || status == 204 || status == 304 }

func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

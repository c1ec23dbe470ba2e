package edge

import (
	"errors"
	"strconv"
	"sync"
)

var (
	errAnswered = errors.New("the call was answered before")
	errLength   = errors.New("the body has not the announced length")
)

const (
	// chunkRoom is left in front of a chunk's bytes for its size line.
	chunkRoom = 10
	// streamBuffer is when Write sends without being asked to.
	streamBuffer = 32 << 10
	lastChunk    = "0\r\n\r\n"
)

var streamBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// StreamWriter writes the body of a streamed answer. It belongs to the function
// that Call.Stream runs.
type StreamWriter struct {
	call    *Call
	chunked bool
	length  int64 // what the head announced, negative if nothing
	pooled  *[]byte
	buf     []byte // chunkRoom bytes, then what Flush sends; nil while there is nothing
	err     error
}

// noSize is the room for a size line before it is known.
var noSize [chunkRoom]byte

// take gets a buffer when there is something to collect.
func (w *StreamWriter) take() {
	if w.buf == nil {
		w.pooled = streamBuffers.Get().(*[]byte)
		w.buf = append((*w.pooled)[:0], noSize[:]...)
	}
}

// release gives the buffer back while there is nothing to send: a stream that is
// silent has none.
func (w *StreamWriter) release() {
	if w.buf != nil {
		*w.pooled = w.buf
		streamBuffers.Put(w.pooled)
		w.pooled, w.buf = nil, nil
	}
}

// collected is how many bytes wait for Flush.
func (w *StreamWriter) collected() int { return max(len(w.buf)-chunkRoom, 0) }

// Write collects bytes for the next Flush; a large collection is sent by itself.
func (w *StreamWriter) Write(p []byte) (int, error) {
	written := 0
	if w.err == nil && w.length >= 0 && int64(len(p)) > w.length-w.call.sent-int64(w.collected()) {
		w.err = errLength
	}
	for len(p) > 0 {
		if w.err != nil {
			return written, w.err
		}
		w.take()
		n := min(len(p), streamBuffer+chunkRoom-len(w.buf))
		w.buf = append(w.buf, p[:n]...)
		p = p[n:]
		written += n
		if len(w.buf) >= streamBuffer+chunkRoom {
			w.Flush()
		}
	}
	return written, w.err
}

// WriteString is Write for a string.
func (w *StreamWriter) WriteString(s string) (int, error) { return w.Write(bytesOf(s)) }

// Flush sends what was collected, as one chunk and one system call. After a
// failed write the stream takes no more.
func (w *StreamWriter) Flush() error {
	n := w.collected()
	if w.err != nil || n == 0 {
		return w.err
	}
	w.send(n, false)
	return w.err
}

func (w *StreamWriter) send(n int, last bool) {
	out := w.buf[chunkRoom:]
	if w.chunked {
		// The size line goes right in front of the bytes.
		var size [chunkRoom]byte
		line := append(strconv.AppendInt(size[:0], int64(n), 16), "\r\n"...)
		start := chunkRoom - len(line)
		copy(w.buf[start:], line)
		w.buf = append(w.buf, "\r\n"...)
		if last {
			w.buf = append(w.buf, lastChunk...)
		}
		out = w.buf[start:]
	}
	if w.err = w.call.conn.write(out); w.err == nil {
		w.call.sent += int64(n)
	}
	w.release()
}

func (w *StreamWriter) finish() error {
	n := w.collected()
	switch {
	case w.err != nil:
	case n > 0:
		w.send(n, true)
	case w.chunked:
		w.err = w.call.conn.write([]byte(lastChunk))
	}
	return w.err
}

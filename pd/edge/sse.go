package edge

import (
	"bytes"
	"io"
	"sync"
	"time"
)

const (
	// maxHeldEvent is how much of an unfinished event is held back, so that a
	// stream that breaks can be ended with a well-formed error event. Longer
	// events pass as they come.
	maxHeldEvent = 64 << 10
	// endTime bounds the wait for the rest of the event that ends a stream.
	endTime = time.Second
	// dataPrefix is how much of each data line EventPump.Data gets to see.
	dataPrefix = 64
)

var pumpBuffers = sync.Pool{New: func() any { b := make([]byte, 8<<10); return &b }}

// EventPump relays a stream of server-sent events byte for byte. It is used once.
type EventPump struct {
	// First, if set, is called before the first byte is written.
	First func()
	// Data, if set, sees the first 64 bytes of the value of each data line, as
	// a loan for the call. It may set End.
	Data func(prefix []byte)
	// End makes Run return once the event that it was set in is whole and what has
	// arrived is written, without waiting for the reader's end. What is missing of
	// that event is waited for no longer than a second.
	End bool
	// Strict drops an unfinished event also at the reader's proper end, unless
	// End is set by then.
	Strict bool

	// Bytes and Events count what was written.
	Bytes  int64
	Events int
	// MidEvent says that the client has the beginning of an event without its
	// end; only events above 64 KiB come to that.
	MidEvent bool

	scan eventScanner
}

// Run copies from r to w until r ends, End, an error of r, or a failed write
// (which wraps ErrClientGone). What arrives together leaves together, in whole
// events; the unfinished end of a broken stream is dropped, that of an ended one
// kept.
func (p *EventPump) Run(w *StreamWriter, r io.Reader) error {
	pooled := pumpBuffers.Get().(*[]byte)
	buf := *pooled
	defer func() {
		*pooled = buf
		pumpBuffers.Put(pooled)
	}()
	p.scan.data = p.Data
	q := quietRead(r)
	held := 0
	for {
		if q != nil && held == 0 && q.empty() {
			// Most streams say nothing most of the time.
			*pooled = buf
			pumpBuffers.Put(pooled)
			q.wait()
			pooled = pumpBuffers.Get().(*[]byte)
			buf = *pooled
		}
		if held == len(buf) {
			buf = append(buf, make([]byte, len(buf))...)
		}
		n, err := r.Read(buf[held:])
		if n > 0 {
			boundary := p.scan.feed(buf[held : held+n])
			end := held + n
			send := 0
			switch {
			case p.MidEvent || end >= maxHeldEvent:
				send = end
			case boundary > 0:
				send = held + boundary
			}
			if send > 0 {
				p.MidEvent = p.scan.unfinished && send == end
				if err := p.write(w, buf[:send]); err != nil {
					return err
				}
			}
			held = copy(buf, buf[send:end])
			switch {
			case !p.End:
			case !p.scan.unfinished && !p.scan.afterCR:
				return p.write(w, buf[:held])
			default:
				// A client that goes by the rules drops an event without its blank line,
				// and one that does not may look for CRLF where there was only CR so far.
				if x, ok := r.(*Exchange); ok {
					x.readTimeout = endTime
				}
			}
		}
		switch {
		case err == io.EOF:
			p.scan.finish()
			if p.Strict && !p.End {
				return nil
			}
			return p.write(w, buf[:held])
		case err != nil && p.End:
			return p.write(w, buf[:held])
		case err != nil:
			return err
		}
	}
}

func (p *EventPump) write(w *StreamWriter, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if p.Bytes == 0 && p.First != nil {
		p.First()
	}
	p.Bytes += int64(len(b))
	p.Events = p.scan.events
	w.Write(b)
	return w.Flush()
}

// eventScanner finds the ends of events in any of the three line endings.
type eventScanner struct {
	data   func(prefix []byte)
	events int
	// unfinished: bytes of an event came after the last blank line.
	unfinished bool
	hasData    bool
	afterCR    bool
	line       [len("data: ") + dataPrefix]byte
	kept       int // bytes of line
	lineLen    int
}

// feed takes the next bytes and returns how many of them end with a whole event.
func (s *eventScanner) feed(p []byte) (boundary int) {
	for i := 0; i < len(p); {
		if s.afterCR {
			s.afterCR = false
			if p[i] == '\n' {
				i++
				if !s.unfinished {
					boundary = i
				}
				continue
			}
		}
		rest := p[i:]
		end := bytes.IndexByte(rest, '\n')
		if end >= 0 {
			rest = rest[:end]
		}
		if cr := bytes.IndexByte(rest, '\r'); cr >= 0 {
			rest, end = rest[:cr], cr
		}
		s.lineLen += len(rest)
		s.kept += copy(s.line[s.kept:], rest)
		if end < 0 {
			s.unfinished = s.unfinished || s.lineLen > 0
			return boundary
		}
		i += end + 1
		s.afterCR = p[i-1] == '\r'
		if s.endLine() {
			boundary = i
		}
	}
	return boundary
}

// finish takes the reader's end for the end of the last line.
func (s *eventScanner) finish() {
	if s.lineLen > 0 {
		s.endLine()
	}
}

// endLine says whether the line was blank, the end of an event.
func (s *eventScanner) endLine() bool {
	line := s.line[:s.kept]
	blank := s.lineLen == 0
	s.kept, s.lineLen = 0, 0
	if blank {
		if s.hasData {
			s.events++
		}
		s.hasData, s.unfinished = false, false
		return true
	}
	s.unfinished = true
	if value, ok := bytes.CutPrefix(line, []byte("data:")); ok {
		s.hasData = true
		if s.data != nil {
			s.data(bytes.TrimPrefix(value, []byte(" ")))
		}
	}
	return false
}

// WriteEvent writes one event with one data line and sends it. data must not
// hold line breaks; JSON text does not.
func (w *StreamWriter) WriteEvent(data []byte) error {
	w.WriteString("data: ")
	w.Write(data)
	w.WriteString("\n\n")
	return w.Flush()
}

package owner

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// The local protocol between a node and the owner process of one rank: each side
// sends the preamble, then frames. A frame is 16 bytes of head (length of the
// body, kind, two zero bytes, sequence number from 1; little endian) and the
// body. Anything else ends the connection, and with it the rank.
const (
	// preamble names the protocol and its version, which rises with every change: a
	// node and its owners are one program and agree, or do not start.
	preamble = "PDOWNER\x02"

	headBytes = 16
	// maxFrameBytes bounds a body: the ports of a node that has used every port
	// there is, or maxFrameSegments segments.
	maxFrameBytes = 1 << 20
	// frameBuffer is what one read may gather.
	frameBuffer = 32 << 10
)

// frame is one message as it travels.
type frame struct {
	kind kind
	// body is valid until the next read.
	body []byte
}

// frameReader reads frames. A read that a deadline has cut short goes on where
// it was.
type frameReader struct {
	r        *bufio.Reader
	sequence uint64
	head     [headBytes]byte
	headed   int
	body     []byte
	got      int
}

func newFrameReader(conn io.Reader) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(conn, frameBuffer)}
}

// hello reads the other side's preamble.
func (f *frameReader) hello() error {
	var b [len(preamble)]byte
	if _, err := io.ReadFull(f.r, b[:]); err != nil {
		return err
	}
	if string(b[:]) != preamble {
		return pd.Errorf(pd.CodeVersionMismatch, "hello", "the other side says %q, want %q: node and owner are different programs", b[:], preamble)
	}
	return nil
}

// next reads one frame.
func (f *frameReader) next() (frame, error) {
	if err := f.fill(f.head[:], &f.headed); err != nil {
		return frame{}, err
	}
	length := binary.LittleEndian.Uint32(f.head[0:])
	k, zero := kind(binary.LittleEndian.Uint16(f.head[4:])), binary.LittleEndian.Uint16(f.head[6:])
	sequence := binary.LittleEndian.Uint64(f.head[8:])
	switch {
	case length > maxFrameBytes:
		return frame{}, malformed("frame of %d bytes: want at most %d", length, maxFrameBytes)
	case zero != 0:
		return frame{}, malformed("frame with %#x where zero must be", zero)
	case sequence != f.sequence+1:
		return frame{}, malformed("frame number %d, want %d", sequence, f.sequence+1)
	}
	if f.got == 0 && cap(f.body) < int(length) {
		f.body = make([]byte, length)
	}
	f.body = f.body[:length]
	if err := f.fill(f.body, &f.got); err != nil {
		return frame{}, err
	}
	f.headed, f.got, f.sequence = 0, 0, sequence
	return frame{kind: k, body: f.body}, nil
}

func (f *frameReader) fill(b []byte, have *int) error {
	for *have < len(b) {
		n, err := f.r.Read(b[*have:])
		*have += n
		if err != nil && *have < len(b) {
			if err == io.EOF && f.headed+f.got > 0 {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

func malformed(format string, args ...any) error {
	return &pd.Error{Op: "owner protocol", Code: pd.CodeMalformed, Text: fmt.Sprintf(format, args...)}
}

// frameWriter writes frames. It is not safe for concurrent use.
type frameWriter struct {
	conn     io.Writer
	sequence uint64
	buffer   []byte
}

func (f *frameWriter) hello() error {
	_, err := io.WriteString(f.conn, preamble)
	return err
}

// send writes one message as one frame, in one write.
func (f *frameWriter) send(m message) error {
	f.sequence++
	b := append(f.buffer[:0], make([]byte, headBytes)...)
	b = m.append(b)
	if n := len(b) - headBytes; n > maxFrameBytes {
		return malformed("message %T of %d bytes: want at most %d", m, n, maxFrameBytes)
	}
	binary.LittleEndian.PutUint32(b[0:], uint32(len(b)-headBytes))
	binary.LittleEndian.PutUint16(b[4:], uint16(m.kind()))
	binary.LittleEndian.PutUint64(b[8:], f.sequence)
	_, err := f.conn.Write(b)
	if f.buffer = b; cap(b) > frameBuffer {
		f.buffer = nil // long ones are rare; do not keep their room
	}
	return err
}

// link is one end of a connection.
type link struct {
	conn *net.UnixConn
	in   *frameReader
	out  *frameWriter
}

func newLink(conn *net.UnixConn) *link {
	return &link{conn: conn, in: newFrameReader(conn), out: &frameWriter{conn: conn}}
}

// meet exchanges preambles.
func (l *link) meet(deadline time.Time) error {
	if err := l.conn.SetDeadline(deadline); err != nil {
		return err
	}
	if err := l.out.hello(); err != nil {
		return err
	}
	return l.in.hello()
}

package edge

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Framing of one message body.
const (
	lengthChunked = -1
	lengthToClose = -2
)

const (
	// maxChunkLine bounds a chunk's size line with its extensions, and
	// maxTrailer all trailer lines together; both are read and dropped.
	maxChunkLine = 4096
	maxTrailer   = 16 << 10
)

// bodyReader decodes the framing of one body. It ends with io.EOF only when the
// message is complete.
type bodyReader struct {
	br *bufio.Reader
	// length is lengthChunked, lengthToClose or the number of bytes.
	length int64
	left   int64
	// needCRLF: a chunk's data was read, its line end was not.
	needCRLF bool
	err      error
}

func (b *bodyReader) reset(br *bufio.Reader, length int64) {
	*b = bodyReader{br: br, length: length, left: max(length, 0)}
	if length == 0 {
		b.err = io.EOF
	}
}

// complete says that the whole message was read, so that the next byte on the
// connection belongs to the next message.
func (b *bodyReader) complete() bool { return b.err == io.EOF && b.length != lengthToClose }

// empty says that everything that has arrived was read and that more is to come.
func (b *bodyReader) empty() bool {
	if b.err != nil {
		return false
	}
	if b.needCRLF && b.br.Buffered() == 2 {
		// The end of the last chunk; anything else the next read finds wrong.
		if crlf, _ := b.br.Peek(2); string(crlf) == "\r\n" {
			b.br.Discard(2)
			b.needCRLF = false
		}
	}
	return b.br.Buffered() == 0
}

// Read gives what has arrived, up to len(p) bytes, and waits only while it has
// nothing to give.
func (b *bodyReader) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	var n int
	switch b.length {
	case lengthChunked:
		n, b.err = b.readChunked(p)
	case lengthToClose:
		n, b.err = b.br.Read(p)
	default:
		n, b.err = b.readFixed(p)
	}
	if n > 0 {
		return n, nil
	}
	return 0, b.err
}

func (b *bodyReader) readFixed(p []byte) (int, error) {
	n, err := b.br.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	switch {
	case b.left == 0:
		return n, io.EOF
	case err == io.EOF:
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

// readChunked fills p from as many chunks as have arrived in whole lines, so
// that a burst of events becomes one write of a relay.
func (b *bodyReader) readChunked(p []byte) (n int, err error) {
	for n < len(p) {
		if b.left == 0 {
			if n > 0 && !b.sizeLineBuffered() {
				return n, nil
			}
			if err := b.nextChunk(); err != nil {
				return n, err
			}
			if b.left == 0 {
				return n, b.readTrailer()
			}
		}
		if n > 0 && b.br.Buffered() == 0 {
			return n, nil
		}
		m, err := b.br.Read(p[n:min(int64(len(p)), int64(n)+b.left)])
		n += m
		b.left -= int64(m)
		if b.left == 0 && m > 0 {
			b.needCRLF = true
		}
		if err != nil {
			return n, unexpected(err)
		}
	}
	return n, nil
}

// sizeLineBuffered says that the next chunk's size line can be read without
// waiting, and that it is not the last one: the trailer may still be on its way.
func (b *bodyReader) sizeLineBuffered() bool {
	buf, _ := b.br.Peek(b.br.Buffered())
	if b.needCRLF {
		if len(buf) < 2 {
			return false
		}
		buf = buf[2:]
	}
	return bytes.IndexByte(buf, '\n') >= 0 && buf[0] != '0'
}

// nextChunk reads the end of the chunk before and the size line of the next.
func (b *bodyReader) nextChunk() error {
	if b.needCRLF {
		crlf, err := b.br.Peek(2)
		if err != nil {
			return unexpected(err)
		}
		if string(crlf) != "\r\n" {
			return fmt.Errorf("%w: chunk data does not end with CRLF", errMalformed)
		}
		b.br.Discard(2)
		b.needCRLF = false
	}
	line, err := b.readLine(maxChunkLine)
	if err != nil {
		return err
	}
	size, err := parseChunkSize(line)
	b.left = size
	return err
}

func parseChunkSize(line []byte) (int64, error) {
	digits, ext := line, []byte(nil)
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		digits, ext = line[:i], line[i:]
	}
	digits = bytes.TrimRight(digits, " \t")
	if len(digits) == 0 || len(digits) > 15 {
		return 0, fmt.Errorf("%w: chunk size has %d digits", errMalformed, len(digits))
	}
	if bytes.IndexByte(ext, '\r') >= 0 {
		return 0, fmt.Errorf("%w: carriage return in a chunk extension", errMalformed)
	}
	var size int64
	for _, c := range digits {
		var v byte
		switch {
		case c >= '0' && c <= '9':
			v = c - '0'
		case c >= 'a' && c <= 'f':
			v = c - 'a' + 10
		case c >= 'A' && c <= 'F':
			v = c - 'A' + 10
		default:
			return 0, fmt.Errorf("%w: chunk size is not hexadecimal", errMalformed)
		}
		size = size<<4 | int64(v)
	}
	return size, nil
}

// readTrailer drops the trailer and ends the message.
func (b *bodyReader) readTrailer() error {
	for total := 0; ; {
		line, err := b.readLine(maxTrailer)
		if err != nil {
			return err
		}
		if len(line) == 0 {
			return io.EOF
		}
		if total += len(line); total > maxTrailer {
			return fmt.Errorf("%w: trailer exceeds %d bytes", errMalformed, maxTrailer)
		}
	}
}

// readLine reads one line that ends with CRLF; the result is valid until the
// next read and has no line end.
func (b *bodyReader) readLine(limit int) ([]byte, error) {
	line, err := b.br.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull) || len(line) > limit:
		return nil, fmt.Errorf("%w: line exceeds %d bytes", errMalformed, limit)
	case err != nil:
		return nil, unexpected(err)
	}
	if len(line) < 2 || line[len(line)-2] != '\r' {
		return nil, fmt.Errorf("%w: line does not end with CRLF", errMalformed)
	}
	return line[:len(line)-2], nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// errBodyTooLarge is returned by readAll for a body above the limit.
var errBodyTooLarge = errors.New("body too large")

// readAll appends a whole body to dst. Memory grows with what has arrived, not
// with what was announced.
func (b *bodyReader) readAll(dst []byte, limit int) ([]byte, error) {
	if b.length > int64(limit) {
		return dst, errBodyTooLarge
	}
	for {
		switch {
		case b.err == io.EOF:
			return dst, nil
		case b.err != nil:
			return dst, b.err
		}
		if len(dst) == cap(dst) {
			grow := max(4096, cap(dst))
			if b.length > 0 {
				grow = min(grow, int(b.length)-len(dst))
			}
			grown := make([]byte, len(dst), len(dst)+max(grow, 1))
			copy(grown, dst)
			dst = grown
		}
		n, _ := b.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if len(dst) > limit {
			return dst, errBodyTooLarge
		}
	}
}

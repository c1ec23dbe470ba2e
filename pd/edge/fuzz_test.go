package edge

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// FuzzChunkedBody: the decoder gives the same answer however the bytes arrive,
// never more than was sent, and never reads past the message.
func FuzzChunkedBody(f *testing.F) {
	f.Add([]byte("3\r\nabc\r\n0\r\n\r\nNEXT"))
	f.Add([]byte("3;x=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n"))
	f.Add([]byte("0x3\r\nabc\r\n0\r\n\r\n"))
	f.Add([]byte("3\r\nabcd\r\n0\r\n\r\n"))
	f.Add([]byte("FFFFFFFFFFFFFFF\r\n"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		decode := func(r io.Reader) ([]byte, []byte, error) {
			var b bodyReader
			br := bufio.NewReader(r)
			b.reset(br, lengthChunked)
			body, err := b.readAll(nil, 1<<20)
			rest, _ := io.ReadAll(br)
			return body, rest, err
		}
		body, rest, err := decode(bytes.NewReader(wire))
		slow, slowRest, slowErr := decode(iotest.OneByteReader(bytes.NewReader(wire)))
		if (err == nil) != (slowErr == nil) || !bytes.Equal(body, slow) {
			t.Fatalf("at once %q %v, byte by byte %q %v", body, err, slow, slowErr)
		}
		if err != nil {
			if !errors.Is(err, errMalformed) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, errBodyTooLarge) {
				t.Fatalf("unnamed error %v", err)
			}
			return
		}
		if !bytes.Equal(rest, slowRest) || !bytes.HasSuffix(wire, rest) || len(body)+len(rest) > len(wire) {
			t.Fatalf("rest %q and %q of %q", rest, slowRest, wire)
		}
	})
}

// FuzzEventScanner: events are found alike however the bytes arrive, and a
// boundary is never inside a line.
func FuzzEventScanner(f *testing.F) {
	f.Add([]byte("data: 1\n\ndata: 2\r\n\r\n: c\rdata: 3\r\r"), byte(3))
	f.Add([]byte("data:\n\n\n\n\r\n\r\n"), byte(1))
	f.Fuzz(func(t *testing.T, stream []byte, cut byte) {
		scan := func(size int) (events int, lines []string, unfinished bool) {
			var s eventScanner
			s.data = func(prefix []byte) { lines = append(lines, string(prefix)) }
			for rest := stream; len(rest) > 0; {
				n := min(size, len(rest))
				if b := s.feed(rest[:n]); b < 0 || b > n || b > 0 && rest[b-1] != '\n' && rest[b-1] != '\r' {
					t.Fatalf("boundary %d in %q", b, rest[:n])
				}
				rest = rest[n:]
			}
			s.finish()
			return s.events, lines, s.unfinished
		}
		events, lines, unfinished := scan(len(stream) + 1)
		cutEvents, cutLines, cutUnfinished := scan(int(cut)%7 + 1)
		if events != cutEvents || len(lines) != len(cutLines) || unfinished != cutUnfinished {
			t.Fatalf("whole: %d %q %t, cut: %d %q %t", events, lines, unfinished, cutEvents, cutLines, cutUnfinished)
		}
		for i := range lines {
			if lines[i] != cutLines[i] {
				t.Fatalf("line %d: %q and %q", i, lines[i], cutLines[i])
			}
		}
	})
}

package simulator

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// The wire format, little endian throughout.
//
//	hello   magic u32, version u32; answered by the 64-byte identity row
//	batch   magic u32, segments u16, directive u8, 0 u8, ticket u64, bytes u64,
//	        delay in ms u32, 0 u32; then per segment: region u32, 0 u32,
//	        offset u64, length u64; then the bytes of all segments in order
//	answer  magic u32, status u32, ticket u64, bytes written u64
//
// The whole table precedes the bytes, so a target checks every segment before
// it writes the first byte of any.
const (
	helloMagic  = 0x31484450 // "PDH1"
	batchMagic  = 0x31424450 // "PDB1"
	answerMagic = 0x31414450 // "PDA1"
	version     = 1

	helloBytes   = 8
	headBytes    = 32
	segmentBytes = 24
	answerBytes  = 24
)

// passage orders what happened before a batch was sent before what the target's
// copy loop does with it. In one process the memory model (and the race
// detector) knows no such order, because a gathered write makes none.
var passage atomic.Uint64

// status is a target's answer to a batch. Numbers cross the wire.
type status uint32

const (
	// written: the stated number of bytes was written.
	written status = 1
	// refused: nothing was written and nothing will be.
	refused status = 2
)

// head is the fixed part of a batch.
type head struct {
	segments  int
	directive directive
	ticket    transfer.Ticket
	bytes     int64
	delay     time.Duration
}

func putHead(b []byte, h head) {
	clear(b[:headBytes])
	binary.LittleEndian.PutUint32(b[0:], batchMagic)
	binary.LittleEndian.PutUint16(b[4:], uint16(h.segments))
	b[6] = byte(h.directive)
	binary.LittleEndian.PutUint64(b[8:], uint64(h.ticket))
	binary.LittleEndian.PutUint64(b[16:], uint64(h.bytes))
	binary.LittleEndian.PutUint32(b[24:], uint32(h.delay.Milliseconds()))
}

// parseHead refuses what no sender of this version writes; after that the
// stream cannot be followed and must be closed.
func parseHead(b []byte) (head, error) {
	if binary.LittleEndian.Uint32(b[0:]) != batchMagic {
		return head{}, errors.New("no batch begins here")
	}
	h := head{
		segments:  int(binary.LittleEndian.Uint16(b[4:])),
		directive: directive(b[6]),
		ticket:    transfer.Ticket(binary.LittleEndian.Uint64(b[8:])),
		bytes:     int64(binary.LittleEndian.Uint64(b[16:])),
		delay:     time.Duration(binary.LittleEndian.Uint32(b[24:])) * time.Millisecond,
	}
	switch {
	case h.segments < 1 || h.segments > pd.MaxSegmentTasks:
		return head{}, fmt.Errorf("batch of %d segments: want 1..%d", h.segments, pd.MaxSegmentTasks)
	case h.directive > lastDirective:
		return head{}, fmt.Errorf("directive %d is unknown", h.directive)
	case h.bytes < 0:
		return head{}, errors.New("batch length overflows")
	case h.delay > maxFaultDelay:
		return head{}, fmt.Errorf("delay %s is too long", h.delay)
	}
	return h, nil
}

// entry is one row of a batch's segment table.
type entry struct {
	region uint32
	offset int64
	length int64
}

func putEntry(b []byte, e entry) {
	binary.LittleEndian.PutUint64(b[0:], uint64(e.region))
	binary.LittleEndian.PutUint64(b[8:], uint64(e.offset))
	binary.LittleEndian.PutUint64(b[16:], uint64(e.length))
}

func parseEntry(b []byte) entry {
	return entry{
		region: binary.LittleEndian.Uint32(b[0:]),
		offset: int64(binary.LittleEndian.Uint64(b[8:])),
		length: int64(binary.LittleEndian.Uint64(b[16:])),
	}
}

// answer is what a target says about one batch.
type answer struct {
	status status
	ticket transfer.Ticket
	bytes  int64
}

func putAnswer(b []byte, a answer) {
	binary.LittleEndian.PutUint32(b[0:], answerMagic)
	binary.LittleEndian.PutUint32(b[4:], uint32(a.status))
	binary.LittleEndian.PutUint64(b[8:], uint64(a.ticket))
	binary.LittleEndian.PutUint64(b[16:], uint64(a.bytes))
}

func parseAnswer(b []byte) (answer, error) {
	a := answer{
		status: status(binary.LittleEndian.Uint32(b[4:])),
		ticket: transfer.Ticket(binary.LittleEndian.Uint64(b[8:])),
		bytes:  int64(binary.LittleEndian.Uint64(b[16:])),
	}
	if binary.LittleEndian.Uint32(b[0:]) != answerMagic || (a.status != written && a.status != refused) {
		return answer{}, errors.New("malformed answer of the target")
	}
	return a, nil
}

func putHello(b []byte) {
	binary.LittleEndian.PutUint32(b[0:], helloMagic)
	binary.LittleEndian.PutUint32(b[4:], version)
}

func checkHello(b []byte) error {
	if binary.LittleEndian.Uint32(b[0:]) != helloMagic {
		return errors.New("not a simulator engine")
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != version {
		return fmt.Errorf("wire version %d: want %d", v, version)
	}
	return nil
}

// envelope is how a peer addresses a region: its number at the target, and its
// extent once more, so that a registry put together wrongly is noticed.
func envelope(index int, bytes int64) string { return fmt.Sprintf("sim1/%d/%d", index, bytes) }

func parseEnvelope(s string) (index uint32, bytes int64, err error) {
	n, err := fmt.Sscanf(s, "sim1/%d/%d", &index, &bytes)
	if n != 2 || err != nil || envelope(int(index), bytes) != s {
		return 0, 0, errors.New("envelope is not one of the simulator")
	}
	return index, bytes, nil
}

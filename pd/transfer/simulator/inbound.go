package simulator

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

const (
	// maxInbound bounds the connections that one engine accepts: every rank of
	// four peers at once.
	maxInbound = 4 * pd.MaxRanks
	// helloTimeout bounds how long a connection may stay silent before it said
	// what it is.
	helloTimeout = 10 * time.Second
	// acceptPause is the wait after a failed accept (no descriptor left), so that
	// the acceptor does not spin.
	acceptPause = 50 * time.Millisecond
	// readBuffer gathers heads, tables and small segments in one read; a segment
	// longer than what is buffered is read straight into its place.
	readBuffer = 256 << 10
)

// inbound is the target side of one engine epoch: the listener, and one copy
// loop per connection. The only code that writes into registered memory from
// outside runs in these loops.
//
// Invariant FenceThenSilence: after shut and idle no loop of this epoch exists,
// so no byte that its connections still hold can reach the memory.
type inbound struct {
	// constant
	identity transfer.Identity
	row      [transfer.RowBytes]byte
	listener net.Listener
	delayed  *atomic.Int64
	// done is closed by shut, idle once the acceptor and all loops returned.
	done, idle chan struct{}
	// constant after serve
	regions [][]byte

	loops sync.WaitGroup

	mu    sync.Mutex
	ended bool
	conns map[net.Conn]struct{}
}

func newInbound(listener net.Listener, identity transfer.Identity, delayed *atomic.Int64) *inbound {
	return &inbound{
		identity: identity,
		row:      identity.Row(),
		listener: listener,
		delayed:  delayed,
		done:     make(chan struct{}),
		idle:     make(chan struct{}),
		conns:    map[net.Conn]struct{}{},
	}
}

// serve starts accepting writes into regions.
func (in *inbound) serve(regions [][]byte) {
	in.regions = regions
	go in.accept()
}

// abandon closes an inbound that never served.
func (in *inbound) abandon() error {
	close(in.done)
	close(in.idle)
	return in.listener.Close()
}

func (in *inbound) accept() {
	for {
		conn, err := in.listener.Accept()
		if err != nil {
			if in.wait(acceptPause) {
				continue
			}
			break
		}
		if !in.add(conn) {
			conn.Close()
			continue
		}
		in.loops.Go(func() {
			defer in.remove(conn)
			c := copier{in: in, conn: conn, r: bufio.NewReaderSize(conn, readBuffer)}
			c.run()
		})
	}
	in.loops.Wait()
	close(in.idle)
}

func (in *inbound) add(conn net.Conn) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended || len(in.conns) >= maxInbound {
		return false
	}
	in.conns[conn] = struct{}{}
	return true
}

func (in *inbound) remove(conn net.Conn) {
	in.mu.Lock()
	delete(in.conns, conn)
	in.mu.Unlock()
	conn.Close()
}

// shut closes the listener and every connection. It may be called again.
func (in *inbound) shut() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended {
		return
	}
	in.ended = true
	close(in.done)
	in.listener.Close()
	for conn := range in.conns {
		conn.Close()
	}
}

// silent waits until no loop of this epoch is left.
func (in *inbound) silent(ctx context.Context) error {
	select {
	case <-in.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait pauses and says whether the epoch still lives after that.
func (in *inbound) wait(pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-in.done:
		return false
	case <-timer.C:
		return true
	}
}

// copier is the copy loop of one connection. Its buffers are made once; a
// batch without a fault allocates nothing.
type copier struct {
	in   *inbound
	conn net.Conn
	r    *bufio.Reader

	raw     [max(helloBytes, headBytes, answerBytes)]byte
	table   [pd.MaxSegmentTasks * segmentBytes]byte
	entries [pd.MaxSegmentTasks]entry
}

// run serves the connection until it ends. Why it ended is the sender's to
// report: it settles the batch.
func (c *copier) run() {
	if c.hello() != nil {
		return
	}
	for c.batch() == nil {
	}
}

func (c *copier) hello() error {
	if err := c.conn.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
		return err
	}
	if _, err := io.ReadFull(c.r, c.raw[:helloBytes]); err != nil {
		return err
	}
	if err := checkHello(c.raw[:helloBytes]); err != nil {
		return err
	}
	if _, err := c.conn.Write(c.in.row[:]); err != nil {
		return err
	}
	return c.conn.SetDeadline(time.Time{})
}

func (c *copier) batch() error {
	if _, err := io.ReadFull(c.r, c.raw[:headBytes]); err != nil {
		return err
	}
	h, err := parseHead(c.raw[:headBytes])
	if err != nil {
		return err
	}
	passage.Load()
	table := c.table[:h.segments*segmentBytes]
	if _, err := io.ReadFull(c.r, table); err != nil {
		return err
	}
	entries := c.entries[:h.segments]
	var total int64
	ok := true
	for i := range entries {
		entries[i] = parseEntry(table[i*segmentBytes:])
		ok = ok && c.in.admits(entries[i])
		total += entries[i].length
	}
	if !ok || total != h.bytes {
		if _, err := c.r.Discard(int(h.bytes)); err != nil {
			return err
		}
		return c.answer(answer{status: refused, ticket: h.ticket})
	}
	held, err := c.apply(h, entries)
	if err != nil {
		return err
	}
	bytes := h.bytes
	if h.directive == applyShort {
		bytes = int64(len(held))
	}
	if err := c.answer(answer{status: written, ticket: h.ticket, bytes: bytes}); err != nil {
		return err
	}
	if h.directive == applyAgain {
		later := append([]entry(nil), entries...)
		c.in.loops.Go(func() {
			c.in.scatterLate(h.delay, later, held)
		})
	}
	return nil
}

// admits checks one segment against the registered regions.
func (in *inbound) admits(e entry) bool {
	if int64(e.region) >= int64(len(in.regions)) {
		return false
	}
	extent := int64(len(in.regions[e.region]))
	return e.length > 0 && e.offset >= 0 && e.length <= extent && e.offset <= extent-e.length &&
		e.length%transfer.Alignment == 0 && e.offset%transfer.Alignment == 0
}

// errSwallowed ends a connection whose batch must stay without an answer.
var errSwallowed = errors.New("the fault leaves the batch unanswered")

// apply reads the bytes of an admitted batch into their places. Under a fault
// that needs them again it returns the bytes, too.
func (c *copier) apply(h head, entries []entry) ([]byte, error) {
	if h.directive == applyPaused && !c.in.wait(h.delay) {
		return nil, net.ErrClosed
	}
	if h.directive == applyOnce || h.directive == applyPaused {
		for _, e := range entries {
			if _, err := io.ReadFull(c.r, c.in.regions[e.region][e.offset:e.offset+e.length]); err != nil {
				return nil, err
			}
		}
		if h.directive == applyPaused {
			c.in.delayed.Add(1)
		}
		return nil, nil
	}
	held := make([]byte, h.bytes)
	if _, err := io.ReadFull(c.r, held); err != nil {
		return nil, err
	}
	if h.directive == applyLate {
		// The sender gives up after it sent the batch: wait for that, then let the
		// bytes land, as those in a socket buffer would.
		_, _ = c.r.Peek(1)
		c.in.scatterLate(h.delay, entries, held)
		return nil, errSwallowed
	}
	if h.directive == applyShort {
		held = held[:len(held)-transfer.Alignment]
	}
	c.in.scatter(entries, held)
	if h.directive == applyTwice {
		c.in.scatter(entries, held)
	}
	return held, nil
}

// scatter copies held bytes into the places of a batch, in order, as far as
// they go.
func (in *inbound) scatter(entries []entry, held []byte) {
	for _, e := range entries {
		held = held[copy(in.regions[e.region][e.offset:e.offset+e.length], held):]
	}
}

// scatterLate is scatter after a delay, unless the epoch ends before.
func (in *inbound) scatterLate(delay time.Duration, entries []entry, held []byte) {
	if in.wait(delay) {
		in.scatter(entries, held)
		in.delayed.Add(1)
	}
}

func (c *copier) answer(a answer) error {
	putAnswer(c.raw[:answerBytes], a)
	_, err := c.conn.Write(c.raw[:answerBytes])
	return err
}

package simulator

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// rawTarget is a target side with one region of 1,024 bytes, and a connection
// to it that says hello by hand.
func rawTarget(t *testing.T) (memory []byte, conn net.Conn) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var delayed atomic.Int64
	in := newInbound(listener, transfer.Identity{Boot: pd.NewBootID(), Epoch: 1}, &delayed)
	memory = make([]byte, 1024)
	in.serve([][]byte{memory})
	t.Cleanup(func() {
		in.shut()
		<-in.idle
	})
	conn, err = net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return memory, conn
}

func greet(t *testing.T, conn net.Conn) {
	got, err := exchangeHello(conn)
	require.NoError(t, err)
	require.Equal(t, pd.Epoch(1), got.Epoch)
}

// rawBatch is a frame whose payload is all ones.
func rawBatch(ticket transfer.Ticket, entries ...entry) []byte {
	frame := make([]byte, headBytes+len(entries)*segmentBytes)
	var total int64
	for i, e := range entries {
		putEntry(frame[headBytes+i*segmentBytes:], e)
		total += e.length
	}
	putHead(frame, head{segments: len(entries), ticket: ticket, bytes: total})
	for range max(total, 0) {
		frame = append(frame, 1)
	}
	return frame
}

func readAnswer(t *testing.T, conn net.Conn) answer {
	var raw [answerBytes]byte
	_, err := io.ReadFull(conn, raw[:])
	require.NoError(t, err)
	a, err := parseAnswer(raw[:])
	require.NoError(t, err)
	return a
}

// TestTargetRefusesWhatASourceShouldNotSend: a batch with one bad segment
// writes nothing, also of its good ones, and the connection goes on.
func TestTargetRefusesWhatASourceShouldNotSend(t *testing.T) {
	memory, conn := rawTarget(t)
	greet(t, conn)
	good := entry{offset: 128, length: 64}
	for i, bad := range []entry{
		{region: 1, length: 64},
		{offset: 1024, length: 64},
		{offset: 960, length: 128},
		{offset: 32, length: 64},
		{length: 32},
		{length: 0},
		{offset: -64, length: 64},
		{offset: 1<<62 + 1<<61, length: 64},
	} {
		ticket := transfer.Ticket(i + 1)
		_, err := conn.Write(rawBatch(ticket, good, bad))
		require.NoError(t, err)
		require.Equal(t, answer{status: refused, ticket: ticket}, readAnswer(t, conn))
	}
	_, err := conn.Write(rawBatch(99, entry{offset: 960, length: 64}))
	require.NoError(t, err)
	require.Equal(t, answer{status: written, ticket: 99, bytes: 64}, readAnswer(t, conn))
	want := make([]byte, 1024)
	for i := 960; i < 1024; i++ {
		want[i] = 1
	}
	require.Equal(t, want, memory)
}

// TestFenceWaitsForTheLastCopyLoop: a loop that has not returned may still
// write, whatever became of its connection.
func TestFenceWaitsForTheLastCopyLoop(t *testing.T) {
	p, err := New(Config{})
	require.NoError(t, err)
	opened, err := p.Open(t.Context(), transfer.Options{
		Identity: transfer.Identity{Boot: pd.NewBootID()}, Hostname: "127.0.0.1", AttemptTimeout: time.Minute,
	})
	require.NoError(t, err)
	e := opened.(*engine)
	_, err = e.Register("kv", region(make([]byte, 128)))
	require.NoError(t, err)
	require.NoError(t, e.Freeze())

	slow := e.inbound
	slow.loops.Add(1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-slow.done
		cancel()
	}()
	require.ErrorIs(t, e.Fence(ctx), pd.CodeDeadline)
	require.Equal(t, pd.Epoch(1), e.Epoch())
	slow.loops.Done()
	require.NoError(t, e.Fence(t.Context()), "asked again, it gets there")
	require.Equal(t, pd.Epoch(2), e.Epoch())
	require.NoError(t, e.Close())
}

// region is memory that nobody addresses.
type region []byte

func (region) Base() uintptr   { return 0 }
func (r region) Len() int64    { return int64(len(r)) }
func (r region) Bytes() []byte { return r }

// TestTargetHangsUpOnNoise: a stream that cannot be followed is closed.
func TestTargetHangsUpOnNoise(t *testing.T) {
	spoiled := func(at int, with byte) []byte {
		frame := rawBatch(1, entry{length: 64})
		frame[at] = with
		return frame
	}
	for name, frame := range map[string][]byte{
		"bad magic":         spoiled(0, 'X'),
		"no segments":       spoiled(4, 0),
		"too many segments": spoiled(5, 2),
		"unknown directive": spoiled(6, 200),
		"negative length":   spoiled(23, 0x80),
		"endless delay":     spoiled(27, 0xff),
	} {
		_, conn := rawTarget(t)
		greet(t, conn)
		_, err := conn.Write(frame)
		require.NoError(t, err, name)
		_, err = io.ReadFull(conn, make([]byte, 1))
		require.Error(t, err, name)
	}
	_, conn := rawTarget(t)
	_, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	_, err = io.ReadFull(conn, make([]byte, 1))
	require.Error(t, err, "a browser")
}

func TestFramesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := head{
			segments:  rapid.IntRange(1, pd.MaxSegmentTasks).Draw(t, "segments"),
			directive: directive(rapid.IntRange(0, int(lastDirective)).Draw(t, "directive")),
			ticket:    transfer.Ticket(rapid.Uint64().Draw(t, "ticket")),
			bytes:     rapid.Int64Min(0).Draw(t, "bytes"),
			delay:     time.Duration(rapid.Int64Range(0, maxFaultDelay.Milliseconds()).Draw(t, "delay")) * time.Millisecond,
		}
		var raw [headBytes]byte
		putHead(raw[:], h)
		got, err := parseHead(raw[:])
		require.NoError(t, err)
		require.Equal(t, h, got)
	})
}

func TestPacerIsACalendar(t *testing.T) {
	now := time.Unix(1000, 0)
	ideal := newPacer(Link{}, 1, 0)
	require.True(t, ideal.due(now, 1<<30).IsZero())

	p := newPacer(Link{BytesPerSecond: 1000}, 1, 0)
	require.Equal(t, now.Add(time.Second), p.due(now, 1000))
	require.Equal(t, now.Add(3*time.Second), p.due(now, 2000), "the link is busy until then")
	require.Equal(t, now.Add(10*time.Second), p.due(now.Add(9*time.Second), 1000), "an idle link saves nothing up")

	latency := 10 * time.Millisecond
	a, b := newPacer(Link{Latency: latency}, 1, 3), newPacer(Link{Latency: latency}, 1, 3)
	other := newPacer(Link{Latency: latency}, 2, 3)
	differs := false
	for range 100 {
		at := a.due(now, 64)
		require.Equal(t, at, b.due(now, 64), "one seed, one link")
		require.WithinRange(t, at, now.Add(latency/2), now.Add(latency*3/2))
		differs = differs || at != other.due(now, 64)
	}
	require.True(t, differs)
}

package owner

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

const someHandoff = pd.HandoffID("00112233445566778899aabbccddeeff")

// everyMessage has one of each kind, by who sends it.
func everyMessage() map[bool][]message {
	life := lifeMessage{Epoch: 3, Endpoint: "127.0.0.1:4711", Ports: []int{4711}}
	made := []madeInto{{Component: "kv", Bytes: 128, Envelope: "e", Offset: 1}, {Component: "hidden", Bytes: 64}}
	return map[bool][]message{
		true: {
			startMessage{Node: "p0", Boot: "00112233445566778899aabbccddeeff", Rank: 3, Hostname: "h", AttemptNanos: 5, ConnectNanos: 6, Provider: "simulator", Options: `{"a":"b"}`, Regions: made, UsedPorts: []int{1, 65535}},
			targetMessage{ID: 9, Node: "d0", Boot: "00112233445566778899aabbccddeeff", Rank: 1, Epoch: 2, Endpoint: "x:1", Regions: []pd.Region{{Component: "kv", Bytes: 128, Envelope: "e"}}},
			retireMessage{ID: 9},
			writeMessage{Job: 1, Target: 9, Handoff: someHandoff, Chunk: 4, Total: 3, Segments: []wireSegment{{component: 1, source: 64, target: 1 << 40, length: 64}, {target: 128, length: 1 << 30}}},
			sealMessage{Handoff: someHandoff},
			forgetMessage{Handoff: someHandoff},
			fenceMessage{TimeoutNanos: 1e9, UsedPorts: []int{}},
			pingMessage{},
			closeMessage{},
			copyMessage{Component: 1, Offset: 64, Length: 3, Data: []byte("abc")},
			copyMessage{Offset: 1 << 40, Length: maxCopyBytes},
		},
		false: {
			startedMessage{Life: life, Facts: factsMessage{FenceProves: true, Build: "b"}, Regions: made},
			refusedMessage{Code: pd.CodeInvalidConfig, Text: "why"},
			beganMessage{Job: 1},
			freedMessage{Job: 3},
			settledMessage{Job: 1, First: 2, Count: 3, Outcome: outcome{settlement: pd.Failed, sourceFree: true, detail: "d"}},
			sealedMessage{Handoff: someHandoff},
			fencedMessage{Life: &life},
			fencedMessage{Code: pd.CodeDeadline, Text: "hangs"},
			pongMessage{},
			copiedMessage{Data: []byte("abc")},
			copiedMessage{Text: "no"},
			closedMessage{},
		},
	}
}

func TestMessagesSurviveTheWire(t *testing.T) {
	for fromNode, all := range everyMessage() {
		var wire bytes.Buffer
		w := frameWriter{conn: &wire}
		for _, m := range all {
			require.NoError(t, w.send(m))
		}
		r := newFrameReader(&wire)
		for _, want := range all {
			f, err := r.next()
			require.NoError(t, err)
			_, err = decode(f, !fromNode)
			require.ErrorIs(t, err, pd.CodeMalformed, "%T from the wrong side", want)
			got, err := decode(f, fromNode)
			require.NoError(t, err, "%T", want)
			if c, ok := got.(copiedMessage); ok && len(c.Data) == 0 {
				c.Data = nil
				got = c
			}
			require.Equal(t, want, got)
		}
	}
}

// slow gives one byte at a time, and an error after each.
type slow struct{ b []byte }

func (s *slow) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, os.ErrDeadlineExceeded
	}
	n := copy(p, s.b[:1])
	s.b = s.b[n:]
	return n, os.ErrDeadlineExceeded
}

// A deadline in the middle of a frame loses nothing of it.
func TestInterruptedReadGoesOn(t *testing.T) {
	var wire bytes.Buffer
	w := frameWriter{conn: &wire}
	require.NoError(t, w.send(refusedMessage{Code: pd.CodeBusy, Text: "first"}))
	require.NoError(t, w.send(pongMessage{}))
	require.NoError(t, w.send(beganMessage{Job: 7}))
	r := newFrameReader(&slow{wire.Bytes()})
	var got []message
	for range 10 * wire.Len() {
		f, err := r.next()
		if err != nil {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			continue
		}
		m, err := decode(f, false)
		require.NoError(t, err)
		got = append(got, m)
	}
	require.Equal(t, []message{refusedMessage{Code: pd.CodeBusy, Text: "first"}, pongMessage{}, beganMessage{Job: 7}}, got)
}

// rawFrame makes a frame by hand.
func rawFrame(k kind, sequence uint64, body string) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
	b = binary.LittleEndian.AppendUint32(b, uint32(k))
	return append(binary.LittleEndian.AppendUint64(b, sequence), body...)
}

func TestBadFramesAreRefused(t *testing.T) {
	long := rawFrame(kindPing, 1, "")
	binary.LittleEndian.PutUint32(long, maxFrameBytes+1)
	for want, b := range map[string][]byte{
		"want at most 1048576":              long,
		"frame number 2, want 1":            rawFrame(kindPing, 2, ""),
		"where zero must be":                append([]byte{0, 0, 0, 0, 8, 0, 1, 0}, rawFrame(kindPing, 1, "")[8:]...),
		"unexpected EOF":                    rawFrame(kindPing, 1, "abc")[:18],
		"EOF":                               {},
		"a node sends no message of kind 0": rawFrame(0, 1, ""),
		"kind 101":                          rawFrame(kindStarted, 1, "{}"),
		"with 1 bytes, want none":           rawFrame(kindPing, 1, "x"),
		"message of kind 5":                 rawFrame(kindSeal, 1, `{"handoff":"x","more":1}`),
		"write of 5 bytes":                  rawFrame(kindWrite, 1, "abcde"),
		"write: handoff":                    rawFrame(kindWrite, 1, strings.Repeat("\x01", writeHeadBytes+segmentBytes)),
		"write: 0 segments of 1":            rawFrame(kindWrite, 1, string(writeMessage{Total: 1, Handoff: someHandoff}.append(nil))),
		"write: 1 segments of 1048577":      rawFrame(kindWrite, 1, string(writeMessage{Total: maxSegments + 1, Handoff: someHandoff, Segments: make([]wireSegment, 1)}.append(nil))),
		"copy of 13 bytes":                  rawFrame(kindCopy, 1, strings.Repeat("x", 13)),
		"copy of 0 bytes":                   rawFrame(kindCopy, 1, strings.Repeat("\x00", 14)),
	} {
		f, err := newFrameReader(bytes.NewReader(b)).next()
		if err == nil {
			_, err = decode(f, true)
		}
		require.ErrorContains(t, err, want)
	}
	for want, b := range map[string][]byte{
		"settled as 4":        rawFrame(kindSettled, 1, string(settledMessage{Count: 1, Outcome: outcome{settlement: 4}}.append(nil))),
		"settled: segments 0": rawFrame(kindSettled, 1, string(settledMessage{Outcome: outcome{settlement: pd.Done}}.append(nil))),
		"settled of 3 bytes":  rawFrame(kindSettled, 1, "abc"),
		"freed: 7 bytes":      rawFrame(kindBegan, 1, "abcdefg"),
		"freed: 9 bytes":      rawFrame(kindFreed, 1, "abcdefghi"),
		"a text of":           rawFrame(kindCopied, 1, "\xff\xff\xff\xffx"),
	} {
		f, err := newFrameReader(bytes.NewReader(b)).next()
		require.NoError(t, err)
		_, err = decode(f, false)
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, newFrameReader(strings.NewReader("PDOWNER\x01")).hello(), "different programs")
}

// FuzzFrames: whatever comes is refused or understood, and what was understood is
// the same when it is said again.
func FuzzFrames(f *testing.F) {
	for fromNode, all := range everyMessage() {
		for _, m := range all {
			f.Add(rawFrame(m.kind(), 1, string(m.append(nil))), fromNode)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, fromNode bool) {
		r := newFrameReader(bytes.NewReader(b))
		for {
			frame, err := r.next()
			if err != nil {
				return
			}
			m, err := decode(frame, fromNode)
			if err != nil {
				require.ErrorIs(t, err, pd.CodeMalformed)
				return
			}
			frame.body = m.append(nil)
			again, err := decode(frame, fromNode)
			require.NoError(t, err)
			require.Equal(t, m, again)
		}
	})
}

// conns is a connection within this process.
func conns(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	near, far, err := socketPair()
	require.NoError(t, err)
	defer far.Close()
	b, err = unixConn(far)
	require.NoError(t, err)
	return near, b
}

// smallStart is an order that the simulator can carry out.
func smallStart() startMessage {
	return startMessage{
		Node: "p0", Boot: pd.NewBootID(), Hostname: "127.0.0.1", AttemptNanos: int64(time.Minute), ConnectNanos: int64(time.Second),
		Provider: simulator.Name, Regions: []madeInto{{Component: "kv", Bytes: 128}, {Component: "hidden", Bytes: 64}}, UsedPorts: []int{},
	}
}

// An owner ends, with its memory freed and its engine closed, when its node says
// something that no node says.
func TestOwnerEndsAtNonsense(t *testing.T) {
	target := targetMessage{ID: 1, Node: "d0", Boot: pd.NewBootID(), Epoch: 1, Endpoint: "127.0.0.1:1", Regions: []pd.Region{}}
	write := writeMessage{Job: 1, Target: 1, Handoff: someHandoff, Total: 2, Segments: make([]wireSegment, 1)}
	for name, c := range map[string]struct {
		say  []message
		want string
	}{
		"hangs up":                {nil, "the node has hung up"},
		"starts twice":            {[]message{smallStart()}, "out of place"},
		"retires nothing":         {[]message{retireMessage{ID: 3}}, "retire a target that is not known"},
		"names a target twice":    {[]message{target, target}, "target 1 again"},
		"writes to nobody":        {[]message{write}, "a target that is not known"},
		"mixes two jobs":          {[]message{target, write, writeMessage{Job: 2, Target: 1, Handoff: someHandoff, Total: 2, Segments: make([]wireSegment, 1)}}, "between the parts of another"},
		"changes a job's length":  {[]message{target, write, writeMessage{Job: 1, Target: 1, Handoff: someHandoff, Total: 3, Segments: make([]wireSegment, 1)}}, "1 segments and 1 of 3"},
		"says too many segments":  {[]message{target, write, writeMessage{Job: 1, Target: 1, Handoff: someHandoff, Total: 2, Segments: make([]wireSegment, 2)}}, "1 segments and 2 of 2"},
		"names another component": {[]message{target, writeMessage{Job: 1, Target: 1, Handoff: someHandoff, Total: 1, Segments: []wireSegment{{component: 2}}}}, "component 2 of 2"},
		"seals no handoff":        {[]message{sealMessage{Handoff: "x"}}, "handoff"},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := conns(t)
			served := make(chan error, 1)
			go func() {
				served <- Serve(t.Context(), ServeConfig{Conn: far, Provider: func(string, string) (transfer.Provider, error) {
					return simulator.New(simulator.Config{})
				}})
			}()
			l := newLink(near)
			require.NoError(t, l.meet(time.Now().Add(time.Minute)))
			require.NoError(t, l.out.send(smallStart()))
			f, err := l.in.next()
			require.NoError(t, err)
			m, err := decode(f, false)
			require.NoError(t, err)
			require.IsType(t, startedMessage{}, m)
			for _, m := range c.say {
				require.NoError(t, l.out.send(m))
			}
			if c.say == nil {
				near.Close()
			}
			require.ErrorContains(t, <-served, c.want)
			near.Close()
		})
	}
}

// rogue is an owner that starts well and answers the first write as it likes.
func rogue(t *testing.T, answer ...message) func(context.Context, pd.Rank) (*Process, error) {
	return func(context.Context, pd.Rank) (*Process, error) {
		near, far := conns(t)
		ended := make(chan struct{})
		var once sync.Once
		kill := func() { once.Do(func() { far.Close() }) }
		go func() {
			defer close(ended)
			defer kill()
			l := newLink(far)
			if l.meet(time.Now().Add(time.Minute)) != nil {
				return
			}
			for {
				f, err := l.in.next()
				if err != nil {
					return
				}
				m, err := decode(f, true)
				if err != nil {
					panic(err)
				}
				switch m := m.(type) {
				case startMessage:
					made := startedMessage{
						Life: lifeMessage{Epoch: 1, Endpoint: "127.0.0.1:1", Ports: []int{}}, Facts: factsMessage{Acknowledged: true, Build: "simulator/1"},
					}
					for _, r := range m.Regions {
						r.Envelope = "e"
						made.Regions = append(made.Regions, r)
					}
					_ = l.out.send(made)
				case writeMessage:
					for _, a := range answer {
						_ = l.out.send(a)
					}
				}
			}
		}()
		return &Process{Conn: near, PID: 77, Ended: ended, Kill: kill, How: func() error { return syscall.ECHILD }}, nil
	}
}

// heard are the events of one group.
type heard struct {
	chunk chan ChunkSettled
	lost  chan OwnerLost
	stop  chan HandoffStopped
}

func (heard) UnitSettled(UnitSettled)           {}
func (h heard) ChunkSettled(e ChunkSettled)     { h.chunk <- e }
func (h heard) SourceFreed(SourceFreed)         {}
func (h heard) HandoffStopped(e HandoffStopped) { h.stop <- e }
func (h heard) OwnerLost(e OwnerLost)           { h.lost <- e }

// A node believes nothing of an owner that breaks the protocol: the rank is lost
// and what it had is uncertain, also what it has called Done in the same breath.
func TestNodeLosesAnOwnerThatTalksNonsense(t *testing.T) {
	done := outcome{settlement: pd.Done, sourceFree: true}
	for name, c := range map[string]struct {
		say  []message
		want string
	}{
		"settles another job":     {[]message{settledMessage{Job: 99, Count: 1, Outcome: done}}, "a job that has them not open"},
		"settles too much":        {[]message{settledMessage{Job: 2, Count: 3, Outcome: done}}, "segments 0+3"},
		"settles twice":           {[]message{settledMessage{Job: 2, Count: 1, Outcome: done}, settledMessage{Job: 2, Count: 2, Outcome: done}}, "segments 0+2"},
		"frees another job":       {[]message{freedMessage{Job: 99}}, "leaves none in use"},
		"frees what is not read":  {[]message{settledMessage{Job: 2, Count: 1, Outcome: done}, freedMessage{Job: 2}}, "leaves none in use"},
		"begins another job":      {[]message{beganMessage{Job: 99}}, "began a job"},
		"fences by itself":        {[]message{fencedMessage{Text: "x", Code: pd.CodeBusy}}, "fenced without an order"},
		"copies by itself":        {[]message{copiedMessage{}}, "copied what nobody asked for"},
		"starts again":            {[]message{startedMessage{Life: lifeMessage{Epoch: 1, Endpoint: "x", Ports: []int{}}, Regions: []madeInto{}}}, "out of place"},
		"ends without being told": {[]message{closedMessage{}}, "closed without an order"},
	} {
		t.Run(name, func(t *testing.T) {
			h := heard{make(chan ChunkSettled, 1), make(chan OwnerLost, 1), make(chan HandoffStopped, 1)}
			contract := &pd.Contract{
				Groups:     []pd.CacheGroup{{Name: "g", Kind: pd.Full, PageTokens: 128}},
				Components: []pd.Component{{ID: "kv", Group: "g", ElementBytes: 2, RowsPerPage: 32, RowTokens: 4, RowElements: 1, Layers: []int{0}}},
				Bootstrap:  pd.Bootstrap{Component: "hidden", Rows: 8, RowElements: 4, ElementBytes: 2},
			}
			g, err := Open(t.Context(), Config{
				Peer: pd.Peer{Node: "p0", Boot: pd.NewBootID()}, Topology: pd.Topology{Ranks: 1, TP: 1}, Contract: contract,
				PagesPerLayer: map[pd.GroupName]int{"g": 4}, RingPeriods: map[pd.GroupName]int{}, BootstrapSlots: 1,
				Launch: rogue(t, c.say...), Remote: Remote{Provider: "simulator"}, Hostname: "127.0.0.1", AttemptTimeout: time.Minute, Events: h,
			})
			require.NoError(t, err)
			peer := pd.Peer{Node: "d0", Boot: pd.NewBootID()}
			require.NoError(t, g.Install(peer, g.Registry()))
			require.NoError(t, g.Submit(Write{
				Handoff: someHandoff, Peer: peer,
				Writes: []pd.RankWrite{{Segments: []pd.Segment{{Component: "kv", Bytes: 64}, {Component: "kv", SourceOffset: 64, TargetOffset: 128, Bytes: 64}}}},
				Units:  []pd.Unit{{Component: "kv", Bytes: 128}},
			}))
			require.ErrorContains(t, (<-h.lost).Err, c.want)
			e := <-h.chunk
			require.Equal(t, pd.Uncertain, e.Results[0].Settlement)
			require.False(t, e.SourceFree)
			require.NoError(t, g.Seal(someHandoff))
			require.Equal(t, pd.Unknown, (<-h.stop).Fact)
			require.ErrorIs(t, g.Fence(t.Context()), pd.CodeOwnerLost)
			require.NoError(t, g.Close(t.Context()))
		})
	}
}

func TestChecksSayCauseAndFix(t *testing.T) {
	require.NoError(t, CheckPidfd())
	for _, c := range []struct {
		err  error
		want string
	}{
		{syscall.ENOSYS, "older than 5.3"}, {syscall.EPERM, "allow pidfd_open"}, {syscall.EMFILE, "ulimit -n"}, {syscall.EINVAL, "--owners in-process"},
	} {
		err := explainPidfd(c.err)
		require.ErrorIs(t, err, pd.CodeInvalidConfig)
		require.ErrorIs(t, err, c.err)
		require.ErrorContains(t, err, c.want)
	}
	extents := transfer.Extents{"a": 1 << 20, "b": 64}
	require.NoError(t, explainLocked(1<<20+64, 3, extents))
	require.NoError(t, explainLocked(^uint64(0), 3, extents))
	err := explainLocked(64<<10, 3, extents)
	require.ErrorContains(t, err, "rank 3 need 1048640 bytes")
	require.ErrorContains(t, err, "is 65536")
	require.ErrorContains(t, err, "ulimit -l unlimited")
	var limit syscall.Rlimit
	const memlock = 8
	require.NoError(t, syscall.Getrlimit(memlock, &limit))
	if limit.Cur != ^uint64(0) {
		require.Error(t, checkLocked(transfer.Facts{LocksMemory: true}, 0, transfer.Extents{"a": 1 << 62}))
	}
	require.NoError(t, checkLocked(transfer.Facts{}, 0, transfer.Extents{"a": 1 << 62}))

	require.NoError(t, CheckHostname(t.Context(), "127.0.0.1"))
	require.NoError(t, CheckHostname(t.Context(), "::1"))
	err = CheckHostname(t.Context(), "no-such-host.invalid")
	require.ErrorIs(t, err, pd.CodeInvalidConfig)
	require.ErrorContains(t, err, `"no-such-host.invalid" does not resolve`)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, checkBound(t.Context(), "127.0.0.1", 0, []int{port}))
	require.NoError(t, l.Close())
	require.ErrorContains(t, checkBound(t.Context(), "127.0.0.1", 2, []int{port}), fmt.Sprintf("nothing listens on 127.0.0.1:%d, which the engine of rank 2", port))
}

// Memory that could shrink under the node's hands is not mapped.
func TestOnlySealedMemoryIsShared(t *testing.T) {
	f, err := newMemoryFile("test")
	require.NoError(t, err)
	defer f.Close()
	a := NewSharedArena(f)
	m, err := a.Allocate("kv", 100)
	require.NoError(t, err)
	second, err := a.Allocate("hidden", pageBytes)
	require.NoError(t, err)
	require.Zero(t, m.Base()%uintptr(pageBytes))
	regions := []madeInto{{Component: "kv", Bytes: 100, Offset: 1}, {Component: "hidden", Bytes: pageBytes, Offset: pageBytes + 1}}
	_, _, err = adoptShared(f, regions)
	require.ErrorContains(t, err, "not sealed")
	require.NoError(t, a.seal())
	require.Error(t, f.Truncate(0))
	_, err = a.Allocate("late", 1)
	require.ErrorIs(t, err, pd.CodeOwnerLost)
	for _, bad := range []madeInto{
		{Component: "kv", Bytes: 100, Offset: 2},
		{Component: "kv", Bytes: 2 * pageBytes, Offset: pageBytes + 1},
		{Component: "kv", Bytes: -1, Offset: 1},
		{Component: "kv", Bytes: 1, Offset: 1 + 1<<40},
		{Component: "kv", Bytes: 1 << 62, Offset: 1},
	} {
		_, blocks, err := adoptShared(f, []madeInto{bad})
		require.ErrorIs(t, err, pd.CodeMalformed)
		require.Empty(t, blocks)
	}
	memory, blocks, err := adoptShared(f, regions)
	require.NoError(t, err)
	second.Bytes()[5] = 42
	require.Equal(t, byte(42), memory["hidden"].Bytes()[5])
	require.Len(t, memory["kv"].Bytes(), 100)
	require.NoError(t, closeBlocks(blocks))
	require.NoError(t, a.Close())
	require.Nil(t, m.Bytes())
}

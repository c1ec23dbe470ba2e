package mooncake

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/tests/fakelib"
)

var rounds = flag.Int("mooncake.rounds", 3, "how often the fault loop goes through every knob")

// fault is one knob and what must come of it. Every error names the C function
// and its code.
type fault struct {
	name string
	run  func(t *testing.T, l *fakelib.Libraries, p *Provider)
}

// refused is a write that Submit refuses, and that left nothing behind.
func refused(knob fakelib.Knob, value int64, code pd.Code, text string) func(*testing.T, *fakelib.Libraries, *Provider) {
	return func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		before := l.Get(fakelib.Batches)
		source, target := newSide(t, p, sideOptions{}), newSide(t, p, sideOptions{rank: 1})
		source.noise(1)
		session := source.connect(t, target.target())
		await(t, "the identity row's batch is freed", func() bool { return l.Get(fakelib.Batches) == before })
		l.Set(knob, value)
		_, err := session.Submit(pieces(4096, 4))
		require.ErrorIs(t, err, code)
		require.ErrorContains(t, err, text)
		l.Reset()
		require.Equal(t, before, l.Get(fakelib.Batches), "the empty batch is freed")
		require.Equal(t, make([]byte, target.memory.Len()), target.memory.Bytes())
		require.Equal(t, pd.Done, source.write(t, session, pieces(4096, 4)).Settlement, "the session goes on")
	}
}

// uncertain is a write that begins and whose end proves nothing. ends says that
// the native batch ends once the knob is off.
func uncertain(knobs map[fakelib.Knob]int64, free, ends bool, text string) func(*testing.T, *fakelib.Libraries, *Provider) {
	timeout := time.Minute
	if strings.HasSuffix(text, "time-out") {
		timeout = 30 * time.Millisecond
	}
	return func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		before := l.Get(fakelib.Batches)
		source, target := newSide(t, p, sideOptions{timeout: timeout}), newSide(t, p, sideOptions{rank: 1})
		session := source.connect(t, target.target())
		await(t, "the identity row's batch is freed", func() bool { return l.Get(fakelib.Batches) == before })
		for knob, value := range knobs {
			l.Set(knob, value)
		}
		v := source.write(t, session, pieces(4096, 4))
		require.Equal(t, pd.Uncertain, v.Settlement)
		require.Equal(t, free, v.SourceFree, v.Detail)
		require.Contains(t, v.Detail, text)
		_, err := session.Submit(pieces(4096, 4))
		require.ErrorIs(t, err, pd.CodePeerUnreachable, "the session is not used again")
		l.Reset()
		leaked := p.Stats().LeakedBatches
		if ends {
			await(t, "the late batch is freed", func() bool { return l.Get(fakelib.Batches) == before })
			await(t, "nothing is late any more", func() bool { return p.Stats().OpenLate == 0 })
		}
		fresh := newSide(t, p, sideOptions{rank: 2})
		require.Equal(t, pd.Done, fresh.write(t, fresh.connect(t, target.target()), pieces(4096, 4)).Settlement)
		second := source.Poll(nil)
		require.Len(t, second, map[bool]int{true: 1}[ends && !free && !strings.HasPrefix(text, "submitTransfer")], "a batch settles once, and tells later that its source is free if it did not")
		for _, s := range second {
			require.Equal(t, transfer.Verdict{Ticket: v.Ticket, Settlement: pd.Uncertain, SourceFree: true, Detail: s.Detail}, s)
		}
		require.NoError(t, source.Close())
		if ends {
			require.Equal(t, leaked, p.Stats().LeakedBatches)
		} else {
			require.Equal(t, leaked+1, p.Stats().LeakedBatches, "what never ended is lost, and counted")
		}
		require.Zero(t, p.Stats().OpenLate)
	}
}

var faults = []fault{
	{"create fails", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		l.Set(fakelib.CreateFails, 1)
		_, err := openSide(t, p, sideOptions{})
		require.ErrorIs(t, err, pd.CodeInternal)
		require.ErrorContains(t, err, "createTransferEngine: code -1")
	}},
	{"another port is bound than announced", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		l.Set(fakelib.WrongPort, 3)
		_, err := openSide(t, p, sideOptions{})
		require.ErrorContains(t, err, "getLocalIpAndPort: ")
		require.Regexp(t, `port \d+(, want 15000\.\.17000| and does not listen on it)`, err.Error())
	}},
	{"register fails", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		s, err := openSide(t, p, sideOptions{})
		require.NoError(t, err)
		l.Set(fakelib.RegisterCode, -302)
		l.Set(fakelib.RegisterNth, 1)
		require.ErrorContains(t, s.register(), "registerLocalMemory: code -302 (memory)")
		require.NoError(t, s.register(), "the second try is a first one")
		l.Set(fakelib.RegisterNth, 1)
		err = s.Freeze()
		require.ErrorContains(t, err, "register the identity row: registerLocalMemory: code -302 (memory)")
	}},
	{"memory cannot be pinned", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		var old syscall.Rlimit
		require.NoError(t, syscall.Getrlimit(rlimitMemlock, &old))
		defer func() { require.NoError(t, syscall.Setrlimit(rlimitMemlock, &old)) }()
		require.NoError(t, syscall.Setrlimit(rlimitMemlock, &syscall.Rlimit{Cur: 4096, Max: old.Max}))
		l.Set(fakelib.Pins, 1)
		s, err := openSide(t, p, sideOptions{})
		require.NoError(t, err)
		require.ErrorContains(t, s.register(), "registerLocalMemory: code -302 (memory)")
		require.Equal(t, "4096 bytes", memlockText())
	}},
	{"open segment fails", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		source, target := newSide(t, p, sideOptions{}), newSide(t, p, sideOptions{rank: 1})
		l.Set(fakelib.OpenFails, 1)
		_, err := source.Connect(t.Context(), target.target())
		require.ErrorIs(t, err, pd.CodePeerUnreachable)
		require.ErrorContains(t, err, "openSegmentNoCache: code -1")
	}},
	{"open segment is slow", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		source, target := newSide(t, p, sideOptions{}), newSide(t, p, sideOptions{rank: 1})
		l.Set(fakelib.HoldOpen, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := source.Connect(ctx, target.target())
		require.ErrorIs(t, err, pd.CodePeerUnreachable)
		require.ErrorContains(t, err, context.DeadlineExceeded.Error())
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		for range 3 {
			require.ErrorIs(t, source.Fence(cancelled), pd.CodeDeadline, "the call is still in the library")
		}
		l.Set(fakelib.HoldOpen, 0)
		require.NoError(t, source.Close(), "Close waits for the call")
	}},
	{"no batch", refused(fakelib.AllocateFails, 1, pd.CodeTransferFailed, "allocateBatchID: ")},
	{"submit refused", refused(fakelib.SubmitCode, 1, pd.CodeTransferFailed, "submitTransfer: code 1 (invalid argument)")},
	{"submit refused for size", refused(fakelib.SubmitCode, 2, pd.CodeTransferFailed, "submitTransfer: code 2 (too many requests)")},
	{"submit breaks off", uncertain(map[fakelib.Knob]int64{fakelib.SubmitCode: 200, fakelib.SubmitBegins: 1}, false, true, "submitTransfer: code 200 (metadata)")},
	{"submit fails with nothing begun", uncertain(map[fakelib.Knob]int64{fakelib.SubmitCode: 8}, false, true, "submitTransfer: code 8 (transport not supported)")},
	{"timeout", uncertain(map[fakelib.Knob]int64{fakelib.Status: 1 + 5}, false, true, "getTransferStatus: task 3 is TIMEOUT")},
	{"canceled", uncertain(map[fakelib.Knob]int64{fakelib.Status: 1 + 3}, false, true, "getTransferStatus: task 3 is CANCELED")},
	{"invalid", uncertain(map[fakelib.Knob]int64{fakelib.Status: 1 + 2}, false, true, "getTransferStatus: task 3 is INVALID")},
	{"unknown status", uncertain(map[fakelib.Knob]int64{fakelib.Status: 1 + 99}, false, true, "getTransferStatus: task 3 is status 99")},
	{"pending for ever", uncertain(map[fakelib.Knob]int64{fakelib.Status: 1 + 1}, false, true, "WAITING or PENDING at the attempt's time-out")},
	{"waiting for ever", uncertain(map[fakelib.Knob]int64{fakelib.Status: 1 + 0}, false, true, "WAITING or PENDING at the attempt's time-out")},
	{"status refused", uncertain(map[fakelib.Knob]int64{fakelib.StatusCode: 101}, false, false, "getTransferStatus: code 101 (name resolution)")},
	{"completed short", uncertain(map[fakelib.Knob]int64{fakelib.Short: 1}, true, true, "0 of 4 tasks completed, 0 failed, 4 short: getTransferStatus: task 3 is COMPLETED")},
	{"one task of four fails", uncertain(map[fakelib.Knob]int64{fakelib.FailNthTask: 2}, true, true, "3 of 4 tasks completed, 1 failed, 0 short: getTransferStatus: task 1 is FAILED")},
	{"half is written", uncertain(map[fakelib.Knob]int64{fakelib.HalfThenFail: 1}, true, true, "FAILED")},
	{"free refused", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		before := l.Get(fakelib.Batches)
		source, target := newSide(t, p, sideOptions{}), newSide(t, p, sideOptions{rank: 1})
		session := source.connect(t, target.target())
		l.Set(fakelib.FreeCode, 4)
		v := source.write(t, session, pieces(4096, 4))
		require.Equal(t, pd.Done, v.Settlement, "that it is not freed says nothing of the bytes")
		require.Greater(t, l.Get(fakelib.Batches), before)
		l.Reset()
		await(t, "freed at last", func() bool { return l.Get(fakelib.Batches) == before })
	}},
	{"unregister refused", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		s := newSide(t, p, sideOptions{})
		l.Set(fakelib.UnregisterCode, -3)
		require.NoError(t, s.Close(), "destroying ends registrations, too")
	}},
	{"fence hangs", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		s := newSide(t, p, sideOptions{})
		l.Set(fakelib.HoldDestroy, 1)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		err := s.Fence(ctx)
		require.ErrorIs(t, err, pd.CodeDeadline)
		require.ErrorContains(t, err, "destroyTransferEngine has not returned")
		_, err = s.Connect(t.Context(), s.target())
		require.ErrorIs(t, err, pd.CodeOwnerLost)
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, s.Fence(cancelled), pd.CodeDeadline)
		l.Set(fakelib.HoldDestroy, 0)
		require.NoError(t, s.Fence(t.Context()), "it waits for the destroy that is under way")
		require.Equal(t, pd.Epoch(2), s.Epoch())
	}},
	{"close hangs", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		l.Set(fakelib.Stall, 1)
		source, target := newSide(t, p, sideOptions{}), newSide(t, p, sideOptions{rank: 1})
		_, err := source.connect(t, target.target()).Submit(pieces(4096, 4))
		require.NoError(t, err)
		l.Set(fakelib.HoldDestroy, 1)
		usual := p.closeTimeout
		p.closeTimeout = time.Millisecond
		err = source.Close()
		require.ErrorIs(t, err, pd.CodeDeadline)
		require.ErrorContains(t, err, "does not let go of the registered memory")
		v := source.next(t, 1)[0]
		require.Equal(t, pd.Uncertain, v.Settlement)
		require.False(t, v.SourceFree, "its threads may still read")
		require.ErrorIs(t, source.Close(), pd.CodeDeadline, "again")
		require.Equal(t, int64(1), p.Stats().HungEngines)
		l.Set(fakelib.HoldDestroy, 0)
		p.closeTimeout = usual
		require.NoError(t, source.Close())
		require.Equal(t, Stats{LateBatches: 1, LeakedBatches: 1}, p.Stats())
	}},
	{"fence cannot create", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		source, s := newSide(t, p, sideOptions{}), newSide(t, p, sideOptions{rank: 1})
		l.Set(fakelib.CreateFails, 1)
		err := s.Fence(t.Context())
		require.ErrorContains(t, err, "no earlier write lands any more, but the new engine could not be made: createTransferEngine: code -1")
		require.Equal(t, pd.Epoch(1), s.Epoch())
		l.Set(fakelib.RegisterCode, -302)
		l.Set(fakelib.RegisterNth, 2)
		err = s.Fence(t.Context())
		require.ErrorContains(t, err, "register identity row: registerLocalMemory: code -302 (memory)")
		require.NoError(t, s.Fence(t.Context()))
		require.Equal(t, pd.Epoch(2), s.Epoch())
		require.Equal(t, pd.Done, source.write(t, source.connect(t, s.target()), pieces(4096, 4)).Settlement)
	}},
	{"the library takes the same port again", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		s := newSide(t, p, sideOptions{})
		old := s.Endpoint()
		l.Set(fakelib.SamePort, 2)
		require.NoError(t, s.Fence(t.Context()))
		require.NotEqual(t, old, s.Endpoint())
		l.Set(fakelib.SamePort, 100)
		require.ErrorContains(t, s.Fence(t.Context()), "createTransferEngine: the library took a port that an earlier engine had in 8 tries")
	}},
	{"signal handlers", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGINT)
		defer signal.Stop(signals)
		l.Set(fakelib.CreateHandlers, 1)
		newSide(t, p, sideOptions{})
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGINT))
		require.Equal(t, syscall.SIGINT, <-signals, "Go's handler is in place")
		var nothing *side
		require.Panics(t, func() { nothing.rank++ }, "and so is the one of SIGSEGV")
	}},
	{"slow calls", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		source, target := newSide(t, p, sideOptions{}), newSide(t, p, sideOptions{rank: 1})
		for _, k := range []fakelib.Knob{fakelib.SubmitMillis, fakelib.AnswerMillis, fakelib.OpenMillis, fakelib.CreateMillis, fakelib.DestroyMillis} {
			l.Set(k, 5)
		}
		require.Equal(t, pd.Done, source.write(t, source.connect(t, target.target()), pieces(4096, 4)).Settlement)
		require.NoError(t, target.Fence(t.Context()))
	}},
	{"a hidden second attempt", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		// Nothing can be seen of it but that it lands. So it must not exist: the
		// environment that forbids it is enforced before the library is loaded.
		require.Equal(t, int64(1), l.Get(fakelib.RetryCount))
		source, target := newSide(t, p, sideOptions{}), newSide(t, p, sideOptions{rank: 1})
		source.noise(1)
		session, before := source.connect(t, target.target()), l.Get(fakelib.HiddenRetries)
		l.Set(fakelib.HoldRetries, 1)
		l.Set(fakelib.HiddenRetry, 1)
		require.Equal(t, pd.Done, source.write(t, session, pieces(4096, 1)).Settlement)
		clear(target.memory.Bytes())
		l.Reset()
		await(t, "it lands once more", func() bool { return l.Get(fakelib.HiddenRetries) == before+1 })
		require.Equal(t, source.memory.Bytes()[:4096], target.memory.Bytes()[:4096])
	}},
	{"the library prints", func(t *testing.T, l *fakelib.Libraries, p *Provider) {
		l.Set(fakelib.CreatePrints, 1)
		source, target := newSide(t, p, sideOptions{}), newSide(t, p, sideOptions{rank: 1})
		l.Reset()
		require.Equal(t, pd.Done, source.write(t, source.connect(t, target.target()), pieces(4096, 4)).Settlement)
	}},
	{"device is full", func(t *testing.T, l *fakelib.Libraries, _ *Provider) {
		l.Set(fakelib.AclMallocCode, 207001)
		_, err := ascend(t, l).Open(t.Context(), transfer.Options{Identity: transfer.Identity{Boot: pd.NewBootID()}, Hostname: "127.0.0.1", AttemptTimeout: time.Second})
		require.ErrorContains(t, err, "memory for the identity row: aclrtMalloc: code 207001 (out of memory)")
	}},
}

// TestFaults goes through every knob, again and again; make conformance-mooncake
// does it a thousand times under the race detector.
func TestFaults(t *testing.T) {
	l := needFakes(t)
	round := func(t *testing.T) {
		for _, f := range faults {
			t.Run(f.name, func(t *testing.T) {
				l := needFakes(t)
				f.run(t, l, tcp(t, l))
			})
			if t.Failed() {
				return
			}
		}
	}
	round(t) // what a process opens once
	leaked := goleak.IgnoreCurrent()
	files, threads, batches := descriptors(t), entries(t, "/proc/self/task"), l.Get(fakelib.Batches)
	for range *rounds {
		round(t)
	}
	require.Equal(t, files, descriptors(t))
	goleak.VerifyNone(t, leaked)
	// Threads that Go keeps for later vary; a leak would not.
	runtime.GC()
	require.LessOrEqual(t, entries(t, "/proc/self/task"), threads+16)
	require.LessOrEqual(t, l.Get(fakelib.Batches)-batches, int64(2**rounds), "two knobs of the list lose one batch each")
}

func entries(t *testing.T, dir string) int {
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	return len(list)
}

func descriptors(t *testing.T) int { return entries(t, "/proc/self/fd") }

package mooncake

import (
	"context"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/tests/fakelib"
)

var ctxBackground = context.Background()

// eachLibrary runs a test with a peer in another process, over the fake library
// and over the real one. These are the behaviours of the real one that
// settlements rest on.
func eachLibrary(t *testing.T, run func(t *testing.T, p *Provider, library string)) {
	t.Run("fake", func(t *testing.T) {
		l := needFakes(t)
		run(t, tcp(t, l), l.TransferEngine)
	})
	t.Run("real", func(t *testing.T) {
		p := real(t)
		run(t, p, p.options.Library)
	})
}

const big = 64 << 20

// TestCompletedIsAcknowledged: when a write is Done, the other process has the
// bytes.
func TestCompletedIsAcknowledged(t *testing.T) {
	eachLibrary(t, func(t *testing.T, p *Provider, library string) {
		source, target := newSide(t, p, sideOptions{bytes: big}), peer(t, library, big)
		session := source.connect(t, target.target)
		for seed := range byte(3) {
			source.noise(seed)
			v := source.write(t, session, pieces(big, pd.MaxSegmentTasks))
			require.Equal(t, pd.Done, v.Settlement, v.Detail)
			require.True(t, v.SourceFree)
			require.Equal(t, digest(source.memory.Bytes()), target.sum(t))
		}
		require.NoError(t, target.in.Close())
		require.NoError(t, target.Wait(), "the child closes its engine")
	})
}

// TestPeerKilled: every batch of a killed peer ends, as Uncertain, and frees
// its source and itself.
func TestPeerKilled(t *testing.T) {
	eachLibrary(t, func(t *testing.T, p *Provider, library string) {
		source, target := newSide(t, p, sideOptions{bytes: big}), peer(t, library, big)
		session := source.connect(t, target.target)
		// Stopped first, so that all of it is on its way when the peer dies.
		require.NoError(t, target.Process.Signal(syscall.SIGSTOP))
		for range 4 {
			_, err := session.Submit(pieces(big, 4))
			require.NoError(t, err)
		}
		require.NoError(t, target.Process.Kill())
		for _, v := range source.next(t, 4) {
			require.Equal(t, pd.Uncertain, v.Settlement)
			require.True(t, v.SourceFree)
			require.Contains(t, v.Detail, "FAILED")
		}
		_, err := source.Connect(t.Context(), target.target)
		require.ErrorIs(t, err, pd.CodePeerUnreachable, "a segment that was open is no proof of life")
		before := p.Stats().LeakedBatches
		require.NoError(t, source.Close())
		require.Equal(t, before, p.Stats().LeakedBatches)

		// The next boot of the peer has another name.
		next, again := newSide(t, p, sideOptions{bytes: big}), peer(t, library, big)
		require.Equal(t, pd.Done, next.write(t, next.connect(t, again.target), pieces(big, 4)).Settlement)
	})
}

// TestPeerStopped: nothing ends a body that stalls but our own time-out. The
// batch behind it cannot be freed, stays polled, and ends when the peer goes on.
func TestPeerStopped(t *testing.T) {
	eachLibrary(t, func(t *testing.T, p *Provider, library string) {
		source, target := newSide(t, p, sideOptions{bytes: big, timeout: 500 * time.Millisecond}), peer(t, library, big)
		session := source.connect(t, target.target)
		source.noise(7)
		require.NoError(t, target.Process.Signal(syscall.SIGSTOP))
		_, err := session.Submit(pieces(big, 4))
		require.NoError(t, err)
		v := source.next(t, 1)[0]
		require.Equal(t, pd.Uncertain, v.Settlement)
		require.False(t, v.SourceFree, "the library may go on reading")
		require.Equal(t, Stats{LateBatches: 1, OpenLate: 1}, p.Stats())
		_, err = session.Submit(pieces(big, 4))
		require.ErrorIs(t, err, pd.CodePeerUnreachable)

		require.NoError(t, target.Process.Signal(syscall.SIGCONT))
		await(t, "the late batch ends", func() bool { return p.Stats().OpenLate == 0 })
		end := source.Poll(nil)
		require.Len(t, end, 1, "the end of the reading is told, once")
		require.Equal(t, v.Ticket, end[0].Ticket)
		require.Equal(t, pd.Uncertain, end[0].Settlement, "which proves nothing new")
		require.True(t, end[0].SourceFree)
		require.Equal(t, digest(source.memory.Bytes()), target.sum(t), "it did land, late")
		require.NoError(t, source.Close())
		require.Zero(t, p.Stats().LeakedBatches)
	})
}

// TestCloseWithAStoppedPeer: an unfinished batch is lost with its engine, on
// purpose, and counted; the engine itself ends.
func TestCloseWithAStoppedPeer(t *testing.T) {
	eachLibrary(t, func(t *testing.T, p *Provider, library string) {
		source, target := newSide(t, p, sideOptions{bytes: big}), peer(t, library, big)
		session := source.connect(t, target.target)
		require.NoError(t, target.Process.Signal(syscall.SIGSTOP))
		_, err := session.Submit(pieces(big, 4))
		require.NoError(t, err)
		require.NoError(t, source.Close())
		v := source.next(t, 1)[0]
		require.Equal(t, pd.Uncertain, v.Settlement)
		require.True(t, v.SourceFree, "no thread that reads it is left")
		require.Equal(t, Stats{LeakedBatches: 1}, p.Stats())
	})
}

// TestFenceOfAnotherProcess: after the target's fence returned, no byte of an
// earlier write lands, though the sender lives and has more to send.
func TestFenceOfAnotherProcess(t *testing.T) {
	eachLibrary(t, func(t *testing.T, p *Provider, library string) {
		source, target := newSide(t, p, sideOptions{bytes: big}), peer(t, library, big)
		old := target.target
		session := source.connect(t, old)
		source.noise(1)
		for range 4 {
			_, err := session.Submit(pieces(big, 64))
			require.NoError(t, err)
		}
		source.Poll(nil)
		target.order(t, "fence")
		require.NoError(t, target.out.Decode(&target.target))
		after := target.sum(t)
		require.Equal(t, old.Identity.Epoch+1, target.target.Identity.Epoch)
		require.NotEqual(t, old.Endpoint, target.target.Endpoint)

		// Every batch that was cut has ended, so nothing of it is on its way.
		await(t, "all batches end", func() bool { return session.(interface{ idle() bool }).idle() })
		source.Poll(nil)
		require.Equal(t, after, target.sum(t))
		_, err := source.Connect(t.Context(), old)
		require.Error(t, err)
		require.Equal(t, pd.Done, source.write(t, source.connect(t, target.target), pieces(big, 64)).Settlement)
		require.Equal(t, digest(source.memory.Bytes()), target.sum(t))
	})
}

// idle says that no batch of the session is open.
func (s *session) idle() bool { return s.open.Load() == 0 }

// TestChildrenInheritNoPort: a program that is started while an engine listens
// does not get its sockets.
func TestChildrenInheritNoPort(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("descriptors are listed in /proc")
	}
	sockets := func() int {
		out, err := exec.Command("ls", "-l", "/proc/self/fd").Output()
		require.NoError(t, err)
		return strings.Count(string(out), "socket:")
	}
	eachLibrary(t, func(t *testing.T, p *Provider, _ string) {
		before := sockets()
		newSide(t, p, sideOptions{})
		require.Equal(t, before, sockets())
	})
}

// TestFatalFaults: what kills a process by nature kills an owner's, and its
// parent sees how.
func TestFatalFaults(t *testing.T) {
	l := needFakes(t)
	t.Run("exception", func(t *testing.T) {
		c := spawn(t, l.TransferEngine, 1<<20, func(k *fakelib.Libraries) { k.Set(fakelib.CreateThrows, 1) })
		requireEnd(t, c, syscall.SIGABRT)
		require.Contains(t, c.said.String(), "throwing an instance of 'int'")
	})
	t.Run("wild pointer", func(t *testing.T) {
		c := spawn(t, l.TransferEngine, 1<<20, nil)
		require.NoError(t, c.out.Decode(&c.target))
		// The second submit: the first reads the identity row.
		c.knobs.Set(fakelib.SubmitSegv, 2)
		c.order(t, "write")
		requireEnd(t, c, syscall.SIGSEGV)
	})
}

// requireEnd: the process ended by the signal, or by the Go runtime's exit code
// for a signal in foreign code.
func requireEnd(t *testing.T, p *process, want syscall.Signal) {
	err := p.Wait()
	require.Error(t, err)
	status := p.ProcessState.Sys().(syscall.WaitStatus)
	if status.Exited() {
		require.Equal(t, 2, status.ExitStatus(), "the Go runtime reports %s and exits with 2", want)
		return
	}
	require.Equal(t, want, status.Signal())
}

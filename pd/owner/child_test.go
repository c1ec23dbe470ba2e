package owner_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

// ownerProcess makes the test binary an owner process, and nodeProcess a node
// that starts owners, prints their ids and waits for its own end.
const (
	ownerProcess = "OWNER_TEST_OWNER_PROCESS"
	nodeProcess  = "OWNER_TEST_NODE_PROCESS"
)

// runOwnerProcess is pypto-serving owner with the simulator as its only provider.
func runOwnerProcess() int {
	if os.Getenv(ownerProcess) == "dies" {
		return 7
	}
	c, err := owner.Inherited()
	if err == nil {
		c.Provider = func(name, options string) (transfer.Provider, error) {
			var faults []simulator.Fault
			if err := json.Unmarshal([]byte(options), &faults); err != nil {
				return nil, err
			}
			p, err := simulator.New(simulator.Config{Faults: faults})
			switch {
			case err != nil:
				return nil, err
			case name == lateReader:
				return tongue{p, readLate}, nil
			case name != simulator.Name:
				return nil, fmt.Errorf("provider %q is unknown", name)
			}
			return p, nil
		}
		err = owner.Serve(context.Background(), c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func children(t testing.TB, lock *owner.BootLock, mode string) *owner.Children {
	if overSockets {
		t.Skip("these owners are processes in either run")
	}
	c, err := owner.NewChildren(owner.ChildOptions{Env: append(os.Environ(), ownerProcess+"="+mode), Lock: lock, Stderr: io.Discard})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// lateReader is a provider of owner processes whose batches are read after their
// verdict.
const lateReader = "late reader"

// inChildren moves the owners of a config into processes.
func inChildren(t testing.TB, c *owner.Config, faults ...simulator.Fault) {
	options, err := json.Marshal(append([]simulator.Fault{}, faults...))
	require.NoError(t, err)
	c.Provider, c.Remote = nil, owner.Remote{Provider: simulator.Name, Options: string(options)}
	c.Launch = children(t, nil, "1").Launch
}

// newChildSide is a node whose owners are processes.
func newChildSide(t testing.TB, o sideOptions, faults ...simulator.Fault) *side {
	o = o.withDefaults(t)
	c := o.config(nil)
	inChildren(t, &c, faults...)
	return startSide(t, o, c)
}

// signal sends a signal to the owner of a rank, which is this process's child.
func (s *side) signal(rank pd.Rank, signal syscall.Signal) {
	require.NoError(s.t, syscall.Kill(s.ProcessIDs()[rank], signal))
}

func (s *side) lost(rank pd.Rank) owner.OwnerLost {
	s.t.Helper()
	return await(s.t, s.recorder, "OwnerLost", func() (owner.OwnerLost, bool) {
		for _, e := range s.losses {
			if e.Rank == rank {
				return e, true
			}
		}
		return owner.OwnerLost{}, false
	})
}

// ended waits for the end of a process, which is then not even a zombie.
func ended(t testing.TB, pid int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	again := time.NewTicker(time.Millisecond) // the kernel tells nobody but the parent
	defer again.Stop()
	for syscall.Kill(pid, 0) == nil {
		select {
		case <-again.C:
		case <-ctx.Done():
			require.FailNow(t, fmt.Sprintf("process %d does not end", pid))
		}
	}
}

// deafTo makes the target rank take in and never answer.
func deafTo(rank pd.Rank) simulator.Fault {
	f := deaf()
	f.Target = &rank
	return f
}

var two = pd.Topology{Ranks: 2, TP: 2}

// straight pairs rank 0 with rank 0 and rank 1 with rank 1.
var straight = []pd.RankPair{{Source: 0, Target: 0}, {Source: 1, Target: 1}}

// onBoth is a chunk with the same segments on both ranks.
func onBoth(h pd.HandoffID, chunk pd.ChunkID, from, to *side) owner.Write {
	segments, sums := chunkOf(from, to, 1, copyPages{"kv", 1, 2}, copyPages{"win", 3, 4})
	return write(h, chunk, to, straight, segments, sums)
}

func descriptors(t testing.TB) int {
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}

func TestChildOwnersMoveTheSameBytes(t *testing.T) {
	before := descriptors(t)
	t.Cleanup(func() {
		// Every descriptor but those that the runtime keeps for itself from its first
		// use on: its poller and its event.
		require.LessOrEqual(t, descriptors(t), before+2)
	})
	from, to := newChildSide(t, sideOptions{topology: two}), newChildSide(t, sideOptions{name: "d0", topology: two})
	pids := append(from.ProcessIDs(), to.ProcessIDs()...)
	require.Len(t, pids, 4)
	t.Cleanup(func() {
		for _, pid := range pids {
			require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH, "process %d is left", pid)
		}
	})
	for _, pid := range pids {
		require.NotEqual(t, os.Getpid(), pid)
	}
	from.knows(to)
	want, source := to.snapshot(), from.snapshot()
	w := onBoth(pd.NewHandoffID(), 0, from, to)
	apply(want, from, w)
	require.NoError(t, from.Submit(w))
	requireAll(t, pd.Done, from.settled(w))
	to.requireMemory(want)
	from.requireMemory(source)
	require.Equal(t, pd.AllDone, from.stopped(w.Handoff))

	// A fence of the target's owners: new engines, the same memory, and only the new
	// ones are written to.
	old := to.Registry()
	require.NoError(t, to.Fence(t.Context()))
	fresh := to.Registry()
	for i := range fresh.Ranks {
		require.Equal(t, old.Ranks[i].Epoch+1, fresh.Ranks[i].Epoch)
		require.NotEqual(t, old.Ranks[i].Endpoint, fresh.Ranks[i].Endpoint)
	}
	to.requireMemory(want)
	from.knows(to)
	again := onBoth(pd.NewHandoffID(), 0, from, to)
	require.NoError(t, from.Submit(again))
	requireAll(t, pd.Done, from.settled(again))
	require.NoError(t, from.Close(t.Context()))
	require.NoError(t, to.Close(t.Context()))
	require.Nil(t, from.Memory(0, "ori"))
}

// A dead owner of the sender: what was in its hands is uncertain and may still be
// read, whatever the moment, and it never states a fact.
func TestKilledOwnerOfTheSource(t *testing.T) {
	for _, stage := range []string{"before submit", "in mid-transfer", "after"} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			var faults []simulator.Fault
			if stage == "in mid-transfer" {
				faults = append(faults, deafTo(1))
			}
			from, to := newChildSide(t, sideOptions{topology: two}, faults...), newChildSide(t, sideOptions{name: "d0", topology: two})
			from.knows(to)
			w := onBoth(pd.NewHandoffID(), 0, from, to)
			if stage != "before submit" {
				require.NoError(t, from.Submit(w))
				await(t, from.recorder, "the unit of rank 0", func() (bool, bool) { return true, len(from.units) > 0 })
			}
			if stage == "after" {
				requireAll(t, pd.Done, from.settled(w))
			}
			from.signal(1, syscall.SIGKILL)
			e := from.lost(1)
			require.Equal(t, from.ProcessIDs()[1], e.PID)
			require.ErrorContains(t, e.Err, fmt.Sprintf("process %d was ended by signal 9 (killed)", e.PID))
			switch stage {
			case "before submit":
				err := from.Submit(w)
				require.ErrorIs(t, err, pd.CodeOwnerLost)
				require.ErrorContains(t, err, "rank 1 is gone")
				require.Equal(t, pd.NeverSubmitted, from.stopped(w.Handoff), "the dead rank never had a part of it")
			case "in mid-transfer":
				c := from.settled(w)
				for _, r := range c.Results {
					want := map[pd.Rank]pd.Settlement{0: pd.Done, 1: pd.Uncertain}[r.Source]
					require.Equal(t, want, r.Settlement, "%s on rank %d: %s", r.Component, r.Target, r.Detail)
				}
				require.False(t, c.SourceFree, "nobody can say that the source is read no more")
				require.Equal(t, pd.Unknown, from.stopped(w.Handoff))
			case "after":
				require.Equal(t, pd.Unknown, from.stopped(w.Handoff), "no fact can come from a dead rank")
			}
			// The other rank goes on, and nothing brings the dead one back.
			alone := simple(pd.NewHandoffID(), 0, from, to)
			require.NoError(t, from.Submit(alone))
			requireAll(t, pd.Done, from.settled(alone))
			require.Equal(t, pd.AllDone, from.stopped(alone.Handoff))
			require.ErrorIs(t, from.Fence(t.Context()), pd.CodeOwnerLost)
			require.Len(t, from.losses, 1)
		})
	}
}

// A dead owner of the target: the sender never learns Done of what was under way,
// and no fence of the target can prove anything.
func TestKilledOwnerOfTheTarget(t *testing.T) {
	for _, stage := range []string{"before submit", "in mid-transfer", "after"} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			from, to := newChildSide(t, sideOptions{topology: two}, deafTo(1)), newChildSide(t, sideOptions{name: "d0", topology: two})
			from.knows(to)
			w := onBoth(pd.NewHandoffID(), 0, from, to)
			if stage != "in mid-transfer" {
				w = simple(pd.NewHandoffID(), 0, from, to)
				w.Writes[0].Pair.Target = 0
			}
			if stage != "before submit" {
				require.NoError(t, from.Submit(w))
				await(t, from.recorder, "a unit of rank 0", func() (bool, bool) { return true, len(from.units) > 0 })
			}
			if stage == "after" {
				requireAll(t, pd.Done, from.settled(w))
			}
			to.signal(1, syscall.SIGKILL)
			require.ErrorContains(t, to.lost(1).Err, "signal 9")
			if stage == "before submit" {
				w = onBoth(pd.NewHandoffID(), 0, from, to)
				require.NoError(t, from.Submit(w))
			}
			c := from.settled(w)
			for _, r := range c.Results {
				if r.Target == 1 {
					require.NotEqual(t, pd.Done, r.Settlement)
				} else {
					require.Equal(t, pd.Done, r.Settlement)
				}
			}
			require.True(t, c.SourceFree, "the living sender reads no more")
			require.Empty(t, from.losses)
			err := to.Fence(t.Context())
			require.ErrorIs(t, err, pd.CodeOwnerLost)
			require.ErrorContains(t, err, "rank 1 is gone")
			require.NotNil(t, to.Memory(1, "ori"), "the memory outlives the process that registered it")
		})
	}
}

// An owner that stands still is given up after the attempt timeout; going on
// heals nothing, and it ends by itself.
func TestStoppedOwner(t *testing.T) {
	for _, stage := range []string{"before submit", "in mid-transfer", "after"} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			var faults []simulator.Fault
			if stage == "in mid-transfer" {
				faults = append(faults, deafTo(1))
			}
			from := newChildSide(t, sideOptions{topology: two, timeout: 2 * time.Second}, faults...)
			to := newChildSide(t, sideOptions{name: "d0", topology: two})
			from.knows(to)
			w := onBoth(pd.NewHandoffID(), 0, from, to)
			if stage != "before submit" {
				require.NoError(t, from.Submit(w))
				await(t, from.recorder, "the unit of rank 0", func() (bool, bool) { return true, len(from.units) > 0 })
			}
			if stage == "after" {
				requireAll(t, pd.Done, from.settled(w))
			}
			from.signal(1, syscall.SIGSTOP)
			if stage == "in mid-transfer" {
				c := from.settled(w)
				for _, r := range c.Results {
					require.Equal(t, map[pd.Rank]pd.Settlement{0: pd.Done, 1: pd.Uncertain}[r.Source], r.Settlement)
				}
				require.False(t, c.SourceFree)
			}
			require.ErrorContains(t, from.lost(1).Err, "has not answered for")
			want := pd.Unknown
			if stage == "before submit" {
				require.ErrorIs(t, from.Submit(w), pd.CodeOwnerLost)
				want = pd.NeverSubmitted
			}
			require.Equal(t, want, from.stopped(w.Handoff))
			from.mu.Lock()
			units, chunks := len(from.units), len(from.chunks)
			from.mu.Unlock()
			pid := from.ProcessIDs()[1]
			from.signal(1, syscall.SIGCONT)
			ended(t, pid)
			alone := simple(pd.NewHandoffID(), 0, from, to)
			require.NoError(t, from.Submit(alone))
			from.settled(alone)
			require.Len(t, from.chunks, chunks+1, "the revived owner has changed something")
			require.Len(t, from.units, units+1)
			require.ErrorIs(t, from.Submit(onBoth(pd.NewHandoffID(), 0, from, to)), pd.CodeOwnerLost)
		})
	}
}

// A stopped owner does not keep its node from ending.
func TestStoppedOwnerIsEndedAtLast(t *testing.T) {
	from := newChildSide(t, sideOptions{timeout: 400 * time.Millisecond})
	pid := from.ProcessIDs()[0]
	from.signal(0, syscall.SIGSTOP)
	from.lost(0)
	require.NoError(t, from.Close(t.Context()))
	ended(t, pid)
}

func TestOwnersThatDoNotStart(t *testing.T) {
	for name, c := range map[string]struct {
		mode, provider, options, want string
	}{
		"unknown provider": {"1", "nobody", "[]", `provider "nobody" is unknown`},
		"bad options":      {"1", simulator.Name, `[{"kind":"no_such"}]`, `kind: "no_such" is unknown`},
		"ends at once":     {"dies", simulator.Name, "[]", "has ended by itself: exit status 7"},
	} {
		t.Run(name, func(t *testing.T) {
			o := sideOptions{topology: two}.withDefaults(t)
			config := o.config(newRecorder())
			config.Provider, config.Remote = nil, owner.Remote{Provider: c.provider, Options: c.options}
			config.Launch = children(t, nil, c.mode).Launch
			_, err := owner.Open(t.Context(), config)
			require.ErrorContains(t, err, "start the owner of rank")
			require.ErrorContains(t, err, c.want)
		})
	}
	c := sideOptions{topology: two}.withDefaults(t).config(newRecorder())
	c.Provider, c.Remote.Provider = nil, simulator.Name
	c.Launch = func(context.Context, pd.Rank) (*owner.Process, error) { return nil, syscall.EAGAIN }
	_, err := owner.Open(t.Context(), c)
	require.ErrorIs(t, err, syscall.EAGAIN)
}

// runNodeProcess is a node with a boot lock and two owners.
func runNodeProcess() int {
	err := func() error {
		path := os.Getenv(nodeProcess)
		boot := pd.NewBootID()
		lock, err := owner.LockBoot(context.Background(), path, boot)
		if err != nil {
			return err
		}
		os.Unsetenv(nodeProcess)
		c, err := owner.NewChildren(owner.ChildOptions{Env: append(os.Environ(), ownerProcess+"=1"), Lock: lock, Stderr: os.Stderr})
		if err != nil {
			return err
		}
		g, err := owner.Open(context.Background(), owner.Config{
			Peer: pd.Peer{Node: "p0", Boot: boot}, Topology: two, Contract: contract(),
			PagesPerLayer: map[pd.GroupName]int{"kv": 9, "win": 17}, RingPeriods: map[pd.GroupName]int{"win": 9}, BootstrapSlots: 2,
			Launch: c.Launch, Remote: owner.Remote{Provider: simulator.Name, Options: "[]"}, Ports: lock,
			Hostname: "127.0.0.1", AttemptTimeout: time.Minute, Events: ignoreEvents{},
		})
		if err != nil {
			return err
		}
		records := []owner.ProcessRecord{}
		for rank, pid := range g.ProcessIDs() {
			records = append(records, owner.ProcessRecord{Name: fmt.Sprintf("owner of rank %d", rank), PID: pid})
			fmt.Println(pid)
		}
		if err := lock.Record(records...); err != nil {
			return err
		}
		fmt.Println("ready")
		select {}
	}()
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// The owners of a node that is killed end with it, even one that stands still,
// and the boot is over with the last of them.
func TestOwnersEndWithTheirNode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.lock")
	node := exec.Command(os.Args[0])
	node.Env, node.Stderr = append(os.Environ(), nodeProcess+"="+path), os.Stderr
	out, err := node.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, node.Start())
	t.Cleanup(func() {
		_ = node.Process.Kill()
		_ = node.Wait()
	})
	var pids []int
	for lines := bufio.NewScanner(out); ; {
		require.True(t, lines.Scan(), "the node has not started")
		if lines.Text() == "ready" {
			break
		}
		pid, err := strconv.Atoi(lines.Text())
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	require.Len(t, pids, 2)
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = owner.LockBoot(short, path, pd.NewBootID())
	require.ErrorIs(t, err, pd.CodeConflict)
	require.ErrorContains(t, err, fmt.Sprintf("node, pid %d; owner of rank 0, pid %d; owner of rank 1, pid %d", node.Process.Pid, pids[0], pids[1]))

	require.NoError(t, syscall.Kill(pids[1], syscall.SIGSTOP))
	require.NoError(t, node.Process.Kill())
	long, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	next, err := owner.LockBoot(long, path, pd.NewBootID())
	require.NoError(t, err)
	defer next.Close()
	require.NotEmpty(t, next.List(), "the ports of the killed boot are forgotten")
	for _, pid := range pids {
		require.False(t, alive(pid), "owner process %d has outlived its node", pid)
	}
}

// alive says that a process runs; one that nobody has buried yet does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

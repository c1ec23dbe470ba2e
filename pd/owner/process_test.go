package owner_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

// decodeProcess makes the test binary the owners of a decode node: it prints
// its peer and registry, then answers each line on stdin with the digest of its
// memory, and ends with stdin.
const decodeProcess = "OWNER_TEST_DECODE_PROCESS"

type announcement struct {
	Peer     pd.Peer
	Registry pd.Registry
}

type ignoreEvents struct{}

func (ignoreEvents) UnitSettled(owner.UnitSettled)       {}
func (ignoreEvents) ChunkSettled(owner.ChunkSettled)     {}
func (ignoreEvents) SourceFreed(owner.SourceFreed)       {}
func (ignoreEvents) HandoffStopped(owner.HandoffStopped) {}
func (ignoreEvents) OwnerLost(owner.OwnerLost)           {}

func runDecodeProcess() int {
	p, err := simulator.New(simulator.Config{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	topology := pd.Topology{Ranks: 2, TP: 2}
	peer := pd.Peer{Node: "d0", Boot: pd.NewBootID()}
	g, err := owner.Open(context.Background(), owner.Config{
		Peer: peer, Topology: topology, Contract: contract(),
		PagesPerLayer: map[pd.GroupName]int{"kv": 9, "win": 17}, RingPeriods: map[pd.GroupName]int{"win": 9}, BootstrapSlots: 2,
		Provider: p, Hostname: "127.0.0.1", AttemptTimeout: time.Minute, Events: ignoreEvents{},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(announcement{peer, g.Registry()}); err != nil {
		return 1
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		sum := sha256.New()
		for rank := range pd.Rank(topology.Ranks) {
			for _, c := range regionNames() {
				sum.Write(g.Memory(rank, c))
			}
		}
		fmt.Println(hex.EncodeToString(sum.Sum(nil)))
	}
	if err := g.Close(context.Background()); err != nil {
		return 1
	}
	return 0
}

// decoder is that process as a test sees it.
type decoder struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	stdout  *bufio.Reader
	side    *side // names and sizes only; its memory is in the process
	known   announcement
}

func startDecoder(t *testing.T) *decoder {
	d := &decoder{command: exec.Command(os.Args[0])}
	d.command.Env = append(os.Environ(), decodeProcess+"=1")
	d.command.Stderr = os.Stderr
	var err error
	d.stdin, err = d.command.StdinPipe()
	require.NoError(t, err)
	stdout, err := d.command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, d.command.Start())
	t.Cleanup(func() {
		if d.command.ProcessState == nil {
			_ = d.command.Process.Kill()
			_ = d.command.Wait()
		}
	})
	d.stdout = bufio.NewReader(stdout)
	line, err := d.stdout.ReadBytes('\n')
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(line, &d.known))
	d.side = &side{peer: d.known.Peer, pages: map[pd.GroupName]int{"kv": 9, "win": 17}, slots: 2}
	return d
}

// digest asks for the digest of the process's whole memory.
func (d *decoder) digest(t *testing.T) string {
	_, err := io.WriteString(d.stdin, "digest\n")
	require.NoError(t, err)
	line, err := d.stdout.ReadString('\n')
	require.NoError(t, err)
	return line[:len(line)-1]
}

// TestTwoProcesses writes from this process into another one's memory, and
// meets its end.
func TestTwoProcesses(t *testing.T) {
	d := startDecoder(t)
	// The second pair of writes meets a target that answers nothing.
	from := newSide(t, sideOptions{provider: simulated(t, simulator.Fault{
		Kind: simulator.TargetPausedBuffered, Nth: 3, Times: 1 << 30, DelayMillis: 3600_000,
	})})
	require.NoError(t, from.Install(d.known.Peer, d.known.Registry))
	pairs := []pd.RankPair{{Target: 0}, {Target: 1}}
	segments, sums := chunkOf(from, d.side, 1, copyPages{"kv", 11, 8}, copyPages{"kv", 0, 3}, copyPages{"win", 19, 16})
	w := write(pd.NewHandoffID(), 0, d.side, pairs, segments, sums)
	require.NoError(t, from.Submit(w))
	requireAll(t, pd.Done, from.settled(w))

	// What its memory must be: zeros with our pages.
	want := map[pd.Rank]map[pd.ComponentID][]byte{}
	sum := sha256.New()
	for _, rank := range d.known.Registry.Ranks {
		want[rank.Rank] = map[pd.ComponentID][]byte{}
		for _, region := range rank.Regions {
			want[rank.Rank][region.Component] = make([]byte, region.Bytes)
		}
	}
	apply(want, from, w)
	for rank := range pd.Rank(2) {
		for _, c := range regionNames() {
			sum.Write(want[rank][c])
		}
	}
	require.Equal(t, hex.EncodeToString(sum.Sum(nil)), d.digest(t))

	// Killed in the middle: never Done, and the source is free.
	cut := write(w.Handoff, 1, d.side, pairs, segments, sums)
	require.NoError(t, from.Submit(cut))
	require.NoError(t, d.command.Process.Kill())
	require.Error(t, d.command.Wait())
	e := from.settled(cut)
	for _, r := range e.Results {
		require.NotEqual(t, pd.Done, r.Settlement, "%s on rank %d", r.Component, r.Target)
	}
	require.True(t, e.SourceFree)
	require.NotEqual(t, pd.AllDone, from.stopped(w.Handoff))

	// Its next life is written to as soon as it is installed.
	again := startDecoder(t)
	require.NotEqual(t, d.known.Peer.Boot, again.known.Peer.Boot)
	require.NoError(t, from.Install(again.known.Peer, again.known.Registry))
	require.ErrorIs(t, from.Submit(write(pd.NewHandoffID(), 0, d.side, pairs, segments, sums)), pd.CodeStaleBoot)
	require.NoError(t, again.stdin.Close())
	require.NoError(t, again.command.Wait())
}

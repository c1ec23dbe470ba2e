package sim

import (
	"flag"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/mutant"
)

var (
	seedFlag      = flag.Uint64("sim.seed", 1, "first seed of TestSim, the seed of TestSeed")
	handoffsFlag  = flag.Int("sim.handoffs", 0, "handoffs of TestSim in all, of TestSeed in its world; 0 is the test's own number")
	faultsFlag    = flag.String("sim.faults", "all", "kinds of faults, with commas; all, none")
	exactFlag     = flag.Bool("sim.exact", false, "all these kinds happen; else the seed chooses among them")
	fromFlag      = flag.Duration("sim.from", 0, "no faults before this time of TestSeed")
	untilFlag     = flag.Duration("sim.until", 0, "no faults from this time of TestSeed on; 0 is no bound")
	intensityFlag = flag.Float64("sim.intensity", 0, "scale of the faults; 0 is 1")
	brokenFlag    = flag.Int("sim.broken", 0, "a rule of the surroundings that is switched off, by number")
	mutantFlag    = flag.Int("sim.mutant", 0, "a rule of the nodes that is switched off, by number; needs the build tag mutants")
	unackedFlag   = flag.Bool("sim.unacknowledged", false, "the first prefill node's data plane does not wait for acknowledgements")
	verboseFlag   = flag.Bool("sim.v", false, "print every event of TestSeed")
)

// perWorld is how many handoffs one world of TestSim has.
const perWorld = 40

// given are the options of the flags.
func given(t *testing.T) Options {
	f, err := ParseFaults(*faultsFlag)
	require.NoError(t, err)
	return Options{
		Seed: *seedFlag, Handoffs: perWorld, Faults: f, Exact: *exactFlag, From: *fromFlag, Until: *untilFlag, Intensity: *intensityFlag,
		Broken: Broken(*brokenFlag), Mutant: mutant.Rule(*mutantFlag), Unacknowledged: *unackedFlag,
	}
}

// runAll runs worlds on all processors and gives their results in order. It
// stops early when stop says so of a result.
func runAll(options []Options, stop func(Result) bool) []Result {
	results := make([]Result, len(options))
	var wg sync.WaitGroup
	var mu sync.Mutex
	next, stopped := 0, false
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		i := next
		next++
		return i, i < len(options) && !stopped
	}
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i, ok := take(); ok; i, ok = take() {
				results[i] = Run(options[i])
				if stop != nil && stop(results[i]) {
					mu.Lock()
					stopped = true
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return results
}

// worlds are options for consecutive seeds.
func worlds(o Options, n int) []Options {
	out := make([]Options, n)
	for i := range out {
		out[i] = o
		out[i].Seed += uint64(i)
	}
	return out
}

// TestSim runs many worlds with every kind of fault. By itself it runs a few;
// make sim runs ten thousand handoffs.
func TestSim(t *testing.T) {
	o, handoffs := given(t), *handoffsFlag
	if handoffs == 0 {
		handoffs = 5 * perWorld
	}
	var sum Summary
	for _, r := range runAll(worlds(o, (handoffs+perWorld-1)/perWorld), nil) {
		sum.Add(r)
	}
	t.Logf("%d of %d worlds failed\n%s", len(sum.Failed), sum.Worlds, &sum)
	report(t, sum.Failed)
	if *handoffsFlag >= 10000 && o.Faults == Tolerated() {
		for _, f := range Tolerated().Kinds() {
			require.NotZero(t, sum.Counts[f], "%s never happened", f)
		}
	}
}

// shrinkRuns bounds the search for a smaller failure.
const shrinkRuns = 150

// report shrinks the first failure, shows the end of its log, and ends with the
// command that runs it again.
func report(t *testing.T, failed []Result) {
	if len(failed) == 0 {
		return
	}
	for _, r := range failed[1:min(len(failed), 5)] {
		t.Errorf("seed %d: %v\n%s", r.Options.Seed, r.Err(), r.Replay())
	}
	small := Shrink(failed[0], shrinkRuns)
	end := &lastLines{limit: 150}
	small.Options.Log = end
	again := Run(small.Options)
	t.Errorf("%s%s\nseed %d: %v\nfirst seen as %v\n%s\n%s", end, small.World, small.Options.Seed, again.Err(), failed[0].Err(), failed[0].Replay(), small.Replay())
}

// TestSeed runs one world, to look at it.
func TestSeed(t *testing.T) {
	o := given(t)
	if *handoffsFlag > 0 {
		o.Handoffs = *handoffsFlag
	}
	if *verboseFlag {
		o.Log = os.Stdout
	}
	require.NoError(t, switchOff(t, o.Mutant))
	r := Run(o)
	t.Logf("%s\n%+v", r.World, r.Tally)
	if r.Failed() {
		t.Errorf("%v\n%s", r.Err(), r.Replay())
	}
}

// A seed is a world: the same options give the same events, byte for byte, also
// on another processor at another time.
func TestReplayIsExact(t *testing.T) {
	options := worlds(Options{Seed: 100, Handoffs: 20, Faults: Tolerated()}, 4)
	first, second := runAll(options, nil), runAll(options, nil)
	seen := map[uint64]bool{}
	for i := range options {
		require.Equal(t, first[i].Digest, second[i].Digest, "seed %d", options[i].Seed)
		require.Equal(t, first[i].Lines, second[i].Lines)
		seen[first[i].Digest] = true
	}
	require.Len(t, seen, len(options), "different seeds are different worlds")
}

// Without faults every request ends with the right answer, or with a refusal for
// want of memory or slots.
func TestNothingFailsWithoutFaults(t *testing.T) {
	for _, r := range runAll(worlds(Options{Seed: 1, Handoffs: 20}, 4), nil) {
		require.NoError(t, r.Err(), r.Replay())
		refused := 0
		for _, code := range []string{"CAPACITY_EXHAUSTED", "BOOTSTRAP_SLOT_EXHAUSTED", "NODE_BUSY", "NO_ELIGIBLE_PAIR", "DECODE_EXHAUSTED", "ABORTED"} {
			refused += r.Tally.Failures[code]
		}
		require.Equal(t, refused, r.Tally.Failed, "%v\n%s", r.Tally.Failures, r.Replay())
		require.Greater(t, r.Tally.Succeeded, 10, r.Replay())
		require.Zero(t, r.Tally.Gates, r.Replay())
	}
}

// A byte that flips unseen on its way is the one fault that nothing but the text
// shows: it must be seen wherever decode reads the byte.
func TestFlippedByteIsSeen(t *testing.T) {
	const perWorld = 8
	number := 12
	if *handoffsFlag > 0 {
		number = (*handoffsFlag + perWorld - 1) / perWorld
	}
	seen, hidden, flipped := 0, 0, 0
	for _, r := range runAll(worlds(Options{Seed: 1, Handoffs: perWorld, Faults: Set(FlippedByte), Exact: true}, number), nil) {
		flipped += r.Counts[FlippedByte]
		require.Contains(t, []string{"", "SuccessEqualsCombined", "PublishedBytesMatchHash"}, r.Name(), r.Err())
		if r.Failed() {
			seen++
		} else if r.Counts[FlippedByte] > 0 {
			hidden++
		}
	}
	require.Greater(t, seen, 2)
	t.Logf("%d bytes flipped; seen in %d worlds of %d; in %d only bytes flipped that nobody read, or replicas disagreed", flipped, seen, number, hidden)
}

// A prefill node whose Done does not mean that the bytes are there is refused in
// the session, whatever it says of itself elsewhere.
func TestUnacknowledgedDataPlaneIsRefused(t *testing.T) {
	for _, r := range runAll(worlds(Options{Seed: 1, Handoffs: 10, Unacknowledged: true, Until: time.Second}, 4), nil) {
		require.Equal(t, "HealthyPairAdmits", r.Name(), "its pairs take nothing: %v", r.Err())
		require.NotZero(t, r.Tally.Failures["CONTRACT_MISMATCH"])
	}
}

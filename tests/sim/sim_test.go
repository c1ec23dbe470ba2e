package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	seedFlag      = flag.Uint64("sim.seed", 1, "first seed of TestSim, the seed of TestSeed")
	handoffsFlag  = flag.Int("sim.handoffs", 0, "handoffs of TestSim in all, of TestSeed in its world; 0 is the test's own number")
	faultsFlag    = flag.String("sim.faults", "all", "kinds of faults, with commas; all, none")
	intensityFlag = flag.Float64("sim.intensity", 0, "scale of the faults; 0 is 1")
	brokenFlag    = flag.Int("sim.broken", 0, "a rule that is switched off, by number")
	verboseFlag   = flag.Bool("sim.v", false, "print every event of TestSeed")
)

// perWorld is how many handoffs one world of TestSim has.
const perWorld = 40

func faults(t *testing.T) Faults {
	f, err := ParseFaults(*faultsFlag)
	require.NoError(t, err)
	return f
}

// runAll runs worlds on all processors and gives their results in order.
func runAll(options []Options) []Result {
	results := make([]Result, len(options))
	var wg sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				results[i] = Run(options[i])
			}
		})
	}
	for i := range options {
		next <- i
	}
	close(next)
	wg.Wait()
	return results
}

func TestSim(t *testing.T) {
	handoffs := *handoffsFlag
	if handoffs == 0 {
		handoffs = 400
	}
	var options []Options
	for i := range uint64((handoffs + perWorld - 1) / perWorld) {
		options = append(options, Options{Seed: *seedFlag + i, Handoffs: perWorld, Faults: faults(t), Intensity: *intensityFlag, Broken: Broken(*brokenFlag)})
	}
	var sum Summary
	for _, r := range runAll(options) {
		sum.Add(r)
	}
	for i, r := range sum.Failed {
		if i < 5 {
			t.Errorf("seed %d: %v\n%s\n%s", r.Options.Seed, r.Err(), r.World, r.Replay())
		}
	}
	t.Logf("%d of %d worlds failed\n%s", len(sum.Failed), sum.Worlds, &sum)
	require.Empty(t, sum.Failed)
}

// TestSeed runs one world, to look at it.
func TestSeed(t *testing.T) {
	o := Options{Seed: *seedFlag, Handoffs: perWorld, Faults: faults(t), Intensity: *intensityFlag, Broken: Broken(*brokenFlag)}
	if *handoffsFlag > 0 {
		o.Handoffs = *handoffsFlag
	}
	if *verboseFlag {
		o.Log = os.Stdout
	}
	r := Run(o)
	fmt.Printf("%s\n%+v\n", r.World, r.Tally)
	require.NoError(t, r.Err())
}

package soak

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/router/fleet"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
	"github.com/hw-native-sys/pypto-pd/tests/fleet/stub"
)

var crashes = flag.Int("fleet.crashes", 20, "how often TestRouterKilledWhileItLaunchesAndStops kills the router")

// TestRouterKilledWhileItLaunchesAndStops kills the router with SIGKILL at any
// moment of launches and stops. The state file is whole each time; the next router
// adopts or lists every process that lives, and never are two on one card.
func TestRouterKilledWhileItLaunchesAndStops(t *testing.T) {
	r := newRig(
		t, "--initial-replicas", "0", "--health-interval", "0.05", "--connect-timeout", "1", "--stop-grace", "4", "--drain-timeout", "1", "--replace-after", "off",
	)
	for range 3 {
		r.add(nil, nil, map[string]string{stub.LoadVariable: "30ms"})
	}
	state := filepath.Join(r.dir, "state.json")
	adopted, held := 0, 0
	for round := range *crashes {
		r.start()
		// Every process that lives is adopted, or holds its slot.
		cluster.Eventually(t, func() error {
			v, err := r.view()
			if err != nil {
				return err
			}
			for _, s := range r.slots {
				if r.process(s) == 0 {
					continue
				}
				listed := slices.ContainsFunc(v.Replicas, func(m member) bool { return m.Name == s.name })
				if _, ok := v.Capacity.Unconfirmed[s.name]; !ok && !listed {
					return fmt.Errorf("round %d: %s lives and nobody knows: %+v", round, s.name, v)
				}
			}
			adopted, held = adopted+len(v.Replicas), held+len(v.Capacity.Unconfirmed)
			return nil
		})
		if round%3 == 0 {
			// An operator clears what is held, so that there is something to launch.
			for _, s := range r.slots {
				r.clear(s)
			}
		}
		var orders sync.WaitGroup
		for _, s := range r.slots {
			orders.Go(func() {
				for range 3 {
					switch rand.IntN(2) {
					case 0:
						r.admin("POST", "/replicas?slot="+s.name)
					default:
						r.admin("DELETE", "/replicas/"+s.name)
					}
				}
			})
		}
		wait(t.Context(), time.Duration(rand.IntN(400))*time.Millisecond) // any moment will do
		r.p.Kill()
		orders.Wait()
		text, err := os.ReadFile(state)
		if os.IsNotExist(err) {
			continue // killed before the first write
		}
		require.NoError(t, err)
		f, err := fleet.ParseState(text)
		require.NoError(t, err, "round %d: %s", round, text)
		for _, s := range r.slots {
			if r.process(s) != 0 {
				recorded := slices.ContainsFunc(append(f.Replicas, f.Unconfirmed...), func(e fleet.StateEntry) bool { return e.Slot == s.name })
				require.True(t, recorded, "round %d: %s lives and is not in the file: %s", round, s.name, text)
			}
		}
	}
	require.NotZero(t, adopted, "no round found a replica again")
	fmt.Printf("%d crashes: %d times a replica was found again, %d times a slot was held, %d starts\n", *crashes, adopted, held, len(stub.Starts(t, r.cards)))
	// What is left can be ended by orders alone.
	r.start()
	for _, s := range r.slots {
		r.clear(s)
		require.Zero(t, r.process(s))
		require.False(t, stub.CardHeld(t, r.cards, s.device))
	}
	require.Zero(t, r.p.Stop(t), "%s", r.p.Tail())
}

// clear ends what a slot holds, by orders alone.
func (r *rig) clear(s slot) {
	cluster.Eventually(r.t, func() error {
		if status, body := r.admin("DELETE", "/replicas/"+s.name); status != 200 && status != 404 {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
}

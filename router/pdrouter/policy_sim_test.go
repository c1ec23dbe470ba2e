package pdrouter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// policySim is a day of a pool in virtual time: requests arrive, prefill computes
// what its cache does not hold and decode writes. A request that finds no pair is
// refused, as in the router.
type policySim struct {
	name     string
	capacity int
	// per request
	gap    func(*rand.Rand) float64 // seconds to the next arrival
	prompt func(*rand.Rand) int     // which conversation it goes on with
	tokens float64                  // tokens of its prompt
	decode func(*rand.Rand) float64 // seconds at decode
}

type simResult struct {
	refused   int
	computed  float64 // mean tokens that prefill computed per request
	imbalance float64 // mean of the largest less the mean number of requests at decode
}

const (
	simNodes    = 4
	simRequests = 6000
	// simCache is how many conversations fit in one node's cache, simRate its
	// prefill speed in tokens per second.
	simCache = 24
	simRate  = 4000.0
)

func (s policySim) run(choose policy) simResult {
	random := rand.New(rand.NewPCG(7, 11))
	type ending struct {
		at     float64
		node   int
		decode bool
	}
	var endings []ending
	q := question{fits: func(int, int) bool { return true }}
	for i := range simNodes {
		q.prefills = append(q.prefills, candidate{id: pd.NodeID(fmt.Sprintf("p%d", i)), serves: true})
		q.decodes = append(q.decodes, candidate{id: pd.NodeID(fmt.Sprintf("d%d", i)), serves: true})
	}
	caches := make([][]int, simNodes)
	busy := make([]float64, simNodes)
	known := newReports()
	var out simResult
	served := 0
	now := 0.0
	for range simRequests {
		now += s.gap(random)
		slices.SortFunc(endings, func(a, b ending) int {
			if a.at < b.at {
				return -1
			}
			return 1
		})
		for len(endings) > 0 && endings[0].at <= now {
			if e := endings[0]; e.decode {
				q.decodes[e.node].active--
			} else {
				q.prefills[e.node].active--
			}
			endings = endings[1:]
		}
		conversation, writing := s.prompt(random), s.decode(random)
		leads := leadsOf(fmt.Appendf(nil, `{"prompt":"%d"}`, conversation))
		q.lead = leads[0]
		for i := range simNodes {
			q.prefills[i].full = q.prefills[i].active >= s.capacity
			q.decodes[i].full = q.decodes[i].active >= s.capacity
			q.prefills[i].hit = known.hit(leads, q.prefills[i].id, "boot")
		}
		p, d, ok := choose(&q)
		if !ok {
			out.refused++
			continue
		}
		q.turn = turn{p + 1, d + 1}
		served++
		need := s.tokens
		at := slices.Index(caches[p], conversation)
		if at >= 0 {
			need = s.tokens / 10 // the new turn only
			caches[p] = slices.Delete(caches[p], at, at+1)
		}
		known.add(leads, pd.Peer{Node: q.prefills[p].id, Boot: "boot"}, int(s.tokens-need))
		caches[p] = append(caches[p], conversation)
		if len(caches[p]) > simCache {
			caches[p] = caches[p][1:]
		}
		out.computed += need
		busy[p] = max(busy[p], now) + need/simRate
		q.prefills[p].active++
		q.decodes[d].active++
		endings = append(endings, ending{busy[p], p, false}, ending{busy[p] + writing, d, true})
		most, sum := 0, 0
		for _, n := range q.decodes {
			most, sum = max(most, n.active), sum+n.active
		}
		out.imbalance += float64(most) - float64(sum)/simNodes
	}
	out.computed /= float64(served)
	out.imbalance /= float64(served)
	return out
}

// Which policy wins depends on the load; this says when, in virtual time.
func TestEachPolicyWinsWhereItIsMeantTo(t *testing.T) {
	arrivals := func(rate float64) func(*rand.Rand) float64 {
		return func(r *rand.Rand) float64 { return r.ExpFloat64() / rate }
	}
	unique := func() func(*rand.Rand) int {
		next := 0
		return func(*rand.Rand) int { next++; return next }
	}
	alike := func(s float64) func(*rand.Rand) float64 { return func(*rand.Rand) float64 { return s } }
	mixed := func(r *rand.Rand) float64 { // one answer in ten is forty times as long
		if r.IntN(10) == 0 {
			return 20
		}
		return 0.5
	}
	few := func(r *rand.Rand) int { return r.IntN(80) } // four caches hold them all, one does not
	for _, s := range []policySim{
		{"alike", 8, arrivals(10), unique(), 400, alike(2)},
		{"long answers among short ones", 8, arrivals(10), unique(), 400, mixed},
		{"conversations that come again", 16, arrivals(14), few, 1500, alike(1)},
	} {
		got := map[string]simResult{}
		for name, p := range policies {
			if s.prompt = few; s.name != "conversations that come again" {
				s.prompt = unique()
			}
			got[name] = s.run(p)
		}
		t.Logf("%s: %+v", s.name, got)
		turn, load, prefix := got[policyTurn], got[policyLoad], got[policyPrefix]
		switch s.name {
		case "alike":
			// Nothing to know: turning is as good as counting.
			require.InDelta(t, load.refused, turn.refused, simRequests/100)
		case "long answers among short ones":
			// No policy refuses while any pair is free; how even decode's batches are
			// is what differs.
			require.Equal(t, load.refused, turn.refused)
			require.Less(t, 2*load.imbalance, turn.imbalance)
		default:
			require.Less(t, 3*prefix.computed, 2*min(turn.computed, load.computed))
			require.Less(t, prefix.refused, turn.refused)
			require.LessOrEqual(t, prefix.imbalance, 2*turn.imbalance+1, "and no node drowns")
		}
	}
}

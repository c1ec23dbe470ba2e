package pdrouter

import (
	"cmp"
	"slices"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// policy chooses the pair of a request among nodes that serve, are not full and
// fit each other; ok is false if there is none. It is a pure function: the same
// question has the same answer.
type policy func(*question) (prefill, decode int, ok bool)

// The names of policies, as config.Policies lists them.
const (
	policyTurn   = "round_robin"
	policyLoad   = "least_loaded"
	policyPrefix = "prefix_aware"
)

var policies = map[string]policy{policyTurn: roundRobin, policyLoad: leastLoaded, policyPrefix: prefixAware}

// question is all that a policy may know.
type question struct {
	prefills []candidate
	decodes  []candidate
	fits     func(prefill, decode int) bool
	turn     turn
	// lead stands for the prompt's leading bytes.
	lead lead
}

// candidate is one node.
type candidate struct {
	id pd.NodeID
	// serves: it takes requests, as far as its state goes. full: it has no slot.
	serves bool
	full   bool
	active int
	// hit is how many tokens of such a prompt it has last reported to be in its
	// cache; 0 if none or nothing was reported.
	hit int
}

// turn is where each pool begins: past what was chosen last.
type turn struct {
	prefill int
	decode  int
}

// roundRobin turns round both pools independently. A node that is full, or that
// fits nobody, does not hold up the others.
func roundRobin(q *question) (int, int, bool) {
	return first(q, rotated(q.prefills, q.turn.prefill), rotated(q.decodes, q.turn.decode))
}

// leastLoaded takes the nodes with the fewest requests, and turns round those
// that have equally many.
func leastLoaded(q *question) (int, int, bool) {
	order := func(nodes []candidate, start int) []int {
		out := rotated(nodes, start)
		slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(nodes[a].active, nodes[b].active) })
		return out
	}
	return first(q, order(q.prefills, q.turn.prefill), order(q.decodes, q.turn.decode))
}

// prefixAware takes the nodes that reported the longest hit; where none did, the
// leading bytes decide by rendezvous hashing, so that equal beginnings meet again
// and a node that comes or goes moves its own share only. A node with more than
// its share of the load comes after all others, the least loaded first.
func prefixAware(q *question) (int, int, bool) {
	order := func(nodes []candidate, start int) []int {
		bound := loadBound(nodes)
		out := rotated(nodes, start)
		slices.SortStableFunc(out, func(a, b int) int {
			x, y := nodes[a], nodes[b]
			if over, other := x.active >= bound, y.active >= bound; over != other {
				return boolOrder(over, other)
			} else if over {
				return cmp.Compare(x.active, y.active)
			}
			return cmp.Or(-cmp.Compare(x.hit, y.hit), -cmp.Compare(q.lead.score(x.id), q.lead.score(y.id)))
		})
		return out
	}
	return first(q, order(q.prefills, q.turn.prefill), order(q.decodes, q.turn.decode))
}

// loadBound is how many requests a node may have before a prefix draws no more
// to it: a quarter above the mean over the nodes that serve, this request
// counted, rounded up.
func loadBound(nodes []candidate) int {
	serving, active := 0, 1
	for _, n := range nodes {
		if n.serves {
			serving++
			active += n.active
		}
	}
	return pd.CeilDiv(5*active, 4*max(serving, 1))
}

// first is the first pair, in these orders, that can serve.
func first(q *question, prefills, decodes []int) (int, int, bool) {
	for _, p := range prefills {
		if !q.prefills[p].serves || q.prefills[p].full {
			continue
		}
		for _, d := range decodes {
			if n := q.decodes[d]; n.serves && !n.full && q.fits(p, d) {
				return p, d, true
			}
		}
	}
	return 0, 0, false
}

// rotated lists all indexes, from start on and round.
func rotated(nodes []candidate, start int) []int {
	out := make([]int, len(nodes))
	for i := range out {
		out[i] = (start + i) % len(nodes)
	}
	return out
}

func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

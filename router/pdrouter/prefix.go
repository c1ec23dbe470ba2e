package pdrouter

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// lead stands for the first bytes of a prompt. It is a digest that is the same in
// every router and every life of one, and good for placement only: two prompts
// with one digest share a node, nothing else.
type lead uint64

// leadSizes are how many bytes leads stand for. The first decides by itself where
// nothing is reported; the longer ones tell conversations with one beginning
// apart.
var leadSizes = [...]int{1 << 10, 4 << 10, 16 << 10, 64 << 10}

// FNV-1a, 64 bits.
const (
	leadBasis = 14695981039346656037
	leadPrime = 1099511628211
)

// leadsOf gives the leads of a body, the shortest first; a prompt that is shorter
// than the first has one lead. The prompt is taken to begin at the first field
// that may hold one: where it does not, requests are placed less well and
// answered alike.
func leadsOf(body []byte) []lead {
	at := len(body)
	for _, name := range [...]string{`"messages"`, `"prompt"`} {
		if i := bytes.Index(body, []byte(name)); i >= 0 {
			at = min(at, i)
		}
	}
	prompt := body[at:]
	out := make([]lead, 0, len(leadSizes))
	digest, done := uint64(leadBasis), 0
	for i, size := range leadSizes {
		if len(prompt) < size && i > 0 {
			break
		}
		size = min(size, len(prompt))
		for _, b := range prompt[done:size] {
			digest = (digest ^ uint64(b)) * leadPrime
		}
		done = size
		out = append(out, lead(digest))
	}
	return out
}

// score is a node's share in a lead; the node with the highest is the lead's own.
func (l lead) score(id pd.NodeID) uint64 {
	h := uint64(leadBasis)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * leadPrime
	}
	// FNV's last bytes hardly reach the high bits; mix them (splitmix64).
	h ^= uint64(l)
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// maxReports bounds the leads that are remembered, the oldest go first; each has
// at most maxReporters nodes.
const (
	maxReports   = 8192
	maxReporters = 16
)

// reports are what nodes have said of their caches, by lead. A nil one knows
// nothing. The pool's lock guards it.
type reports struct {
	known map[lead][]said
	order []lead // a ring, the oldest at next once it is full
	next  int
}

// said is one node's last word on a lead.
type said struct {
	at  pd.Peer
	hit int
}

func newReports() *reports { return &reports{known: map[lead][]said{}} }

// add takes a report in; it replaces what the same node has said of these leads,
// in this life or an earlier one.
func (r *reports) add(leads []lead, at pd.Peer, hit int) {
	for _, l := range leads {
		list, known := r.known[l]
		if !known {
			r.remember(l)
		}
		kept := make([]said, 0, min(len(list)+1, maxReporters))
		kept = append(kept, said{at, hit})
		for _, s := range list {
			if s.at.Node != at.Node && len(kept) < maxReporters {
				kept = append(kept, s)
			}
		}
		r.known[l] = kept
	}
}

func (r *reports) remember(l lead) {
	if len(r.order) < maxReports {
		r.order = append(r.order, l)
		return
	}
	delete(r.known, r.order[r.next])
	r.order[r.next] = l
	r.next = (r.next + 1) % maxReports
}

// hit is what this life of a node has said of the longest of these leads that it
// has said anything of.
func (r *reports) hit(leads []lead, id pd.NodeID, boot pd.BootID) int {
	if r == nil {
		return 0
	}
	for i := len(leads) - 1; i >= 0; i-- {
		for _, s := range r.known[leads[i]] {
			if s.at.Node == id && s.at.Boot == boot {
				return s.hit
			}
		}
	}
	return 0
}

// hitTokens reads what a decode node's answer says of its cache; ok is false if it
// says nothing that can be read.
func hitTokens(header string) (hit int, ok bool) {
	hit, err := strconv.Atoi(header)
	return hit, err == nil && hit >= 0
}

// cachedTokens reads a prefill node's answer: how much of the prompt it had in
// its cache. What does not say so counts as nothing.
func cachedTokens(answer []byte) int {
	var a struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if json.Unmarshal(answer, &a) != nil {
		return 0
	}
	return max(a.Usage.Details.Cached, 0)
}

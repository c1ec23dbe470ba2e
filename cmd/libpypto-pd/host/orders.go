package host

import (
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
)

// orders is the engine as the node sees it: every order becomes an event that
// the host polls.
type orders struct{ n *Node }

var _ engine.PD = orders{}

// Prefill implements engine.PD.
func (o orders) Prefill(h pd.HandoffID, r engine.Request) {
	o.n.queue.put(Event{
		Kind: Prefill, Handoff: h, Tokens: len(r.Continuation.PromptTokens), MaxNewTokens: r.Continuation.MaxNewTokens,
	})
}

// Resume implements engine.PD.
func (o orders) Resume(h pd.HandoffID) { o.n.queue.put(Event{Kind: Resume, Handoff: h}) }

// StopPrefill implements engine.PD.
func (o orders) StopPrefill(h pd.HandoffID) { o.n.queue.put(Event{Kind: StopPrefill, Handoff: h}) }

// Adopt implements engine.PD.
func (o orders) Adopt(a engine.Adoption) {
	o.n.mu.Lock()
	if r := o.n.requests[a.Handoff]; r != nil {
		r.continuation = a.Continuation
	}
	o.n.mu.Unlock()
	o.n.queue.put(Event{
		Kind: Adopt, Handoff: a.Handoff, Partition: a.Partition, Slot: a.BootstrapSlot, FirstToken: a.FirstToken,
		HitTokens: a.HitTokens, CachedTokens: a.CachedTokens, Tokens: len(a.Continuation.PromptTokens), MaxNewTokens: a.Continuation.MaxNewTokens,
	})
}

// StopDecode implements engine.PD.
func (o orders) StopDecode(h pd.HandoffID) { o.n.queue.put(Event{Kind: StopDecode, Handoff: h}) }

package pdrouter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// side is one half of a handoff: which node and which life of it.
func (h *handoff) side(role pd.Role) (*node, pd.BootID) {
	if role == pd.Prefill {
		return h.pair.prefill, h.pair.fence.Prefill.Boot
	}
	return h.pair.decode, h.pair.fence.Decode.Boot
}

// end gives a side's slot back: its node has answered, or has seen nothing.
func (h *handoff) end(role pd.Role) {
	h.mu.Lock()
	h.over[role] = true
	h.mu.Unlock()
	n, boot := h.side(role)
	h.router.pool.free(n, boot, h.pair.fence.Handoff)
}

func (h *handoff) isOver(role pd.Role) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.over[role]
}

// abandon ends a request that failed or was left: both legs are closed, and
// each node that may still be running it is told so and asked until it confirms.
// That is done apart from the call, whose client does not wait for it.
func (h *handoff) abandon(err error) {
	reason := "the request failed"
	switch cause := context.Cause(h.call.Context()); {
	case h.result.failed:
		reason = "decode has failed the request" // its client, who knows, may be gone
	case errors.Is(cause, edge.ErrClientGone):
		reason = reasonGone
	case cause != nil:
		reason = "the router is stopping"
	case err != nil:
		reason = clip(err.Error())
	case h.result.code != 0:
		reason = h.result.code.String()
	}
	why := errOver
	if cause := context.Cause(h.call.Context()); cause != nil {
		why = cause
	}
	// Asked before the legs break, so that this reason is the one that is told.
	h.confirm(pd.Decode, reason)
	h.confirm(pd.Prefill, reason)
	h.decode.Cancel(why)
	h.prefill.Cancel(why)
}

const (
	reasonGone = "the client is gone"
	// maxReason bounds a reason on the wire.
	maxReason = 256
)

func clip(s string) string {
	if len(s) > maxReason {
		return s[:maxReason]
	}
	return s
}

// confirm starts asking one side, once.
func (h *handoff) confirm(role pd.Role, reason string) {
	h.mu.Lock()
	skip := h.over[role] || h.asking[role]
	h.asking[role] = true
	h.mu.Unlock()
	if skip {
		return
	}
	n, boot := h.side(role)
	if h.router.pool.unconfirm(n, boot, h.pair.fence.Handoff) {
		h.router.tasks.Go(func() { h.ask(role, reason) })
	}
}

// ask aborts one side until its node says that the handoff is over there, or
// until a new boot has cleared the slot. Each call is bounded by
// handoff_timeout; there is no end to asking, because only an answer frees.
func (h *handoff) ask(role pd.Role, reason string) {
	r := h.router
	n, boot := h.side(role)
	m := wire.Abort{Fence: h.pair.fence, From: "router", Reason: reason}
	pause, asked, began := pd.FactAskFirst, 0, time.Now()
	for r.pool.holds(n, boot, h.pair.fence.Handoff) {
		ctx, cancel := context.WithTimeout(r.base, r.config.HandoffTimeout)
		status, err := r.control.Abort(ctx, n.control, m)
		cancel()
		asked++
		if settled(status, err) {
			h.end(role)
			r.receipt(&receipt{
				Request: h.pair.fence.Request, Handoff: h.pair.fence.Handoff, Role: role, Node: n.id, Reason: reason, State: status.State,
				Fact: status.Fact, Released: status.Released, Held: status.Held, Why: status.Why, Asked: asked, Took: time.Since(began),
			}, err)
			return
		}
		if r.base.Err() != nil {
			break
		}
		r.options.Log.Warn("abort unconfirmed", "request", h.pair.fence.Request, "handoff", h.pair.fence.Handoff, "node", n.id, "state", status.State, "error", err)
		n.poke()
		timer := time.NewTimer(pause)
		select {
		case <-r.base.Done():
		case <-timer.C:
		}
		timer.Stop()
		pause = min(2*pause, pd.FactAskMost)
	}
}

// receipt is what a node has said of the end of a request that did not end by
// itself: what it gave back, and what it holds and why.
type receipt struct {
	Request  pd.RequestID `json:"request_id"`
	Handoff  pd.HandoffID `json:"handoff_id"`
	Role     pd.Role      `json:"role"`
	Node     pd.NodeID    `json:"node_id"`
	Reason   string       `json:"reason"` // why the router ended it
	State    string       `json:"state"`
	Fact     pd.StopFact  `json:"stop_fact,omitempty"`
	Released int          `json:"released_pages"`
	Held     int          `json:"held_pages"`
	Why      string       `json:"why,omitempty"`
	Asked    int          `json:"asked"`
	// Took is from the first question to the answer.
	Took time.Duration `json:"took_ns"`
}

// receipt notes and logs a receipt. Memory that is held needs somebody to look.
// A node that answers with an error knows nothing of the handoff, or has another
// boot.
func (r *Router) receipt(got *receipt, err error) {
	if err != nil {
		got.State, got.Why = "Gone", pd.CodeOf(err).String()
	}
	r.stats.confirmed(got)
	level := slog.LevelInfo
	if got.Held > 0 {
		level = slog.LevelWarn
	}
	r.options.Log.Log(r.base, level, "abort receipt", "request", got.Request, "handoff", got.Handoff, "side", got.Role.String(), "node", got.Node,
		"reason", got.Reason, "state", got.State, "fact", got.Fact, "released", got.Released, "held", got.Held, "why", got.Why,
		"asked", got.Asked, "took", got.Took)
}

// settled says that a node's answer to an abort means that it runs the handoff
// no more. Quarantine is an end, too: the memory is held, and the node itself
// says in its health what that means for new requests.
func settled(s wire.Status, err error) bool {
	if err != nil {
		code := pd.CodeOf(err)
		return code == pd.CodeStaleBoot || code == pd.CodeUnknownKey
	}
	switch s.State {
	case "Retired", "Completed", "Aborted", "Quarantined":
		return true
	}
	return false
}

// decodeOwns says that prefill's answer was lost on its way while the request is
// decode's already, which needs prefill no more. Only decode can tell: a node
// that dies right after a commit takes its answer along.
func (h *handoff) decodeOwns(bad *refused) bool {
	r := h.router
	if bad.err == nil || edge.DialFailed(bad.err) || context.Cause(h.call.Context()) != nil {
		return false
	}
	status, err := h.askDecode(h.call.Context())
	if err != nil || !status.Admitted {
		return false
	}
	r.options.Log.Warn("prefill failed late", "request", h.pair.fence.Request, "handoff", h.pair.fence.Handoff, "node", h.pair.prefill.id, "error", bad.err, "decode_state", status.State)
	h.confirm(pd.Prefill, "its answer was lost")
	return true
}

// askDecode asks whether decode owns a request whose prefill has failed. The
// client waits for the answer, and a node that works gives it at once; so the
// question is as short as a poll.
func (h *handoff) askDecode(ctx context.Context) (wire.Status, error) {
	r := h.router
	ctx, cancel := context.WithTimeout(ctx, min(r.options.PollTimeout, r.config.HandoffTimeout))
	defer cancel()
	return r.control.Status(ctx, h.pair.decode.control, wire.StatusQuery{Fence: h.pair.fence})
}

// giveUp ends the wait for the first event of a stream whose prefill has failed
// and whose decode cannot be asked. A stream that flows goes on: decode owns it.
func (h *handoff) giveUp(why *pd.Error) {
	h.mu.Lock()
	flows := h.flowing
	if !flows {
		h.cut = why
	}
	h.mu.Unlock()
	if !flows {
		h.decode.Cancel(why)
	}
}

// silent is told that decode's node has answered nothing for handoff_timeout. A
// node that stands still, or a network that loses everything, closes no
// connection; without this its client would wait for request_timeout. A stream
// in which something has come since then is not silent.
func (h *handoff) silent(since time.Time) {
	h.mu.Lock()
	if h.heard.After(since) || h.cut != nil {
		h.mu.Unlock()
		return
	}
	why := &pd.Error{
		Op: "relay answer", Code: pd.CodeDeadline, Handoff: h.pair.fence.Handoff, Node: h.pair.decode.id,
		Text: fmt.Sprintf("decode node %s has said nothing for %v", h.pair.decode.id, h.router.config.HandoffTimeout),
	}
	h.cut = why
	h.mu.Unlock()
	h.decode.Cancel(why)
}

// prefillFailedLate deals with a prefill that failed after decode's answer had
// begun. Where decode owns the request already that is no error. Where it still
// waits for prefill it is told, so that its client need not wait for the
// timeouts between the nodes.
func (h *handoff) prefillFailedLate(bad *refused) {
	r := h.router
	f := h.pair.fence
	h.pair.prefill.poke()
	if errors.Is(bad.err, edge.ErrClientGone) {
		// The call ends decode's side, unless that is over already.
		h.confirm(pd.Prefill, reasonGone)
		return
	}
	h.confirm(pd.Prefill, "its answer was lost")
	h.mu.Lock()
	done := h.over[pd.Decode] || h.asking[pd.Decode]
	h.mu.Unlock()
	if done || r.base.Err() != nil {
		return
	}
	// The reason reaches the client through decode, so it holds no address.
	why := bad.words(h.pair.prefill)
	status, statusErr := h.askDecode(r.base)
	r.options.Log.Warn("prefill failed late", "request", f.Request, "handoff", f.Handoff, "node", h.pair.prefill.id, "error", cmp.Or[error](bad.err, why), "decode_state", status.State)
	if statusErr != nil {
		h.giveUp(why)
		return
	}
	if status.Admitted || h.isOver(pd.Decode) {
		return
	}
	// Its answer ends with decode's own error event.
	ctx, cancel := context.WithTimeout(r.base, r.config.HandoffTimeout)
	defer cancel()
	if _, err := r.control.Abort(ctx, h.pair.decode.control, wire.Abort{Fence: f, From: "router", Reason: clip("prefill failed: " + why.Message())}); err != nil {
		r.options.Log.Warn("abort unconfirmed", "request", f.Request, "handoff", f.Handoff, "node", h.pair.decode.id, "error", err)
	}
}

package pdrouter

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
	"github.com/hw-native-sys/pypto-pd/router/relay"
)

// maxPrefillAnswer bounds what a prefill node answers: one small object, or an
// error.
const maxPrefillAnswer = 1 << 20

// errOver is why a leg is cancelled that nobody waits for any more.
var errOver = errors.New("the request is over")

// handoff is one request on its way through a pair.
type handoff struct {
	// constant
	router   *Router
	call     *edge.Call
	pair     *pair
	streamed bool
	leads    []lead
	result   *result

	prefill *relay.Leg
	decode  *relay.Leg
	// prefilled is closed when prefill's answer was read whole or its leg failed.
	prefilled chan struct{}

	mu sync.Mutex
	// guarded by mu: which sides are known to be over, and which are asked.
	over   [pd.Decode + 1]bool
	asking [pd.Decode + 1]bool
	// decodeHead: decode's answer has begun. refused is how prefill failed, if
	// it did; it does not change after prefilled was closed. Whichever comes
	// second sees the other.
	decodeHead bool
	refused    *refused
	// flowing: an event of decode's stream came. cut is why the stream was given
	// up before that.
	flowing bool
	cut     *pd.Error
	// heard is when decode last said something of this request.
	heard time.Time
}

// refused is a node's answer that is no success, or how its leg failed.
type refused struct {
	status int
	header []edge.Field
	kind   string
	body   []byte
	err    error
}

// errStopping is what the client of a request is told that outlasts the router.
func errStopping() *pd.Error { return pd.Errorf(pd.CodeAborted, "forward", "the router is stopping") }

func (r *Router) generate(c *edge.Call, kind openai.Kind) {
	r.calls.Add(1)
	defer r.calls.Done()
	res := r.stats.begin(kind)
	if err := r.forward(c, kind, res); err != nil {
		switch cause := context.Cause(c.Context()); {
		case errors.Is(cause, edge.ErrClientGone):
			err = &pd.Error{Op: "forward", Code: pd.CodeClientGone, Err: cause}
		case cause != nil:
			err = errStopping()
		}
		res.code = pd.CodeOf(err)
		relay.ReplyError(c, err)
	}
	res.status, res.sent = c.Status(), c.Sent()
	r.stats.end(res)
	r.times.observe(res)
	if res.fence.Handoff != "" {
		e := Event{Name: EventFailed, Fence: res.fence, Code: res.code}
		if res.state() == stateCompleted {
			e.Name = EventCompleted
		}
		r.options.Record(e)
	}
	r.access(res)
}

// forward returns an error only while the call has no answer.
func (r *Router) forward(c *edge.Call, kind openai.Kind, res *result) error {
	// A refusal has it, too: that is when people look for it.
	res.request = kind.NewRequestID()
	id := c.Header("X-Request-Id")
	if id == "" {
		id = string(res.request)
	}
	c.SetHeader("X-Request-Id", id)
	if r.draining.Load() {
		return pd.Errorf(pd.CodeDraining, "accept request", "the router is stopping and takes no new requests")
	}
	facts, err := openai.Scan(kind, c.Body())
	if err != nil {
		return err
	}
	res.stream = facts.Stream
	if err := facts.One(); err != nil {
		return err
	}
	leads := r.pool.leadsOf(c.Body())
	got, err := r.pool.acquire(c.Context(), res.request, leads)
	if err != nil {
		return err
	}
	res.took(&res.chosen)
	res.fence = got.fence
	r.options.Record(Event{Name: EventCreated, Fence: got.fence})
	h := &handoff{router: r, call: c, pair: got, streamed: facts.Stream, leads: leads, result: res, prefilled: make(chan struct{}), heard: time.Now()}
	// A pipelined request of a client that has left still arrives here; nothing
	// was sent for it yet.
	if c.Context().Err() != nil {
		h.end(pd.Prefill)
		h.end(pd.Decode)
		return context.Cause(c.Context())
	}
	return h.run()
}

// run drives both legs. It returns when the client has its answer; prefill's
// leg may still run then.
func (h *handoff) run() error {
	r, c := h.router, h.call
	header := relay.EndToEnd(c.Headers(), func(name string) bool {
		// A compressed stream could not be looked into.
		return relay.HasPrefixFold(name, openai.RoutePrefix) || strings.EqualFold(name, "Accept-Encoding") ||
			r.options.Keys != nil && strings.EqualFold(name, "Authorization")
	})
	h.prefill = h.leg(h.pair.prefill, header, h.pair.fence.Prefill, h.pair.fence.Decode, r.config.RequestTimeout)
	wait := r.config.RequestTimeout
	if h.streamed {
		wait = r.config.HandoffTimeout
	}
	h.decode = h.leg(h.pair.decode, header, h.pair.fence.Decode, h.pair.fence.Prefill, wait)
	r.pool.watch(h.pair.decode, h.pair.fence.Decode.Boot, h.pair.fence.Handoff, h.silent)
	r.tasks.Go(h.runPrefill)
	r.tasks.Go(h.decode.Run)
	// The body is borrowed from the call until both legs have sent it.
	defer func() { <-h.decode.Sent(); <-h.prefill.Sent() }()
	defer h.decode.Close(errOver)

	unwatch := context.AfterFunc(c.Context(), func() {
		h.prefill.Cancel(context.Cause(c.Context()))
		h.decode.Cancel(context.Cause(c.Context()))
	})
	err := h.answer()
	unwatch()
	if context.Cause(c.Context()) != nil && h.result.code == 0 && !h.result.failed && err == nil && !h.isOver(pd.Decode) {
		h.result.code = pd.CodeClientGone
	}
	if err != nil || h.result.code != 0 || h.result.failed {
		h.abandon(err)
	}
	return err
}

func (h *handoff) leg(n *node, header []edge.Field, self, peer pd.Peer, wait time.Duration) *relay.Leg {
	fence := h.pair.fence
	values := [...]string{
		openai.RouteVersion: strconv.Itoa(pd.ProtocolVersion), openai.RouteRequest: string(fence.Request),
		openai.RouteHandoff: string(fence.Handoff), openai.RouteRun: string(fence.Run),
		openai.RouteSelf: self.String(), openai.RoutePeer: peer.String(),
	}
	fields := make([]edge.Field, 0, len(header)+len(values))
	fields = append(fields, header...)
	for i, name := range openai.RouteHeaders {
		fields = append(fields, edge.Field{Name: name, Value: values[i]})
	}
	return relay.NewLeg(h.router.base, h.router.legs, edge.Request{
		Method: "POST", Address: n.address, Target: h.call.Target(), Header: fields, Body: h.call.Body(),
		HeadTimeout: wait, ReadTimeout: h.router.config.RequestTimeout,
	})
}

// answer waits for what decides the request and gives the client its answer.
func (h *handoff) answer() error {
	prefilled := h.prefilled
	for {
		select {
		case <-h.call.Context().Done():
			return context.Cause(h.call.Context())
		case <-h.decode.Head():
			return h.decodeAnswered()
		case <-prefilled:
			if h.refused != nil && !h.decodeOwns(h.refused) {
				return h.refuse(h.pair.prefill, h.refused)
			}
			prefilled = nil // decode may take as long as it needs
		}
	}
}

// decodeAnswered takes decode's head in and relays the answer.
func (h *handoff) decodeAnswered() error {
	x, err := h.decode.Answer()
	h.result.took(&h.result.decodeHead)
	if err != nil {
		bad := &refused{err: err}
		if bad.nothingBegan() {
			h.end(pd.Decode)
		}
		return h.refuse(h.pair.decode, bad)
	}
	if x.Status() != 200 {
		bad := readRefusal(x)
		if bad.nothingBegan() {
			h.end(pd.Decode)
		}
		return h.refuse(h.pair.decode, bad)
	}
	if hit, ok := hitTokens(x.Header(openai.HitTokens)); ok && len(h.leads) > 0 {
		h.router.pool.report(h.leads, h.pair.fence.Decode, hit)
	}
	h.mu.Lock()
	h.decodeHead = true
	early := h.refused
	h.mu.Unlock()
	if early != nil {
		h.router.tasks.Go(func() { h.prefillFailedLate(early) })
	}
	if h.streamed && relay.IsEventStream(x) {
		h.stream(x)
		return nil
	}
	return h.whole(x)
}

// whole relays an answer that is not streamed. It is read to its end first, so
// that a client never gets half of one.
func (h *handoff) whole(x *edge.Exchange) error {
	body, err := x.ReadAll(relay.MaxWhole)
	if err != nil {
		return h.interrupted(err)
	}
	h.end(pd.Decode)
	h.result.took(&h.result.first)
	relay.ReplyWhole(h.call, x, body, dropFromAnswer)
	return nil
}

func (h *handoff) stream(x *edge.Exchange) {
	select {
	case <-h.prefill.Sent():
		h.call.Forget()
	default: // it still reads the body
	}
	seen := relay.Events(h.call, x, dropFromAnswer,
		func() {
			if h.result.first == 0 {
				h.result.took(&h.result.first)
			}
			h.mu.Lock()
			h.flowing, h.heard = true, time.Now()
			h.mu.Unlock()
		},
		func(s *relay.Seen) error { return h.interrupted(s.Upstream) })
	h.result.events = seen.Events
	if seen.Done && !seen.Failed {
		h.end(pd.Decode)
	}
	switch {
	case seen.Client != nil:
		h.result.code = pd.CodeClientGone
	case seen.Upstream != nil:
		h.result.code = pd.CodeUpstreamInterrupted
	case seen.Failed:
		h.result.failed = true
	}
}

// interrupted words the end of an answer in its middle.
func (h *handoff) interrupted(err error) error {
	if errors.Is(context.Cause(h.call.Context()), edge.ErrStopping) {
		return errStopping()
	}
	h.mu.Lock()
	cut := h.cut
	h.mu.Unlock()
	if cut != nil {
		return cut
	}
	h.router.options.Log.Warn("answer broke", "request", h.pair.fence.Request, "handoff", h.pair.fence.Handoff, "node", h.pair.decode.id, "error", err)
	h.pair.decode.poke()
	return &pd.Error{
		Op: "relay answer", Code: pd.CodeUpstreamInterrupted, Handoff: h.pair.fence.Handoff, Node: h.pair.decode.id,
		Text: "the answer of decode node " + string(h.pair.decode.id) + " broke off before its end",
	}
}

// dropFromAnswer: the router has set the request id that the client knows.
func dropFromAnswer(name string) bool {
	return strings.EqualFold(name, "X-Request-Id") || relay.HasPrefixFold(name, openai.RoutePrefix)
}

// runPrefill runs prefill's leg to the end of its answer.
func (h *handoff) runPrefill() {
	h.prefill.Run()
	x, err := h.prefill.Answer()
	defer h.prefill.Close(errOver)
	var bad *refused
	switch {
	case err != nil:
		bad = &refused{err: err}
	case x.Status() == 200:
		if body, err := x.ReadAll(maxPrefillAnswer); err != nil {
			bad = &refused{err: err}
		} else if len(h.leads) > 0 {
			h.router.pool.report(h.leads, h.pair.fence.Prefill, cachedTokens(body))
		}
	default:
		bad = readRefusal(x)
	}
	took := h.result.since()
	h.result.prefilled.Store(int64(took))
	h.router.times.prefilled(took)
	if bad == nil || bad.nothingBegan() {
		h.end(pd.Prefill)
	}
	h.mu.Lock()
	h.refused = bad
	late := h.decodeHead
	h.mu.Unlock()
	close(h.prefilled)
	if bad != nil && late {
		h.prefillFailedLate(bad)
	}
}

// nothingBegan says that the node never had the request, or refused it as such:
// there is nothing that could still run there. A node ends the POST of a request
// that fails later as soon as it fails, and settles its writes after that.
func (bad *refused) nothingBegan() bool {
	if bad.err != nil {
		return edge.DialFailed(bad.err)
	}
	if passes(bad.status) {
		return true
	}
	switch openai.ReadError(bad.body, "").Code {
	case pd.CodeBusy, pd.CodeDraining, pd.CodeNodeGated, pd.CodeStaleBoot, pd.CodeVersionMismatch, pd.CodeRouteMissing:
		return true
	}
	return false
}

func readRefusal(x *edge.Exchange) *refused {
	bad := &refused{status: x.Status(), kind: x.Header("Content-Type"), header: relay.EndToEnd(x.Headers(), dropFromAnswer)}
	bad.body, bad.err = x.ReadAll(maxPrefillAnswer)
	return bad
}

// refuse answers for a leg that failed before decode's answer began. What is
// the client's own fault passes as it is; everything else is a 503 or 502.
func (h *handoff) refuse(n *node, bad *refused) error {
	log := h.router.options.Log
	attrs := []any{"request", h.pair.fence.Request, "handoff", h.pair.fence.Handoff, "side", n.role.String(), "node", n.id}
	if bad.err != nil {
		if cause := context.Cause(h.call.Context()); cause != nil {
			return cause
		}
		log.Warn("leg failed", append(attrs, "error", bad.err)...)
		if edge.DialFailed(bad.err) {
			h.router.pool.lost(n, "refuses connections")
		}
		n.poke()
		return bad.words(n)
	}
	said := bad.words(n)
	if passes(bad.status) && said.Code != pd.CodeRouteMissing {
		if h.result.code = said.Code; said.Code == pd.CodeInternal {
			h.result.code = pd.CodeInvalidRequest
		}
		for _, f := range bad.header {
			h.call.AddHeader(f.Name, f.Value)
		}
		h.call.Reply(bad.status, bad.kind, bad.body)
		return nil
	}
	log.Warn("leg refused", append(attrs, "status", bad.status, "code", said.Code.String())...)
	// A node may refuse for what the other one is: prefill passes on that decode is
	// gated.
	h.pair.prefill.poke()
	h.pair.decode.poke()
	if openai.HTTPStatus(said.Code) != 503 {
		// A conflict between router and node is no fault of the client.
		said = pd.Errorf(pd.CodePeerUnreachable, "forward", "%s node %s: %s", n.role, n.id, said.Message())
	}
	return said
}

// passes says that a status is about the client's request as such.
func passes(status int) bool {
	switch status {
	case 400, 404, 413, 422, 429:
		return true
	}
	return false
}

// words is a refusal as an error for the client: no address, no text that the
// node did not mean for clients.
func (bad *refused) words(n *node) *pd.Error {
	if bad.err == nil {
		return openai.ReadError(bad.body, fmt.Sprintf("%s node %s answered %d", n.role, n.id, bad.status))
	}
	if cut := (*pd.Error)(nil); errors.As(bad.err, &cut) {
		return cut
	}
	e := &pd.Error{Op: "forward", Node: n.id, Code: pd.CodePeerUnreachable, Text: fmt.Sprintf("%s node %s ended the connection without an answer", n.role, n.id)}
	switch {
	case errors.Is(bad.err, edge.ErrHeadTimeout), errors.Is(bad.err, edge.ErrReadTimeout):
		e.Code, e.Text = pd.CodeDeadline, fmt.Sprintf("%s node %s did not answer in time", n.role, n.id)
	case edge.DialFailed(bad.err):
		e.Text = fmt.Sprintf("%s node %s cannot be reached", n.role, n.id)
	}
	return e
}

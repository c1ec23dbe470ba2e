package host

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/hw-native-sys/pypto-pd/cmd/pdnode"
	"github.com/hw-native-sys/pypto-pd/mooncake"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// Node is one side of a pair inside a foreign server. Its methods may be called
// from any thread.
type Node struct {
	// constant
	settings *settings
	regions  []Region
	queue    *queue
	memory   *memory

	// guarded by mu
	mu       sync.Mutex
	arenas   []arena      // by rank, given before Start
	node     *pdnode.Node // nil before Start
	stop     context.CancelFunc
	running  sync.WaitGroup
	requests map[pd.HandoffID]*request
	closed   bool
}

// request is what the host may ask about a handoff, until its POST has ended
// and its memory is back.
type request struct {
	fence        pd.Fence
	continuation pd.Continuation
	close        func()
	// chunks were offered, up to end.
	chunks pd.ChunkID
	end    int
}

// Open reads the configuration. Nothing is allocated, bound or started.
func Open(text []byte) (*Node, error) {
	s, err := readConfig(text)
	if err != nil {
		return nil, err
	}
	n := &Node{settings: s, regions: s.regions(), queue: newQueue(), requests: map[pd.HandoffID]*request{}}
	n.memory = newMemory(s, n.queue)
	for range s.layout.Topology.Ranks {
		n.arenas = append(n.arenas, arena{})
	}
	return n, nil
}

// Ranks counts the ranks.
func (n *Node) Ranks() int { return n.settings.layout.Topology.Ranks }

// Self is this life of the node, what a router sends as X-PD-Self.
func (n *Node) Self() (pd.Peer, error) {
	running, err := n.started("self")
	if err != nil {
		return pd.Peer{}, err
	}
	return running.Self, nil
}

// Regions describes the arenas that every rank needs.
func (n *Node) Regions() []Region { return n.regions }

// Memory gives one arena of one rank: address and length of host memory that
// this process may read and write, as Regions demands it.
func (n *Node) Memory(rank, region int, address uintptr, bytes int64) error {
	bad := func(format string, args ...any) error {
		return pd.Errorf(pd.CodeInvalidRequest, "memory", format, args...)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.node != nil || n.closed:
		return pd.Errorf(pd.CodeFrozen, "memory", "the node has been started")
	case len(n.settings.Owners) > 0:
		return bad("the memory is that of the owners' processes; give it there")
	case rank < 0 || rank >= len(n.arenas):
		return bad("rank %d of %d", rank, len(n.arenas))
	case region < 0 || region >= len(n.regions):
		return bad("region %d of %d", region, len(n.regions))
	}
	r := n.regions[region]
	if bytes != r.Bytes {
		return bad("%s of rank %d has %d bytes, want %d", r.Component, rank, bytes, r.Bytes)
	}
	return n.arenas[rank].give(r.Component, address, bytes, n.arenas...)
}

// Start registers the memory, binds the control port and takes requests. A
// context that ends first leaves nothing started.
func (n *Node) Start(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.node != nil || n.closed {
		return pd.Errorf(pd.CodeFrozen, "start", "the node has been started")
	}
	for rank, arenas := range n.arenas {
		for _, r := range n.regions {
			if len(n.settings.Owners) == 0 && arenas[r.Component] == nil {
				return pd.Errorf(pd.CodeInvalidConfig, "start", "rank %d: the memory of %s (%d bytes) was not given", rank, r.Component, r.Bytes)
			}
		}
	}
	s := n.settings
	options := pdnode.Options(s.pd.Provider, pdnode.SimulatorOptions{Seed: 1}, pdnode.MooncakeOptions{Protocol: mooncake.TCP})
	provider, err := pdnode.Provider(s.pd.Provider, options, s.logger(os.Stderr))
	if err != nil {
		return err
	}
	n.node, err = pdnode.Open(ctx, pdnode.Config{
		Program: "libpypto-pd", PD: s.pd, Entry: s.entry, Role: s.Role,
		Adapter: s.adapter, Contract: s.contract, Layout: s.layout, ServedModel: s.ServedModel, MaxModelTokens: s.MaxModelTokens,
		PrefixCaching: s.PrefixCaching, AutoFence: s.AutoFence, Provider: provider, Options: options,
		OwnerSockets: s.Owners, ControlSecret: s.secret,
		NewArena: func(r pd.Rank) (transfer.Arena, error) { return n.arenas[r], nil },
		Engine: func(*pd.Contract, string, pdnode.Memory) (engine.PD, lease.Allocator) {
			return orders{n}, n.memory
		},
		Logger: s.logger, Stderr: os.Stderr,
	})
	if err != nil {
		n.node = nil
		return err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	n.stop = stop
	node := n.node
	n.running.Go(func() { node.Serve(running) })
	return nil
}

// started is the running node.
func (n *Node) started(op string) (*pdnode.Node, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed:
		return nil, pd.Errorf(pd.CodeDraining, op, "the node is closed")
	case n.node == nil:
		return nil, pd.Errorf(pd.CodeInvalidRequest, op, "the node is not started")
	}
	return n.node, nil
}

// Poll waits for the next event. CodeDeadline: the context ended first.
func (n *Node) Poll(ctx context.Context) (Event, error) {
	e, err := n.queue.take(ctx)
	if err != nil {
		return e, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if r := n.requests[e.Handoff]; r != nil {
		e.Request = r.fence.Request
	}
	return e, nil
}

// Post takes a router's POST in: its route headers and, on prefill, what the
// body asks for. The events Accepted (decode) and Ended follow; nothing else
// follows an error.
func (n *Node) Post(route openai.Route, continuation []byte) error {
	running, err := n.started("post")
	if err != nil {
		return err
	}
	fence, err := route.Fence(n.settings.Role, running.Self, running.Run)
	if err != nil {
		return err
	}
	r := &request{fence: *fence}
	if err := n.readContinuation(continuation, &r.continuation); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	r.close = func() { cancel(pd.Errorf(pd.CodeClientGone, "post", "the client has left")) }
	h := fence.Handoff
	n.mu.Lock()
	if n.requests[h] != nil {
		n.mu.Unlock()
		cancel(nil)
		return &pd.Error{Op: "post", Code: pd.CodeDuplicateHandoff, Handoff: h, Text: "this handoff was posted before"}
	}
	n.requests[h] = r
	n.mu.Unlock()
	n.running.Go(func() {
		defer cancel(nil)
		n.follow(ctx, running, r)
	})
	return nil
}

// readContinuation reads the JSON of pd.Continuation; decode needs the stream
// flag of it only and takes the rest from prefill.
func (n *Node) readContinuation(text []byte, c *pd.Continuation) error {
	if n.settings.Role == pd.Decode {
		var body struct {
			Stream bool `json:"stream"`
		}
		if err := strictjson.Decode(text, &body, strictjson.Limits{}); err != nil {
			return &pd.Error{Op: "post", Code: pd.CodeInvalidRequest, Err: err}
		}
		c.Stream = body.Stream
		return nil
	}
	if err := strictjson.Decode(text, c, strictjson.Limits{}); err != nil {
		return &pd.Error{Op: "post", Code: pd.CodeInvalidRequest, Err: err}
	}
	if len(c.PromptTokens) == 0 || c.MaxNewTokens < 1 {
		return pd.Errorf(pd.CodeInvalidRequest, "post", "%d prompt tokens, %d new ones: want at least 1 of each", len(c.PromptTokens), c.MaxNewTokens)
	}
	return nil
}

// follow waits for the end of one POST.
func (n *Node) follow(ctx context.Context, running *pdnode.Node, r *request) {
	h := r.fence.Handoff
	end := func(err error) {
		e := Event{Kind: Ended, Handoff: h, Request: r.fence.Request}
		if err != nil {
			e.Code, e.Why = pd.CodeOf(err), err.Error()
		}
		n.mu.Lock()
		delete(n.requests, h)
		n.mu.Unlock()
		n.queue.put(e)
	}
	stream, err := running.Shell.Generate(ctx, engine.Request{ID: r.fence.Request, Continuation: r.continuation, Fence: &r.fence})
	if err != nil {
		end(err)
		return
	}
	defer stream.Close()
	if n.settings.Role == pd.Decode {
		n.queue.put(Event{Kind: Accepted, Handoff: h})
	}
	for {
		o, err := stream.Next(ctx)
		if err != nil {
			// The client left: the node hears of it by Close, and the end that it
			// orders is still told.
			stream.Close()
			ctx = context.WithoutCancel(ctx)
			continue
		}
		if o.Finish != 0 {
			end(o.Err)
			return
		}
	}
}

// Leave says that the client of a POST has left. Ended still follows.
func (n *Node) Leave(h pd.HandoffID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.requests[h]
	if r == nil {
		return &pd.Error{Op: "leave", Code: pd.CodeUnknownKey, Handoff: h, Text: "no such POST is open"}
	}
	r.close()
	return nil
}

// Grant gives decode's memory for a reservation: runs of pages for every group,
// as many as Regions says for the event's Tokens.
func (n *Node) Grant(h pd.HandoffID, p pd.Partition, slot, hitTokens int, runs []Run) error {
	running, err := n.started("grant")
	if err != nil {
		return err
	}
	if err := n.memory.grant(h, p, slot, hitTokens, runs); err != nil {
		return err
	}
	running.Shell.GrantDecided(h)
	return nil
}

// Refuse is the other answer to a reservation: there is no room now.
func (n *Node) Refuse(h pd.HandoffID) error {
	running, err := n.started("refuse")
	if err != nil {
		return err
	}
	no := &pd.Error{Op: "open", Code: pd.CodeCapacityExhausted, Handoff: h, Text: "the host has no room for it"}
	if err := n.memory.refuse(h, no); err != nil {
		return err
	}
	running.Shell.GrantDecided(h)
	return nil
}

// Chunk is one computed part of a prompt.
type Chunk struct {
	Chunk     pd.ChunkID
	Partition pd.Partition
	Span      pd.Span
	Final     bool
	// HitTokens is how much of the prompt came from this node's own cache.
	HitTokens int
	// Slot and FirstToken matter with Final.
	Slot       int
	FirstToken pd.Token
}

// ChunkReady says that a chunk is complete on every rank of the partition, with
// the request's whole tables. Its pages stay as they are until PagesFree.
func (n *Node) ChunkReady(h pd.HandoffID, c Chunk, runs []Run) error {
	running, err := n.started("chunk")
	if err != nil {
		return err
	}
	tables, err := n.settings.tables(runs)
	topology := n.settings.layout.Topology
	switch {
	case err != nil:
	case c.Partition < 0 || int(c.Partition) >= topology.Partitions():
		err = fmt.Errorf("partition %d of %d", c.Partition, topology.Partitions())
	case c.Final && (c.Slot < 0 || c.Slot >= n.settings.layout.BootstrapSlots):
		err = fmt.Errorf("slot %d of %d", c.Slot, n.settings.layout.BootstrapSlots)
	case c.Span.Start < 0 || c.Span.End <= c.Span.Start || c.Chunk < 0:
		err = fmt.Errorf("chunk %d of [%d,%d)", c.Chunk, c.Span.Start, c.Span.End)
	}
	if err != nil {
		return &pd.Error{Op: "chunk", Code: pd.CodeInvalidRequest, Handoff: h, Err: err}
	}
	if err := n.inOrder(h, c); err != nil {
		return err
	}
	n.memory.offer(h, lease.Snapshot{Tables: tables, Slot: c.Slot})
	running.Shell.ChunkComputed(engine.ChunkComputed{
		Handoff: h, Partition: c.Partition, Chunk: c.Chunk, Span: c.Span, Final: c.Final, HitTokens: c.HitTokens,
		BootstrapSlot: c.Slot, FirstToken: c.FirstToken,
	})
	return nil
}

// inOrder refuses a chunk that does not follow the one before. A request that
// has ended meanwhile takes any: it is pinned no more.
func (n *Node) inOrder(h pd.HandoffID, c Chunk) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.requests[h]
	if r == nil {
		return nil
	}
	if c.Chunk != r.chunks || c.Span.Start != r.end || c.Span.End > len(r.continuation.PromptTokens) || c.Final != (c.Span.End == len(r.continuation.PromptTokens)) {
		return &pd.Error{Op: "chunk", Code: pd.CodeInvalidRequest, Handoff: h, Text: fmt.Sprintf(
			"chunk %d of [%d,%d), final %t: chunk %d from %d on is next, and the prompt has %d tokens", c.Chunk, c.Span.Start, c.Span.End, c.Final, r.chunks, r.end, len(r.continuation.PromptTokens))}
	}
	r.chunks, r.end = r.chunks+1, c.Span.End
	return nil
}

// PrefillStopped answers StopPrefill, or says why the host gave a prompt up.
func (n *Node) PrefillStopped(h pd.HandoffID, code pd.Code) error {
	running, err := n.started("stopped")
	if err != nil {
		return err
	}
	n.memory.forget(h)
	running.Shell.PrefillStopped(h, hostError("prefill", h, code))
	return nil
}

// DecodeStopped says that nothing of a request's pages is read or written any
// more: it is finished (code 0), was stopped, or failed.
func (n *Node) DecodeStopped(h pd.HandoffID, code pd.Code) error {
	running, err := n.started("stopped")
	if err != nil {
		return err
	}
	last := engine.Output{Finish: pd.FinishStop}
	if err := hostError("decode", h, code); err != nil {
		last = engine.Failure(err)
	}
	running.Shell.DecodeStopped(h, last)
	return nil
}

func hostError(op string, h pd.HandoffID, code pd.Code) error {
	if code == 0 {
		return nil
	}
	return &pd.Error{Op: op, Code: code, Handoff: h, Text: "the host gave it up"}
}

// Continuation is what is to be done for a handoff: known with Prefill on
// prefill, with Adopt on decode, until Ended.
func (n *Node) Continuation(h pd.HandoffID) (*pd.Continuation, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.requests[h]
	if r == nil || len(r.continuation.PromptTokens) == 0 {
		return nil, &pd.Error{Op: "continuation", Code: pd.CodeUnknownKey, Handoff: h, Text: "no such request is under way"}
	}
	return &r.continuation, nil
}

// Status is what pypto-pdctl status shows.
func (n *Node) Status() (node.Snapshot, error) {
	running, err := n.started("status")
	if err != nil {
		return node.Snapshot{}, err
	}
	return running.Shell.Snapshot(), nil
}

// Drain takes nothing new in and waits until everything has ended.
func (n *Node) Drain(ctx context.Context) error {
	running, err := n.started("drain")
	if err != nil {
		return err
	}
	return running.Shell.Drain(ctx)
}

// Close ends everything. While it returns an error the memory may still be
// written or read, and stays the data plane's; Close may be called again.
func (n *Node) Close(ctx context.Context) error {
	n.mu.Lock()
	n.closed = true
	running, stop := n.node, n.stop
	n.mu.Unlock()
	if running == nil {
		return nil
	}
	stop()
	done := make(chan struct{})
	go func() {
		n.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return pd.Errorf(pd.CodeDeadline, "close", "requests are still ending")
	}
	return running.Close(ctx)
}

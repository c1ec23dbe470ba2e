package app

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/engine/reference"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/serve"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// sizingOf is what decides the cache's size. With prefix caching the rings keep
// the windows and states of as many boundaries as the full groups have room for
// at this distance: a prefix without its window is no hit.
func sizingOf(s settings) adapter.Sizing {
	const tokensPerCheckpoint = 512
	size := adapter.Sizing{Topology: s.topology, PoolTokens: s.SimPoolTokens, StepTokens: s.chunkTokens, Sequences: slotsPerRank}
	if s.PrefixCaching {
		size.Checkpoints = s.SimPoolTokens / tokensPerCheckpoint
	}
	return size
}

// slotsPerRank is how many requests each rank can hold, whatever tp is.
const slotsPerRank = 16

func newEngine(s settings, c *pd.Contract, digest string, l adapter.Layout, memory func(pd.Rank, pd.ComponentID) []byte, copier func(pd.Rank, pd.ComponentID) reference.Copier, hashed func(pd.HandoffID, string)) *reference.Engine {
	return reference.New(reference.Config{
		VerifyPages: s.VerifyPages, Hashed: hashed,
		Contract: c, Adapter: s.adapter, ContractDigest: digest, PrefixCaching: s.PrefixCaching, Layout: l, Memory: memory, Copier: copier, MaxTokens: s.MaxModelLen,
		BatchTokens: s.MaxBatchedTokens, ChunkTokens: s.chunkTokens,
		Sequences: s.MaxNumSeqs, Queued: queuedPerSequence * s.MaxNumSeqs,
		PrefillRate: s.SimPrefillRate, DecodeRate: s.SimDecodeRate, DecodeBatch: s.steps.hook(),
	})
}

// queuedPerSequence bounds how many requests wait at a node without a role.
const queuedPerSequence = 8

// replica is a node without a role: prefill and decode in one process, no PD
// code started.
type replica struct {
	id       string
	settings settings
	arena    *owner.HostArena
	engine   *reference.Engine
	log      *slog.Logger
	active   atomic.Int64
	// generated counts the tokens that clients were given.
	generated atomic.Int64
	stopping  atomic.Bool
	ended     atomic.Bool // the engine's loop; it begins before the HTTP side
}

func newReplica(s settings, log *slog.Logger, steps startup) (server, error) {
	contract := s.adapter.Contract(s.revision, "none")
	layout := adapter.LayoutFor(&contract, sizingOf(s))
	r := &replica{id: newServerID(), settings: s, arena: owner.NewHostArena(), log: log}
	memory := map[pd.Rank]map[pd.ComponentID]transfer.Memory{}
	for rank := range pd.Rank(s.topology.Ranks) {
		memory[rank] = map[pd.ComponentID]transfer.Memory{}
		for component, bytes := range regionsOf(&contract, layout) {
			m, err := r.arena.Allocate(component, bytes)
			if err != nil {
				return nil, fmt.Errorf("allocate %s of rank %d: %w", component, rank, err)
			}
			memory[rank][component] = m
		}
	}
	steps.memory(s, &contract, layout)
	// Nothing leaves this process, so the name of a page needs no more than the
	// model and the geometry.
	r.engine = newEngine(s, &contract, s.SimGeometry, layout, func(rank pd.Rank, c pd.ComponentID) []byte { return memory[rank][c].Bytes() }, nil, nil)
	return r, nil
}

func regionsOf(c *pd.Contract, l adapter.Layout) map[pd.ComponentID]int64 {
	out := map[pd.ComponentID]int64{c.Bootstrap.Component: int64(l.BootstrapSlots) * int64(c.Bootstrap.SlotBytes())}
	for _, comp := range c.Components {
		out[comp.ID] = c.RegionBytes(comp, l.PagesPerLayer[comp.Group])
	}
	return out
}

// Generate implements engine.Generator: the engine's, closed while stopping and
// counted for the drain.
func (r *replica) Generate(ctx context.Context, q engine.Request) (engine.Stream, error) {
	if r.stopping.Load() {
		return nil, pd.Errorf(pd.CodeDraining, "generate", "the node is shutting down")
	}
	s, err := r.engine.Generate(ctx, q)
	if err != nil {
		return nil, err
	}
	r.active.Add(1)
	return &counted{Stream: s, tokens: &r.generated, done: func() { r.active.Add(-1) }}, nil
}

// counted counts a stream's tokens, and tells once that it is over.
type counted struct {
	engine.Stream
	tokens *atomic.Int64
	done   func()
	over   bool
}

func (c *counted) end() {
	if !c.over {
		c.over = true
		c.done()
	}
}

func (c *counted) Next(ctx context.Context) (engine.Output, error) {
	o, err := c.Stream.Next(ctx)
	c.tokens.Add(int64(len(o.Tokens)))
	if o.Finish != 0 {
		c.end()
	}
	return o, err
}

func (c *counted) Close() {
	c.Stream.Close()
	c.end()
}

func (r *replica) http() serve.Config {
	return serve.Config{
		Model: r.engine, Generator: r, Log: r.log, ServedModel: r.settings.ServedModel, DefaultMaxTokens: r.settings.maxNew,
		Health: func() (bool, []byte) {
			// An HTTP side that lives on after its engine must not look slow.
			ok, word := !r.ended.Load() && !r.stopping.Load(), "ok"
			if !ok {
				word = "not_ready"
			}
			return ok, healthBody(map[string]any{"status": word, "role": "combined", "active": r.active.Load()})
		},
		Routes: map[string]edge.Handler{"/metrics": replicaMetrics(r), "/metrics/json": r.answerSnapshot},
	}
}

func healthBody(fields map[string]any) []byte {
	b, err := json.Marshal(fields)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return b
}

func (r *replica) run(ctx context.Context) {
	defer r.ended.Store(true)
	r.engine.Run(ctx, nil)
}

func (r *replica) drain(ctx context.Context) error {
	r.stopping.Store(true)
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for r.active.Load() > 0 {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("drain: %d requests are active: %w", r.active.Load(), context.Cause(ctx))
		}
	}
	return nil
}

func (r *replica) logger() *slog.Logger { return r.log }

func (r *replica) ready() string { return "role=combined" }

func (r *replica) close(context.Context) error { return r.arena.Close() }

package sim

import (
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd/mutant"
)

// Options say which world to run. The same options give the same world, event
// for event.
type Options struct {
	Seed uint64
	// Handoffs is how many requests clients send.
	Handoffs int
	// Faults are the kinds that may happen. The seed chooses among them, unless
	// they are Exact.
	Faults Faults
	Exact  bool
	// From and Until bound when faults happen; 0 is no bound.
	From, Until time.Duration
	// Intensity scales how often they do; 0 means 1.
	Intensity float64
	// Broken switches one rule off that the simulation itself stands for.
	Broken Broken
	// Unacknowledged gives the first prefill node a data plane whose Done means
	// only that the bytes have left.
	Unacknowledged bool
	// Mutant is the rule of the nodes that whoever runs the world has switched off.
	Mutant mutant.Rule
	// Log gets one line per event; nil writes none.
	Log io.Writer
}

// Broken is a rule of owners, data plane or operators that a test may switch
// off. The rules of the nodes themselves are switched off in package mutant.
type Broken int

// The rules.
const (
	Nothing Broken = iota
	// PortReuse: a new boot takes the ports of the one before, nobody compares
	// identity rows, and a lost connection is made anew by its address.
	PortReuse
	// DeathSuffices: a gate ends with the sender's death and some settle time.
	DeathSuffices
	// Unacknowledged: Done means that the bytes have left, and the peers do not
	// see that in the session.
	Unacknowledged
	// NoBootLock: a start does not wait for owners of an earlier boot.
	NoBootLock
)

// draw is one stream of the world's chance. Each purpose has its own, so that
// taking a kind of fault away changes nothing else before it would have hit.
func draw(seed uint64, purpose string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(purpose)) // never fails
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// settings are what the seed makes of a world before it begins.
type settings struct {
	prefills, decodes, routers int
	tpPrefill, tpDecode        []int
	capacity                   int
	sequences                  int
	chunkTokens, batchTokens   int
	stepDecode                 int
	poolPrefill, poolDecode    int
	cachePrefill, cacheDecode  bool
	// policy is the rolling policy, by number; checkpoints is how many cached
	// windows the rings keep.
	policy, checkpoints     int
	prefillRate, decodeRate float64
	maxPrompt, maxNew       int
	handoffTimeout          time.Duration
	requestTimeout          time.Duration
	attemptTimeout          time.Duration
	interval                time.Duration
	fenceProves, autoFence  bool
	// freesSource: every verdict of the data plane frees the source.
	freesSource bool
	active      Faults
	// patient operators leave a gated node alone for a while: its proof may come.
	patient bool
	// share is how likely a kind of fault is to be active, intensity how often it
	// then happens: some worlds have a little of much, others much of little.
	share, intensity float64
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// between draws a duration.
func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)+1))
}

func newSettings(o Options) settings {
	r := draw(o.Seed, "settings")
	s := settings{
		prefills: 1 + r.IntN(2), decodes: 1 + r.IntN(3), routers: 1,
		capacity: 4 + r.IntN(5), sequences: 4 + r.IntN(5),
		chunkTokens: pick(r, 128, 128, 256, 100), batchTokens: 256,
		stepDecode: 128, poolPrefill: 4096, poolDecode: 4096,
		prefillRate: pick(r, 2000.0, 6000, 20000), decodeRate: pick(r, 20.0, 60, 200),
		maxPrompt: 700, maxNew: 40,
		handoffTimeout: pick(r, 4*time.Second, 15*time.Second, 60*time.Second),
		interval:       between(r, 50*time.Millisecond, 500*time.Millisecond),
		fenceProves:    r.IntN(4) > 0, autoFence: r.IntN(4) == 0, freesSource: r.IntN(4) > 0, patient: r.IntN(3) == 0,
	}
	s.requestTimeout = s.handoffTimeout * time.Duration(3+r.IntN(6))
	s.attemptTimeout = pick(r, time.Second, 5*time.Second, 20*time.Second)
	for range s.prefills {
		s.tpPrefill = append(s.tpPrefill, pick(r, 1, 4, 4))
	}
	for range s.decodes {
		s.tpDecode = append(s.tpDecode, pick(r, 1, 4, 2))
	}
	s.cachePrefill, s.cacheDecode = r.IntN(2) == 0, r.IntN(2) == 0
	s.policy = r.IntN(len(model.variants))
	if s.cachePrefill || s.cacheDecode {
		s.checkpoints = r.IntN(8)
	}
	s.share, s.intensity = pick(r, 0.1, 0.3, 0.5), pick(r, 0.5, 1, 1, 3)
	for _, f := range o.Faults.Kinds() {
		if o.Exact || draw(o.Seed, "active "+f.String()).Float64() < s.share {
			s.active = s.active.With(f)
		}
	}
	s.apply(o.Seed)
	switch o.Broken {
	case DeathSuffices:
		s.fenceProves, s.autoFence = false, false
	case PortReuse, NoBootLock, Unacknowledged, Nothing:
	}
	return s
}

// apply makes the faults that are a shape of the world.
func (s *settings) apply(seed uint64) {
	r := draw(seed, "shape")
	if s.active.Has(RouterSecond) {
		s.routers = 2
	}
	if s.active.Has(OddChunkEnds) {
		s.chunkTokens = pick(r, 1, 127, 129, 1000)
		s.batchTokens = max(256, s.chunkTokens)
		if s.chunkTokens == 1 {
			s.maxPrompt = 140
		}
	}
	if s.active.Has(RingPeriodMin) {
		// Decode's ring holds exactly what the tail policy can need, prefill's
		// exactly a chunk and the window behind it.
		s.stepDecode = 66
		if !s.active.Has(OddChunkEnds) {
			s.chunkTokens, s.maxPrompt = 16, 300
		}
	}
	if s.active.Has(PrefixEvictUnderLoad) {
		s.cachePrefill, s.cacheDecode = true, true
		s.poolPrefill, s.poolDecode = 1024, 1024
		s.sequences, s.checkpoints = 2+r.IntN(2), r.IntN(4)
	}
	if s.active.Has(PoolExactFit) {
		// The longest request fits once, to the page.
		s.maxPrompt = min(s.maxPrompt, 512-s.maxNew)
		s.poolDecode, s.poolPrefill = 512, 512
	}
}

// String is the world in one line.
func (s settings) String() string {
	return fmt.Sprintf("%dP%v %dD%v R%d capacity=%d sequences=%d chunk=%d pools=%d/%d cache=%t/%t policy=%d checkpoints=%d handoff=%v request=%v attempt=%v fence=%t auto=%t frees=%t share=%g intensity=%g faults=%s",
		s.prefills, s.tpPrefill, s.decodes, s.tpDecode, s.routers, s.capacity, s.sequences, s.chunkTokens, s.poolPrefill, s.poolDecode,
		s.cachePrefill, s.cacheDecode, s.policy, s.checkpoints, s.handoffTimeout, s.requestTimeout, s.attemptTimeout, s.fenceProves, s.autoFence, s.freesSource, s.share, s.intensity, s.active)
}

package simulator

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// Name is the provider's name in pd.json.
const Name = "simulator"

// Link is what every engine's outgoing link can do.
type Link struct {
	// BytesPerSecond is the rate of one engine; 0 is unlimited.
	BytesPerSecond int64
	// Latency is the mean latency of a batch; a seeded draw between half and one
	// and a half of it is added to each. 0 is none.
	Latency time.Duration
}

// Config describes a simulated data plane.
type Config struct {
	Link Link
	// Faults are applied by engines as sources of writes.
	Faults []Fault
	// Seed decides latencies and orders.
	Seed uint64
}

// Validate reports every defect.
func (c Config) Validate() error {
	switch {
	case c.Link.BytesPerSecond < 0:
		return fmt.Errorf("link rate %d: want 0 for unlimited, or bytes per second", c.Link.BytesPerSecond)
	case c.Link.Latency < 0:
		return fmt.Errorf("link latency %s: want 0 or more", c.Link.Latency)
	}
	return Validate(c.Faults)
}

// Provider makes simulated engines. It is safe for concurrent use.
type Provider struct {
	config Config        // constant
	faults []*armedFault // constant; counters inside are atomic

	lateAnswers   atomic.Int64
	delayedWrites atomic.Int64
}

// New checks the configuration. It starts nothing.
func New(c Config) (*Provider, error) {
	if err := c.Validate(); err != nil {
		return nil, &pd.Error{Op: "configure simulator", Code: pd.CodeInvalidConfig, Err: err}
	}
	p := &Provider{config: c}
	for _, f := range c.Faults {
		p.faults = append(p.faults, arm(f))
	}
	return p, nil
}

// Name is "simulator".
func (p *Provider) Name() string { return Name }

// Facts declares what holds for the simulator: see the package comment.
func (p *Provider) Facts() transfer.Facts {
	return transfer.Facts{
		FenceProves: true,
		// The target's kernel may still hold bytes of a dead sender.
		DeathSuffices:       false,
		TerminalFreesSource: true,
		Acknowledged:        true,
		Build:               "simulator/1",
	}
}

// AppliedFaults counts the batches that each kind of fault has hit.
func (p *Provider) AppliedFaults() map[string]int64 {
	hits := map[string]int64{}
	for _, f := range p.faults {
		hits[f.Kind] += f.hit.Load()
	}
	return hits
}

// LateAnswers counts answers of targets that came after their batch had
// settled; they changed nothing.
func (p *Provider) LateAnswers() int64 { return p.lateAnswers.Load() }

// DelayedWrites counts the batches that targets wrote late because a fault
// asked them to. Memory read after the count rose has the bytes.
func (p *Provider) DelayedWrites() int64 { return p.delayedWrites.Load() }

// fault finds the fault that hits this batch, counting the batch with every
// fault that it matches.
func (p *Provider) fault(target pd.Rank, segments []pd.Segment) *armedFault {
	var first *armedFault
	for _, f := range p.faults {
		if f.Kind != FenceHangs && f.wants(target, segments) && first == nil {
			first = f
		}
	}
	if first != nil {
		first.hit.Add(1)
	}
	return first
}

// fenceHangs says whether a fault hits this Fence.
func (p *Provider) fenceHangs(rank pd.Rank) bool {
	hangs := false
	for _, f := range p.faults {
		if f.Kind == FenceHangs && f.wants(rank, nil) {
			f.hit.Add(1)
			hangs = true
		}
	}
	return hangs
}

// Open creates an engine that listens on Options.Hostname and a free port. It
// accepts from Freeze on.
func (p *Provider) Open(ctx context.Context, o transfer.Options) (transfer.Engine, error) {
	const op = "open simulator engine"
	identity, err := o.First()
	if err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeInvalidConfig, Err: err}
	}
	listener, err := listen(ctx, o)
	if err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeInvalidConfig, Text: "listen on " + o.Hostname, Err: err}
	}
	e := &engine{
		provider: p,
		options:  o,
		timeout:  o.AttemptTimeout,
		pacer:    newPacer(p.config.Link, p.config.Seed, identity.Rank),
		extents:  transfer.Extents{},
		source:   map[pd.ComponentID][]byte{},
		sessions: map[sessionKey]*session{},
		Verdicts: transfer.NewVerdicts(),
	}
	e.inbound = newInbound(listener, identity, &p.delayedWrites)
	return e, nil
}

// freshPortTries bounds the search for a port that no late writer can know. The
// kernel draws from some 28,000, of which a thousand boots of 16 ranks have used
// at most half.
const freshPortTries = 256

// listen binds a port that was not used before. Used ports are held until a
// fresh one is found, so that the kernel does not offer them again.
func listen(ctx context.Context, o transfer.Options) (net.Listener, error) {
	var c net.ListenConfig
	for range freshPortTries {
		l, err := c.Listen(ctx, "tcp", net.JoinHostPort(o.Hostname, "0"))
		if err != nil || o.PortUsed == nil || !o.PortUsed(portOf(l)) {
			return l, err
		}
		defer l.Close()
	}
	return nil, fmt.Errorf("%d free ports in a row were used by an earlier life of this node", freshPortTries)
}

func portOf(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

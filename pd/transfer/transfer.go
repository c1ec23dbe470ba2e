// Package transfer is the contract of a data plane: how bytes of registered
// memory move one-sidedly from a source owner into a target owner, and when
// that is settled.
//
// An Engine lives in the process that owns the memory. Its life is
// Open → Register every region → Freeze → Connect/Submit/Poll → Close. There
// is no Cancel: a write that was submitted is waited for, or held uncertain.
//
// The package starts no goroutine; what a provider starts ends with Close.
package transfer

import (
	"context"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Memory is one registered allocation. The owner keeps it alive and in place
// from Register until Close returned.
type Memory interface {
	// Base is the address as an integer: a device address, or a host address.
	// It is never logged and never converted to a Go pointer.
	Base() uintptr
	// Len is the length in bytes.
	Len() int64
	// Bytes is the memory itself where it is host memory, else nil.
	Bytes() []byte
}

// Arena allocates the memory of regions, 64-byte aligned, in its owner.
type Arena interface {
	// Allocate returns zeroed memory owned by the arena.
	Allocate(component pd.ComponentID, bytes int64) (Memory, error)
	// Close frees everything. No engine may still have any of it registered.
	Close() error
}

// Facts are what a provider declares about itself. Each is a promise that
// frees memory; docs/protocol.md lists what is done with it.
type Facts struct {
	// FenceProves: once Fence returned nil, no byte of an earlier engine lands.
	FenceProves bool
	// DeathSuffices: a dead sender's writes have ended, without a fence.
	DeathSuffices bool
	// TerminalFreesSource: any end of a batch that the data plane reports, and the
	// end of its engine, mean that the source is no longer read. Whether that also
	// holds at AttemptTimeout, when the batch may go on, each verdict says itself.
	TerminalFreesSource bool
	// Acknowledged: Done means that the target has the bytes, not that they
	// left the source.
	Acknowledged bool
	// LocksMemory: registered memory is locked in RAM, so that the limit on
	// locked memory (RLIMIT_MEMLOCK) must cover all regions of a rank.
	LocksMemory bool
	// Build identifies the library; both ends of a pair must be equal.
	Build string
}

// Identity is the 64-byte row that every engine registers beside its regions
// and that a peer reads and compares before its first write.
type Identity struct {
	Boot  pd.BootID
	Rank  pd.Rank
	Epoch pd.Epoch
}

// Provider is one kind of data plane.
type Provider interface {
	// Name is the provider's name in pd.json.
	Name() string
	Facts() Facts
	// Open creates the engine of one owner. The caller closes it.
	Open(ctx context.Context, o Options) (Engine, error)
}

// Checker is a provider that can say before Open, once per process, what of the
// machine would keep it from working, and what to do about it. hostname is the
// data-plane address that peers will use.
type Checker interface {
	Check(ctx context.Context, hostname string) error
}

// Options describe one engine.
type Options struct {
	Identity Identity
	// Hostname is the data-plane address to listen on and to announce.
	Hostname string
	// AttemptTimeout bounds one submitted batch from Submit to verdict; a batch
	// still open then settles Uncertain.
	AttemptTimeout time.Duration
	// PortUsed says that a data-plane port was used before, by an earlier life of
	// this node or by an earlier engine of this one, so that a late writer may
	// still address it: the engine must listen on another. Nil means that every
	// port is free to take. It may be called from any goroutine.
	PortUsed func(port int) bool
}

// Ported is an Engine that knows the TCP ports on which peers reach it.
type Ported interface {
	// Ports lists the ports that this life of the engine listens on; they change
	// with Fence.
	Ports() []int
}

// Copier is Memory that is not the host's but can be copied to and from, for an
// engine that brings a machine up without computing on it. Ranges lie inside
// the memory. Calls come from any goroutine, one at a time.
type Copier interface {
	CopyIn(offset int64, from []byte) error
	CopyOut(offset int64, to []byte) error
}

// Engine is one owner's end of the data plane. Register, Freeze, Connect,
// Submit, Poll, Fence and Close are called from one goroutine at a time.
type Engine interface {
	// Register makes memory writable by peers and returns its envelope. It is
	// refused with CodeFrozen after Freeze, and for a component twice.
	Register(component pd.ComponentID, m Memory) (envelope string, err error)
	// Freeze ends registration. It must precede the first Connect.
	Freeze() error
	// Endpoint is what a peer needs to Connect; it changes with every Fence.
	Endpoint() string
	// Epoch is the engine epoch: 1 at Open, one more after each Fence.
	Epoch() pd.Epoch
	// Connect opens a session to one rank of a peer and compares the identity
	// row; a difference is CodeStaleBoot. Sessions are cheap to ask for again:
	// the same (boot, epoch, endpoint) gives the same session.
	Connect(ctx context.Context, t Target) (Session, error)
	// Poll appends the batches that settled since the last call to dst. It
	// never blocks.
	Poll(dst []Verdict) []Verdict
	// Wake is readable when Poll may have something.
	Wake() <-chan struct{}
	// Fence destroys the engine and creates a new one with fresh ports and a
	// higher epoch over the same registered memory. When it returned nil and
	// Facts().FenceProves, no earlier write lands any more. Every unsettled
	// batch of this engine as a source settles Uncertain.
	Fence(ctx context.Context) error
	// Close ends the engine. Unsettled batches settle Uncertain.
	Close() error
}

// Target is one rank of a peer.
type Target struct {
	Peer     pd.Peer
	Identity Identity
	// Endpoint and Regions come from the peer's registration.
	Endpoint string
	Regions  []pd.Region
}

// Session is an open way to one target rank.
type Session interface {
	// Submit starts one batch. The source bytes must stay as they are until the
	// verdict says the source is free. An error means that nothing was and
	// nothing will be written.
	Submit(segments []pd.Segment) (Ticket, error)
}

// Ticket names one submitted batch within its engine; it is never reused.
type Ticket uint64

// Verdict is the end of one batch. One that leaves the source in use, because the
// batch may go on, may be followed by a second one for the same ticket, with
// SourceFree: the batch has ended and is read no more. Its settlement says nothing
// new; the first one stands. None comes after a Fence.
type Verdict struct {
	Ticket     Ticket
	Settlement pd.Settlement
	// SourceFree: the provider reads the source bytes no more.
	SourceFree bool
	// Detail is the provider's own code, for people.
	Detail string
}

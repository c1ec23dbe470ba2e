package pdnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/control"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/shell"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// attemptMargin is how much earlier than the control calls a native attempt
// gives up, so that its own verdict comes first (pd-domain §4.9).
const attemptMargin = 5 * time.Second

// predecessorTime is how long a start waits for processes of an earlier boot.
const predecessorTime = 10 * time.Second

// Config is what a node is made of.
type Config struct {
	// Program names the caller in the journal.
	Program string
	PD      *config.Config
	Entry   config.Entry
	Role    pd.Role

	Adapter     adapter.Adapter
	Contract    pd.Contract
	Layout      adapter.Layout
	ServedModel string
	// MaxModelTokens bounds prompt plus output.
	MaxModelTokens int
	PrefixCaching  bool
	AutoFence      bool
	// ControlSecret, if set, is what callers of the control port must prove to
	// have, and what this node proves to its peers.
	ControlSecret *control.Secret

	// Provider is the data plane, and Options what owner processes make their own
	// of (Provider).
	Provider transfer.Provider
	Options  string
	// Children, if set, starts one owner process per rank; Lock and Stderr are
	// filled in. OwnerSockets, if set, are where owners of other processes wait, by
	// rank. Otherwise the owners are in this process, over the memory of NewArena,
	// or over host memory.
	Children     *owner.ChildOptions
	OwnerSockets []string
	NewArena     func(pd.Rank) (transfer.Arena, error)
	// Engine makes the engine over the owners' memory, with its allocator. It may
	// keep all three.
	Engine func(contract *pd.Contract, digest string, memory Memory) (engine.PD, lease.Allocator)
	// Record, if set, is told of every line beside the journal.
	Record func(shell.Line)

	// Logger makes the caller's kind of logger; Stderr is where it writes, beside
	// the journal's own log.
	Logger func(io.Writer) *slog.Logger
	Stderr io.Writer
}

// Memory is the owners' memory as an engine of this process sees it.
type Memory interface {
	// Memory is an arena of this process, or nil; Copier the way to one that is
	// not, or nil.
	Memory(pd.Rank, pd.ComponentID) []byte
	Copier(pd.Rank, pd.ComponentID) transfer.Copier
}

// Node is one node with a role.
type Node struct {
	// constant after Open
	Self  pd.Peer
	Run   pd.RunID
	Shell *shell.Shell
	Log   *slog.Logger

	cfg    Config
	owners *owner.Group
	// children is nil where the owners are in this process.
	children *owner.Children
	client   *control.Client
	control  *control.Server
	journal  *journal.Journal
	writing  sync.WaitGroup
	admin    *adminServer
	lock     *owner.BootLock
	// pd is pd.json as it was read last; Reload's alone.
	pd *config.Config
}

// Open binds the control port, then allocates, registers and wires. After an
// error nothing is left behind.
func Open(ctx context.Context, cfg Config) (_ *Node, err error) {
	n := &Node{cfg: cfg, pd: cfg.PD, Self: pd.Peer{Node: cfg.Entry.NodeID, Boot: pd.NewBootID()}, Run: cfg.PD.Run(), Log: cfg.Logger(cfg.Stderr)}
	n.control, err = control.Listen(control.ServerConfig{Address: cfg.Entry.ControlAddress(), Secret: cfg.ControlSecret, Self: n.Self.Boot, Log: n.Log, Refused: func(err error) {
		n.Log.Warn("refused on the control port", "err", err)
	}})
	if err != nil {
		return nil, fmt.Errorf("control port: %w", err)
	}
	defer func() {
		if err != nil {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			_ = n.Close(closing)
		}
	}()
	digest, err := wire.ContractDigest(&n.cfg.Contract)
	if err != nil {
		return nil, err
	}
	if err := n.openJournal(digest); err != nil {
		return nil, err
	}
	files := journal.FilesOf(cfg.PD.Observability.Root, n.Run, journal.RoleOf(cfg.Role), string(n.Self.Node))
	// Before anything is registered: no process of an earlier boot may live.
	locking, cancel := context.WithTimeout(ctx, predecessorTime)
	defer cancel()
	if n.lock, err = owner.LockBoot(locking, filepath.Join(files.State, files.Lock), n.Self.Boot); err != nil {
		return nil, err
	}
	events := shell.NewOwnerEvents()
	if err := n.openOwners(ctx, events); err != nil {
		return nil, err
	}
	n.wire(digest, events)
	n.admin, err = listenAdmin(files)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// openOwners allocates and registers, in this process or in one per rank.
func (n *Node) openOwners(ctx context.Context, events owner.Events) error {
	cfg := &n.cfg
	if err := owner.CheckHostname(ctx, cfg.Entry.TransferHostname); err != nil {
		return err
	}
	c := owner.Config{
		Peer: n.Self, Topology: cfg.Layout.Topology, Contract: &cfg.Contract,
		PagesPerLayer: cfg.Layout.PagesPerLayer, RingPeriods: cfg.Layout.RingPeriods, BootstrapSlots: cfg.Layout.BootstrapSlots,
		Hostname: cfg.Entry.TransferHostname, Ports: n.lock, NewArena: cfg.NewArena,
		AttemptTimeout: max(cfg.PD.HandoffTimeout-attemptMargin, cfg.PD.HandoffTimeout/2), Events: events, Log: n.Log,
	}
	switch remote := (owner.Remote{Provider: cfg.Provider.Name(), Options: cfg.Options}); {
	case len(cfg.OwnerSockets) > 0:
		c.Launch, c.Remote = owner.Visit(cfg.OwnerSockets, n.lock), remote
	case cfg.Children == nil:
		c.Provider = cfg.Provider
		if c.NewArena == nil {
			c.NewArena = hereArena(cfg.Provider)
		}
	default:
		o := *cfg.Children
		o.Lock, o.Stderr = n.lock, cfg.Stderr
		var err error
		if n.children, err = owner.NewChildren(o); err != nil {
			return err
		}
		c.Launch, c.Remote = n.children.Launch, remote
	}
	var err error
	if n.owners, err = owner.Open(ctx, c); err != nil || c.Launch == nil {
		return err
	}
	return n.recordProcesses()
}

// hereArena makes memory in this process.
func hereArena(p transfer.Provider) func(pd.Rank) (transfer.Arena, error) {
	return func(rank pd.Rank) (transfer.Arena, error) {
		if a, err := NewArena(p, rank, false); a != nil || err != nil {
			return a, err
		}
		return owner.NewHostArena(), nil
	}
}

// recordProcesses tells people which processes the boot has.
func (n *Node) recordProcesses() error {
	pids := n.OwnerPIDs()
	records := make([]owner.ProcessRecord, len(pids))
	for rank, pid := range pids {
		records[rank] = owner.ProcessRecord{Name: fmt.Sprintf("owner of rank %d", rank), PID: pid}
	}
	return n.lock.Record(records...)
}

// OwnerPIDs are the owner processes by rank; nil where the owners are in this
// process.
func (n *Node) OwnerPIDs() []int {
	if n.children == nil && len(n.cfg.OwnerSockets) == 0 {
		return nil
	}
	return n.owners.ProcessIDs()
}

// Dropped counts the lines that the journal could not keep.
func (n *Node) Dropped() uint64 { return n.journal.Dropped() }

// wire makes the engine and the shell around it.
func (n *Node) wire(digest string, events *shell.OwnerEvents) {
	cfg := &n.cfg
	model, allocator := cfg.Engine(&cfg.Contract, digest, n.owners)
	n.client = control.NewClient(control.ClientConfig{Signer: control.NewSigner(cfg.ControlSecret, n.Self.Boot)})
	peers, addresses := map[pd.NodeID]struct{}{}, map[pd.NodeID]string{}
	for _, e := range cfg.PD.Entries(cfg.Role.Other()) {
		peers[e.NodeID] = struct{}{}
		addresses[e.NodeID] = e.ControlAddress()
	}
	facts := n.owners.Facts()
	n.Shell = shell.New(shell.Config{
		Node: node.Config{
			Role: cfg.Role, Self: n.Self, Run: n.Run, Contract: &cfg.Contract, ContractDigest: digest,
			Registry: n.owners.Registry(), Peers: peers, Capacity: cfg.PD.Capacity,
			HandoffTimeout: cfg.PD.HandoffTimeout, RequestTimeout: cfg.PD.RequestTimeout,
			FenceProves: facts.FenceProves, DeathSuffices: facts.DeathSuffices, AutoFence: cfg.AutoFence,
			Adapter: cfg.Adapter, PrefixCaching: cfg.PrefixCaching, MaxModelTokens: cfg.MaxModelTokens, Allocator: allocator,
		},
		Owners: n.owners, OwnerEvents: events, Engine: model, Control: n.client, Addresses: addresses,
		Descriptor: wire.Node{
			ProtocolVersion: pd.ProtocolVersion, Role: cfg.Role, Node: n.Self.Node, Boot: n.Self.Boot, Run: n.Run,
			HTTPAddress: cfg.Entry.HTTPAddress(), ControlAddress: cfg.Entry.ControlAddress(), TransferHostname: cfg.Entry.TransferHostname,
			ServedModel: cfg.ServedModel, MaxModelTokens: cfg.MaxModelTokens, Contract: cfg.Contract, ContractDigest: digest,
			Topology: cfg.Layout.Topology, RingPeriods: cfg.Layout.RingPeriods, PrefixCaching: cfg.PrefixCaching,
		},
		Record: n.record, Log: n.Log,
	})
}

// openJournal starts the node's own records; the log goes there too.
func (n *Node) openJournal(digest string) error {
	o := n.cfg.PD.Observability
	j, err := journal.Open(journal.Options{
		Root: o.Root, Run: n.Run, Role: journal.RoleOf(n.cfg.Role), Identity: string(n.Self.Node), Boot: n.Self.Boot,
		Enabled: o.Enabled, Program: n.cfg.Program, Version: program.Version(), Provider: n.cfg.Provider.Name(), ContractDigest: digest,
	})
	if err != nil {
		return err
	}
	n.journal = j
	n.writing.Go(j.Run)
	n.Log = n.cfg.Logger(io.MultiWriter(n.cfg.Stderr, j.Log())).With("run", n.Run, "node", n.Self.Node, "boot", n.Self.Boot, "role", n.cfg.Role.String())
	for _, w := range n.cfg.PD.Warnings {
		n.Log.Warn("pd.json", "text", w)
	}
	for _, l := range j.Leftovers() {
		n.Log.Warn("an earlier boot ended with handoffs unresolved", "earlier", l)
	}
	j.Emit(journal.Event{Event: journal.ServiceStarting})
	return nil
}

// record keeps what the node tells; what people must see is logged too.
func (n *Node) record(l shell.Line) {
	e := journal.Event{
		Event: l.Event, Time: l.At, Request: string(l.Fence.Request), Handoff: string(l.Fence.Handoff),
		Bytes: l.Bytes, Ranks: l.Ranks, Regions: l.Regions, Detail: l.Detail,
	}
	if peer := l.Fence.Decode; n.cfg.Role == pd.Prefill && peer.Node != "" {
		e.Peer = &peer
	} else if peer := l.Fence.Prefill; n.cfg.Role == pd.Decode && peer.Node != "" {
		e.Peer = &peer
	}
	if l.Code != 0 {
		e.Code = l.Code.String()
	}
	if l.Span.End > 0 || l.Event == journal.Transfer {
		chunk := int(l.Chunk)
		e.Chunk = &chunk
	}
	if l.Span.End > 0 {
		span := l.Span
		e.Span = &span
	}
	if !l.Began.IsZero() {
		e.BeganNanos, e.EndedNanos = n.journal.Nanos(l.Began), n.journal.Nanos(l.Ended)
	}
	e.Count = l.Count
	n.journal.Emit(e)
	if n.cfg.Record != nil {
		n.cfg.Record(l)
	}
	if l.Event == journal.RecoveryRequired {
		n.Log.Error("writes may still land: the node is gated for new requests", "handoff", l.Fence.Handoff, "why", l.Detail)
	} else if l.Code != 0 {
		n.Log.Info(l.Event, "request", l.Fence.Request, "handoff", l.Fence.Handoff, "code", l.Code.String(), "why", l.Detail)
	}
}

// ControlAddr is where the control port listens.
func (n *Node) ControlAddr() string { return n.control.Addr().String() }

// Serve runs the node until the context ends; it is ready when Serve begins.
func (n *Node) Serve(ctx context.Context) {
	n.journal.Emit(journal.Event{Event: journal.ServiceReady})
	n.admin.serve(n.Shell)
	served := make(chan error, 1)
	go func() { served <- n.control.Serve(n.Shell) }()
	n.Shell.Run(ctx)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = n.control.Shutdown(closing) // what still calls is told by the closed connection
	<-served
}

// Close ends the data plane. An error means that memory may still be written or
// read: then the boot goes on to hold its lock, and Close may be called again.
func (n *Node) Close(ctx context.Context) error {
	var errs []error
	n.admin.close()
	n.admin = nil
	if n.control != nil {
		errs = append(errs, n.control.Shutdown(ctx))
	}
	if n.client != nil {
		n.client.Close()
	}
	if n.owners != nil {
		if err := n.owners.Close(ctx); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	if n.children != nil {
		n.children.Close()
	}
	if n.journal != nil {
		n.journal.Emit(journal.Event{Event: journal.ServiceStopped})
		errs = append(errs, n.journal.Close())
		n.writing.Wait()
	}
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
	}
	return errors.Join(errs...)
}

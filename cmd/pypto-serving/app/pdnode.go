package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/control"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/engine/reference"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/serve"
	"github.com/hw-native-sys/pypto-pd/pd/shell"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// attemptMargin is how much earlier than the control calls a native attempt
// gives up, so that its own verdict comes first (pd-domain §4.9).
const attemptMargin = 5 * time.Second

// predecessorTime is how long a start waits for processes of an earlier boot.
const predecessorTime = 10 * time.Second

// pdEntry is this node's place in pd.json.
type pdEntry struct {
	config *config.Config
	entry  config.Entry
	// provider has checked options; owner processes make their own of the same.
	provider transfer.Provider
	options  string
}

// loadEntry reads pd.json and settles host, port and provider. Every error is
// one of usage.
func loadEntry(s *settings) (*pdEntry, error) {
	c, err := config.Load(s.PDConfig)
	if err != nil {
		return nil, err
	}
	e, err := c.Select(s.role, s.PDNodeID)
	if err != nil {
		return nil, err
	}
	if s.Port == 0 {
		s.Port = e.Port
	}
	if s.Port != e.Port {
		return nil, fmt.Errorf("--port %d: the pd.json entry of %s has port %d", s.Port, e.NodeID, e.Port)
	}
	if s.Host == "" {
		s.Host = e.Host
	}
	if slots := slotsPerRank * s.topology.Partitions(); s.MaxNumSeqs < c.Capacity || slots < c.Capacity {
		return nil, fmt.Errorf("runtime.capacity %d: want at most --max-num-seqs %d and the %d request slots of %d partitions", c.Capacity, s.MaxNumSeqs, slots, s.topology.Partitions())
	}
	options, err := providerOptions(*s, c.Provider)
	if err != nil {
		return nil, err
	}
	p, err := makeProvider(c.Provider, options)
	if err != nil {
		return nil, err
	}
	return &pdEntry{config: c, entry: e, provider: p, options: options}, nil
}

func readFaults(path string) ([]simulator.Fault, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--sim-faults: %w", err)
	}
	var file struct {
		Faults []simulator.Fault `json:"faults"`
	}
	if err := strictjson.Decode(b, &file, strictjson.Limits{}); err != nil {
		return nil, fmt.Errorf("--sim-faults %s: %w", path, err)
	}
	return file.Faults, nil
}

// pdNode is one side of a pair.
type pdNode struct {
	settings settings
	role     pd.Role
	self     pd.Peer
	run_     pd.RunID

	owners *owner.Group
	// children is nil where the owners are in this process.
	children *owner.Children
	engine   *reference.Engine
	shell    *shell.Shell
	client   *control.Client
	control  *control.Server
	journal  *journal.Journal
	writing  sync.WaitGroup
	admin    *adminServer
	lock     *owner.BootLock
	moved    movedBytes
	log      *slog.Logger
}

// newPDNode binds the control port, then allocates, registers and wires.
func newPDNode(ctx context.Context, s settings, p *pdEntry, stderr io.Writer) (_ server, err error) {
	n := &pdNode{
		settings: s, role: s.role, self: pd.Peer{Node: p.entry.NodeID, Boot: pd.NewBootID()}, run_: p.config.Run(), log: s.Logger(stderr),
	}
	n.control, err = control.Listen(control.ServerConfig{Address: p.entry.ControlAddress(), Log: n.log, Refused: func(err error) {
		n.log.Warn("refused on the control port", "err", err)
	}})
	if err != nil {
		return nil, fmt.Errorf("control port: %w", err)
	}
	defer func() {
		if err != nil {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			_ = n.close(closing)
		}
	}()
	contract := s.adapter.Contract(s.revision, p.provider.Name())
	digest, err := wire.ContractDigest(&contract)
	if err != nil {
		return nil, err
	}
	if err := n.openJournal(p, digest, stderr); err != nil {
		return nil, err
	}
	files := journal.FilesOf(p.config.Observability.Root, n.run_, journal.RoleOf(n.role), string(n.self.Node))
	// Before anything is registered: no process of an earlier boot may live.
	locking, cancel := context.WithTimeout(ctx, predecessorTime)
	defer cancel()
	if n.lock, err = owner.LockBoot(locking, filepath.Join(files.State, files.Lock), n.self.Boot); err != nil {
		return nil, err
	}
	layout := layoutOf(s, &contract)
	events := shell.NewOwnerEvents()
	if err := n.openOwners(ctx, p, &contract, layout, events, stderr); err != nil {
		return nil, err
	}
	n.engine = newEngine(s, &contract, digest, layout, n.owners.Memory)
	n.client = control.NewClient(control.ClientConfig{})
	peers, addresses := map[pd.NodeID]struct{}{}, map[pd.NodeID]string{}
	for _, e := range p.config.Entries(s.role.Other()) {
		peers[e.NodeID] = struct{}{}
		addresses[e.NodeID] = e.ControlAddress()
	}
	n.shell = shell.New(shell.Config{
		Node: node.Config{
			Role: s.role, Self: n.self, Run: n.run_, Contract: &contract, ContractDigest: digest,
			Registry: n.owners.Registry(), Peers: peers, Capacity: p.config.Capacity,
			HandoffTimeout: p.config.HandoffTimeout, RequestTimeout: p.config.RequestTimeout,
			FenceProves: n.owners.Facts().FenceProves, DeathSuffices: n.owners.Facts().DeathSuffices, AutoFence: s.AutoFence,
			Adapter: s.adapter, PrefixCaching: s.PrefixCaching, MaxModelTokens: s.MaxModelLen, Allocator: n.engine.Pool(),
		},
		Owners: n.owners, OwnerEvents: events, Engine: n.engine, Control: n.client, Addresses: addresses,
		Descriptor: wire.Node{
			ProtocolVersion: pd.ProtocolVersion, Role: s.role, Node: n.self.Node, Boot: n.self.Boot, Run: n.run_,
			HTTPAddress: p.entry.HTTPAddress(), ControlAddress: p.entry.ControlAddress(), TransferHostname: p.entry.TransferHostname,
			ServedModel: s.ServedModel, MaxModelTokens: s.MaxModelLen, Contract: contract, ContractDigest: digest,
			Topology: s.topology, RingPeriods: layout.RingPeriods, PrefixCaching: s.PrefixCaching,
		},
		Record: n.record, Log: n.log,
	})
	n.admin, err = listenAdmin(files)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// openOwners allocates and registers, in this process or in one per rank.
func (n *pdNode) openOwners(ctx context.Context, p *pdEntry, contract *pd.Contract, layout adapter.Layout, events owner.Events, stderr io.Writer) error {
	if err := owner.CheckHostname(ctx, p.entry.TransferHostname); err != nil {
		return err
	}
	c := owner.Config{
		Peer: n.self, Topology: n.settings.topology, Contract: contract,
		PagesPerLayer: layout.PagesPerLayer, RingPeriods: layout.RingPeriods, BootstrapSlots: layout.BootstrapSlots,
		Hostname: p.entry.TransferHostname, Ports: n.lock,
		AttemptTimeout: max(p.config.HandoffTimeout-attemptMargin, p.config.HandoffTimeout/2), Events: events, Log: n.log,
	}
	if ownersOf(n.settings, p.provider.Name()) == ownersHere {
		c.Provider = p.provider
	} else {
		var err error
		if n.children, err = startChildren(n.settings, n.lock, stderr); err != nil {
			return err
		}
		c.Launch, c.Remote = n.children.Launch, owner.Remote{Provider: p.provider.Name(), Options: p.options}
	}
	var err error
	if n.owners, err = owner.Open(ctx, c); err != nil || n.children == nil {
		return err
	}
	return recordProcesses(n.lock, n.owners.ProcessIDs())
}

// openJournal starts the node's own records; the log goes there too.
func (n *pdNode) openJournal(p *pdEntry, digest string, stderr io.Writer) error {
	o := p.config.Observability
	j, err := journal.Open(journal.Options{
		Root: o.Root, Run: n.run_, Role: journal.RoleOf(n.role), Identity: string(n.self.Node), Boot: n.self.Boot,
		Enabled: o.Enabled, Program: name, Version: program.Version(), Provider: p.provider.Name(), ContractDigest: digest,
	})
	if err != nil {
		return err
	}
	n.journal = j
	n.writing.Go(j.Run)
	n.log = n.settings.Logger(io.MultiWriter(stderr, j.Log())).With("run", n.run_, "node", n.self.Node, "boot", n.self.Boot, "role", n.role.String())
	for _, w := range p.config.Warnings {
		n.log.Warn("pd.json", "text", w)
	}
	for _, l := range j.Leftovers() {
		n.log.Warn("an earlier boot ended with handoffs unresolved", "earlier", l)
	}
	j.Emit(journal.Event{Event: journal.ServiceStarting})
	return nil
}

// record keeps what the node tells; what people must see is logged too.
func (n *pdNode) record(l shell.Line) {
	e := journal.Event{
		Event: l.Event, Time: l.At, Request: string(l.Fence.Request), Handoff: string(l.Fence.Handoff),
		Bytes: l.Bytes, Ranks: l.Ranks, Regions: l.Regions, Detail: l.Detail,
	}
	if peer := l.Fence.Decode; n.role == pd.Prefill && peer.Node != "" {
		e.Peer = &peer
	} else if peer := l.Fence.Prefill; n.role == pd.Decode && peer.Node != "" {
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
	n.moved.add(l)
	if l.Event == journal.RecoveryRequired {
		n.log.Error("writes may still land: the node is gated for new requests", "handoff", l.Fence.Handoff, "why", l.Detail)
	} else if l.Code != 0 {
		n.log.Info(l.Event, "request", l.Fence.Request, "handoff", l.Fence.Handoff, "code", l.Code.String(), "why", l.Detail)
	}
}

func (n *pdNode) http() serve.Config {
	return serve.Config{
		Role: n.role, Self: n.self, Run: n.run_, Model: n.engine, Generator: n.shell,
		ServedModel: n.settings.ServedModel, DefaultMaxTokens: n.settings.maxNew, Log: n.log,
		Health: func() (bool, []byte) {
			v := n.shell.Snapshot()
			ok := v.Health == pd.Ready
			reason := v.Reason
			if v.Health == pd.RecoveryRequired {
				reason = "PD_RECOVERY_REQUIRED: " + reason
			}
			body := map[string]any{
				"status": status(ok), "role": n.role.String(), "run_id": n.run_, "node_id": n.self.Node, "boot_id": n.self.Boot,
				"state": v.Health.String(), "reason": reason, "capacity": v.Capacity, "pins": v.Pins,
			}
			if n.children != nil {
				body["owner_pids"] = n.owners.ProcessIDs()
			}
			return ok, healthBody(body)
		},
		Routes: map[string]edge.Handler{"/metrics": pdMetrics(n)},
	}
}

func (n *pdNode) run(ctx context.Context) {
	n.journal.Emit(journal.Event{Event: journal.ServiceReady})
	n.admin.serve(n.shell)
	engine, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		n.engine.Run(engine, n.shell)
		close(done)
	}()
	served := make(chan error, 1)
	go func() { served <- n.control.Serve(n.shell) }()
	n.shell.Run(ctx)
	stop()
	<-done
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = n.control.Shutdown(closing) // what still calls is told by the closed connection
	<-served
}

func (n *pdNode) drain(ctx context.Context) error { return n.shell.Drain(ctx) }

func (n *pdNode) logger() *slog.Logger { return n.log }

func (n *pdNode) ready() string {
	return fmt.Sprintf("role=%s node=%s boot=%s run=%s control=%s", n.role, n.self.Node, n.self.Boot, n.run_, n.control.Addr())
}

// close ends the data plane. Memory that may still be written is left to the
// end of the process.
func (n *pdNode) close(ctx context.Context) error {
	var errs []error
	n.admin.close()
	if n.control != nil {
		errs = append(errs, n.control.Shutdown(ctx))
	}
	if n.client != nil {
		n.client.Close()
	}
	if n.owners != nil {
		errs = append(errs, n.owners.Close(ctx))
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

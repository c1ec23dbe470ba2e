package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/cmd/pdnode"
	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/mooncake"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/control"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/engine/reference"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/serve"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

// pdEntry is this node's place in pd.json.
type pdEntry struct {
	config *config.Config
	entry  config.Entry
	// provider has checked options; owner processes make their own of the same.
	provider transfer.Provider
	options  string
	secret   *control.Secret // nil unless --control-secret-file names one
	hangUps  *program.HangUps
}

// loadEntry reads pd.json and settles host, port and provider. Every error is
// one of usage.
func loadEntry(s *settings, stderr io.Writer) (*pdEntry, error) {
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
	if s.npu() && c.Provider != mooncake.Name {
		return nil, fmt.Errorf("--backend npu: provider %s does not move device memory; pd.json must say \"provider\": %q", c.Provider, mooncake.Name)
	}
	options, err := providerOptions(*s, c.Provider)
	if err != nil {
		return nil, err
	}
	p, err := pdnode.Provider(c.Provider, options, s.Logger(stderr))
	if err != nil {
		return nil, err
	}
	if err := pdnode.Locate(p); err != nil {
		return nil, err
	}
	out := &pdEntry{config: c, entry: e, provider: p, options: options}
	if s.ControlSecretFile != "" {
		if out.secret, err = control.LoadSecret(s.ControlSecretFile); err != nil {
			return nil, fmt.Errorf("--control-secret-file: %w", err)
		}
	}
	return out, nil
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

// pdNode is one side of a pair with the reference engine.
type pdNode struct {
	settings settings
	hangUps  *program.HangUps
	node     *pdnode.Node
	engine   *reference.Engine
	moved    movedBytes
}

// newPDNode binds the control port, then allocates, registers and wires.
func newPDNode(ctx context.Context, s settings, p *pdEntry, stderr io.Writer, steps startup) (server, error) {
	n := &pdNode{settings: s, hangUps: p.hangUps}
	contract := s.adapter.Contract(s.revision, p.provider.Name())
	size := sizingOf(s)
	if s.npu() {
		var err error
		if size, err = sizeOnDevices(ctx, s, &contract, size, stderr); err != nil {
			return nil, err
		}
	}
	layout := adapter.LayoutFor(&contract, size)
	c := pdnode.Config{
		Program: name, PD: p.config, Entry: p.entry, Role: s.role,
		Adapter: s.adapter, Contract: contract, Layout: layout, ServedModel: s.ServedModel, MaxModelTokens: s.MaxModelLen,
		PrefixCaching: s.PrefixCaching, AutoFence: s.AutoFence, ControlSecret: p.secret, Provider: p.provider, Options: p.options,
		Engine: func(contract *pd.Contract, digest string, memory pdnode.Memory) (engine.PD, lease.Allocator) {
			copier := func(r pd.Rank, c pd.ComponentID) reference.Copier { return memory.Copier(r, c) }
			n.engine = newEngine(s, contract, digest, layout, memory.Memory, copier, n.hashed)
			return n.engine, n.engine.Pool()
		},
		Record: n.moved.add, Logger: s.Logger, Stderr: stderr,
	}
	if ownersOf(s, p.provider.Name()) == ownersChild {
		c.Children = &owner.ChildOptions{Args: []string{ownerCommand, "--log-level", s.LogLevel, "--log-format", s.LogFormat}, RankEnv: s.deviceEnv}
	}
	var err error
	if n.node, err = pdnode.Open(ctx, c); err != nil {
		return nil, err
	}
	steps.memory(s, &contract, layout)
	return n, nil
}

// hashed tells people what is in some pages of a handoff.
func (n *pdNode) hashed(h pd.HandoffID, hashes string) {
	n.node.Log.Info("pages hashed", "handoff", h, "hashes", hashes)
}

func status(ok bool) string {
	if ok {
		return "ok"
	}
	return "error"
}

func (n *pdNode) http() serve.Config {
	return serve.Config{
		Role: n.settings.role, Self: n.node.Self, Run: n.node.Run, Model: n.engine, Generator: n.node.Shell,
		ServedModel: n.settings.ServedModel, DefaultMaxTokens: n.settings.maxNew, Log: n.node.Log,
		Health: func() (bool, []byte) {
			v := n.node.Shell.Snapshot()
			ok := v.Health == pd.Ready
			reason := v.Reason
			if v.Health == pd.RecoveryRequired {
				reason = "PD_RECOVERY_REQUIRED: " + reason
			}
			body := map[string]any{
				"status": status(ok), "role": n.settings.role.String(), "run_id": n.node.Run, "node_id": n.node.Self.Node, "boot_id": n.node.Self.Boot,
				"state": v.Health.String(), "reason": reason, "capacity": v.Capacity, "pins": v.Pins,
			}
			if pids := n.node.OwnerPIDs(); pids != nil {
				body["owner_pids"] = pids
			}
			return ok, healthBody(body)
		},
		Routes: map[string]edge.Handler{"/metrics": pdMetrics(n)},
	}
}

func (n *pdNode) run(ctx context.Context) {
	engine, stop := context.WithCancel(context.WithoutCancel(ctx))
	var beside sync.WaitGroup
	beside.Go(func() { n.engine.Run(engine, n.node.Shell) })
	beside.Go(func() {
		n.hangUps.Each(engine, n.node.Log, func() error { return n.node.Reload(config.Load(n.settings.PDConfig)) })
	})
	n.node.Serve(ctx)
	stop()
	beside.Wait()
}

func (n *pdNode) drain(ctx context.Context) error { return n.node.Shell.Drain(ctx) }

func (n *pdNode) logger() *slog.Logger { return n.node.Log }

func (n *pdNode) ready() string {
	return fmt.Sprintf("role=%s node=%s boot=%s run=%s control=%s", n.settings.role, n.node.Self.Node, n.node.Self.Boot, n.node.Run, n.node.ControlAddr())
}

// close ends the data plane. Memory that may still be written is left to the
// end of the process.
func (n *pdNode) close(ctx context.Context) error { return n.node.Close(ctx) }

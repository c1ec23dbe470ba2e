package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

// ownerCommand is the first argument of an owner process.
const ownerCommand = "owner"

// The places where a node's owners may be.
const (
	ownersHere  = "in-process"
	ownersChild = "child"
)

// ownerFlags are the command line of an owner process; everything else comes
// from its node.
type ownerFlags struct {
	program.Common
}

// runOwner is the owner process of one rank. It lives as long as its node: a
// signal to the whole group (Ctrl-C, a service manager's stop) ends the node,
// which still needs its owners to end what is on its way.
func runOwner(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var f ownerFlags
	if code, ok := program.Parse(name+" "+ownerCommand, "Hold the cache memory of one rank of a node and move its bytes. A node started with --owners child starts one per rank and ends it; it is of no use by itself.", &f, args, stdout, stderr); !ok {
		return code
	}
	c, err := owner.Inherited()
	if err != nil {
		return program.Complain(name+" "+ownerCommand, stderr, program.Usage, err)
	}
	c.Provider, c.Log = makeProvider, f.Logger(stderr).With("pid", os.Getpid())
	if err := owner.Serve(context.WithoutCancel(ctx), c); err != nil {
		return program.Complain(name+" "+ownerCommand, stderr, program.Failed, err)
	}
	return program.Done
}

// makeProvider is the map from names in pd.json to data planes. It runs in the
// process that owns the memory, and in a node to check the options.
func makeProvider(name, options string) (transfer.Provider, error) {
	switch name {
	case simulator.Name:
		var o simulatorOptions
		if err := strictjson.Decode([]byte(options), &o, strictjson.Limits{}); err != nil {
			return nil, fmt.Errorf("provider %s: options: %w", name, err)
		}
		return simulator.New(simulator.Config{
			Link: simulator.Link{BytesPerSecond: o.LinkRate, Latency: time.Duration(o.LinkLatencyNanos)}, Faults: o.Faults, Seed: o.Seed,
		})
	case "mooncake":
		return nil, errors.New(`provider mooncake: this build has no native data plane (libtransfer_engine.so); set "provider": "simulator" in pd.json to run without it`)
	}
	return nil, fmt.Errorf("provider %q is unknown", name)
}

// simulatorOptions are the simulated data plane's, as an owner process is told
// them. Each owner process counts the batches of its faults by itself.
type simulatorOptions struct {
	LinkRate         int64             `json:"link_rate"`
	LinkLatencyNanos int64             `json:"link_latency_ns"`
	Seed             uint64            `json:"seed"`
	Faults           []simulator.Fault `json:"faults"`
}

// providerOptions puts the flags of a provider in the form that makeProvider
// reads.
func providerOptions(s settings, name string) (string, error) {
	if name != simulator.Name {
		return "{}", nil
	}
	faults, err := readFaults(s.SimFaults)
	if err != nil {
		return "", err
	}
	if faults == nil {
		faults = []simulator.Fault{}
	}
	b, err := json.Marshal(simulatorOptions{LinkRate: s.SimLinkRate, LinkLatencyNanos: int64(s.SimLinkLatency), Seed: s.SimSeed, Faults: faults})
	return string(b), err
}

// ownersOf says where a node's owners are.
func ownersOf(s settings, provider string) string {
	switch {
	case s.Owners != "":
		return s.Owners
	case provider == simulator.Name:
		return ownersHere
	}
	return ownersChild
}

// startChildren prepares the start of owner processes, which share the boot lock
// of the node.
func startChildren(s settings, lock *owner.BootLock, stderr io.Writer) (*owner.Children, error) {
	return owner.NewChildren(owner.ChildOptions{
		Args: []string{ownerCommand, "--log-level", s.LogLevel, "--log-format", s.LogFormat}, Lock: lock, Stderr: stderr,
	})
}

// recordProcesses tells people which processes the boot has.
func recordProcesses(lock *owner.BootLock, pids []int) error {
	records := make([]owner.ProcessRecord, len(pids))
	for rank, pid := range pids {
		records[rank] = owner.ProcessRecord{Name: fmt.Sprintf("owner of rank %d", rank), PID: pid}
	}
	return lock.Record(records...)
}

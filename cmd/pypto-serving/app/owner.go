package app

import (
	"context"
	"io"
	"os"

	"github.com/hw-native-sys/pypto-pd/cmd/pdnode"
	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
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

	FreeMemory    bool   `name:"free-memory" help:"Print how many bytes of the card are free, and leave."`
	AscendLibrary string `name:"ascend-library" help:"Path of libascendcl.so, with --free-memory."`
}

// runOwner is the owner process of one rank. It lives as long as its node: a
// signal to the whole group (Ctrl-C, a service manager's stop) ends the node,
// which still needs its owners to end what is on its way.
func runOwner(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var f ownerFlags
	if code, ok := program.Parse(name+" "+ownerCommand, "Hold the cache memory of one rank of a node and move its bytes. A node started with --owners child starts one per rank and ends it; it is of no use by itself.", &f, args, stdout, stderr); !ok {
		return code
	}
	if f.FreeMemory {
		if err := printFreeMemory(f.AscendLibrary, stdout); err != nil {
			return program.Complain(name+" "+ownerCommand, stderr, program.Failed, err)
		}
		return program.Done
	}
	c, err := owner.Inherited()
	if err != nil {
		return program.Complain(name+" "+ownerCommand, stderr, program.Usage, err)
	}
	c.NewArena = func(p transfer.Provider, rank pd.Rank) (transfer.Arena, error) { return pdnode.NewArena(p, rank, true) }
	c.Log = f.Logger(stderr).With("pid", os.Getpid())
	c.Provider = func(name, options string) (transfer.Provider, error) { return pdnode.Provider(name, options, c.Log) }
	if err := owner.Serve(context.WithoutCancel(ctx), c); err != nil {
		return program.Complain(name+" "+ownerCommand, stderr, program.Failed, err)
	}
	return program.Done
}

// providerOptions are what the flags say of a provider.
func providerOptions(s settings, name string) (string, error) {
	faults, err := readFaults(s.SimFaults)
	if err != nil {
		return "", err
	}
	return pdnode.Options(name, pdnode.SimulatorOptions{LinkRate: s.SimLinkRate, LinkLatencyNanos: int64(s.SimLinkLatency), Seed: s.SimSeed, Faults: faults}, pdnode.MooncakeOptions{Protocol: s.protocol(), Library: s.MooncakeLibrary, AscendLibrary: s.AscendLibrary}), nil
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

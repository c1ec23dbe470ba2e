// Package app is pypto-pdctl as a function: one command per verb.
package app

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/cmd/pypto-pdctl/demo"
	"github.com/hw-native-sys/pypto-pd/cmd/pypto-pdctl/order"
	"github.com/hw-native-sys/pypto-pd/cmd/pypto-pdctl/plan"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
)

const name = "pypto-pdctl"

type flags struct {
	program.Common

	Demo     demo.Flags `cmd:"" help:"Run a router with prefill and decode nodes on this machine and send one chat through them."`
	Validate struct {
		File string `arg:"" help:"Path of pd.json."`
	} `cmd:"" help:"Read a pd.json and report every defect."`
	Plan   plan.Flags `cmd:"" help:"Say what a prompt would move from prefill to decode, and what a cache of a given memory holds."`
	Status struct {
		PDConfig string `name:"pd-config" required:"" help:"Path of pd.json."`

		ControlSecretFile string `name:"control-secret-file" help:"File with the secret of the nodes' control ports, where they have one."`

		Router string `help:"The router's host:port or URL: print its slots and the last receipts of ended requests, too."`
	} `cmd:"" help:"Ask every node how it is."`
	Gates struct {
		order.Config
		Node string `arg:"" help:"The node: its node_id or host:port."`
	} `cmd:"" help:"Say what keeps a node from taking new requests."`
	Fence struct {
		order.Config
		Node string `arg:"" help:"The decode node: its node_id or host:port."`
	} `cmd:"" help:"End a decode node's gates: make its data plane anew, so that no earlier write lands."`
	ConfirmDead struct {
		order.Config
		Boot string `arg:"" help:"Boot id of a node whose every process is known to be dead."`
	} `cmd:"" help:"Tell the nodes of this machine that a boot is dead; decode nodes fence as well."`
	Cancel struct {
		order.Config
		Request string `arg:"" help:"Request id (cmpl-… or chatcmpl-…)."`
	} `cmd:"" help:"End one request and print what came back."`
	Drain struct {
		order.Config
		Node string `arg:"" help:"The node: its node_id or host:port."`
	} `cmd:"" help:"Let a node finish what runs and take nothing new until it is restarted."`
}

// Run runs one command and returns the process's exit code.
func Run(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	var f flags
	command, code, ok := program.ParseCommand(name, "Look at and work with prefill/decode deployments.", &f, args, stdout, stderr)
	if !ok {
		return code
	}
	switch command {
	case "demo":
		if err := f.Demo.Check(); err != nil {
			return program.Complain(name+" demo", stderr, program.Usage, err)
		}
		if err := demo.Run(ctx, f.Demo, env, stdout, stderr); err != nil {
			return program.Complain(name+" demo", stderr, program.Failed, err)
		}
	case "plan":
		if err := f.Plan.Check(); err != nil {
			return program.Complain(name+" plan", stderr, program.Usage, err)
		}
		if err := plan.Run(f.Plan, stdout); err != nil {
			return program.Complain(name+" plan", stderr, program.Usage, err)
		}
	case "validate <file>":
		return validate(f.Validate.File, stdout, stderr)
	default:
		if err := orders(ctx, &f, command, stdout); err != nil {
			return program.Complain(name+" "+strings.Fields(command)[0], stderr, program.Failed, err)
		}
	}
	return program.Done
}

// orders runs the verbs that speak to nodes.
func orders(ctx context.Context, f *flags, command string, stdout io.Writer) error {
	switch command {
	case "status":
		return order.Status(ctx, f.Status.PDConfig, f.Status.ControlSecretFile, f.Status.Router, stdout)
	case "gates <node>":
		return order.Give(ctx, f.Gates.Config, f.Gates.Node, "gates", nil, stdout)
	case "fence <node>":
		return order.Give(ctx, f.Fence.Config, f.Fence.Node, "fence", nil, stdout)
	case "confirm-dead <boot>":
		if err := pd.CheckHexID("boot", f.ConfirmDead.Boot); err != nil {
			return err
		}
		return order.Everywhere(ctx, f.ConfirmDead.Config, "dead", url.Values{"boot": {f.ConfirmDead.Boot}}, stdout)
	case "cancel <request>":
		return order.Everywhere(ctx, f.Cancel.Config, "cancel", url.Values{"request": {f.Cancel.Request}}, stdout)
	case "drain <node>":
		return order.Give(ctx, f.Drain.Config, f.Drain.Node, "drain", nil, stdout)
	}
	return fmt.Errorf("unknown command %q", command)
}

// validate says what a configuration means, or all that is wrong with it.
func validate(path string, stdout, stderr io.Writer) int {
	c, err := config.Load(path)
	if err != nil {
		return program.Complain(name+" validate", stderr, program.Usage, err)
	}
	fmt.Fprintf(stdout, "%s is valid: run %s, provider %s, policy %s, capacity %d per node\n", path, c.Run(), c.Provider, c.Policy, c.Capacity)
	for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
		for _, e := range c.Entries(role) {
			fmt.Fprintf(stdout, "  %-7s %s  http %s  control %s  transfer %s\n", role, e.NodeID, e.HTTPAddress(), e.ControlAddress(), e.TransferHostname)
		}
	}
	for _, w := range c.Warnings {
		fmt.Fprintf(stdout, "  warning: %s\n", w)
	}
	return program.Done
}

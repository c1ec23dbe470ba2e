// Package app is pypto-pdctl as a function: one command per verb.
package app

import (
	"context"
	"fmt"
	"io"

	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/cmd/pypto-pdctl/demo"
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
	case "validate <file>":
		return validate(f.Validate.File, stdout, stderr)
	}
	return program.Done
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

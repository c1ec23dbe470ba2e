// Package app is pypto-serving-router as a function: flags → fleet file → Run. It
// holds no logic of its own.
package app

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/hw-native-sys/pypto-pd/cmd/program"
)

// Run runs the router until the context ends, then retires every replica that it
// launched. It returns the process's exit code.
func Run(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	var f flags
	if code, ok := program.Parse(name, "Spread requests over independent replicas and keep each conversation on one of them; launch and replace replicas.", &f, joinNegatives(args), stdout, stderr); !ok {
		return code
	}
	s, defects := f.read(env)
	if len(defects) > 0 {
		return refuse(stderr, program.Usage, defects...)
	}
	switch {
	case f.Check:
		for _, w := range s.options.Warnings {
			fmt.Fprintf(stderr, "warning: %s\n", w)
		}
		fmt.Fprintf(stdout, "ok %s: %d replicas, %d hosts, %d launch slots, ceiling %d, %d launched at start\n",
			f.Replicas, len(s.config.Replicas), len(s.config.Hosts), len(s.config.Slots), s.options.Ceiling, s.options.Initial)
		return program.Done
	case f.PrintPlan:
		fmt.Fprint(stdout, s.config.Plan(s.options))
		return program.Done
	}
	return f.run(ctx, s, env, stdout, stderr)
}

var negative = regexp.MustCompile(`^-[.\d]`)

// joinNegatives makes --flag=-1 of --flag -1, which would be taken for a short flag
// otherwise. That the number is wrong is for the check of the settings to say.
func joinNegatives(args []string) []string {
	var out []string
	for i, a := range args {
		if before := i - 1; before >= 0 && negative.MatchString(a) && strings.HasPrefix(args[before], "--") && !strings.Contains(args[before], "=") {
			out[len(out)-1] += "=" + a
			continue
		}
		out = append(out, a)
	}
	return out
}

// refuse prints one line for each defect and gives the code back.
func refuse(stderr io.Writer, code int, defects ...error) int {
	for _, d := range defects {
		fmt.Fprintf(stderr, "error: %s\n", strings.ReplaceAll(d.Error(), "\n", "; "))
	}
	return code
}

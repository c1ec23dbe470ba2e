// Package app is pypto-serving as a function: flags → config → Run. It wires
// the reference engine, owners, node and HTTP side together and holds no logic
// of its own.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/serve"
)

// Run runs one node until the context ends, then drains it. It returns the
// process's exit code.
func Run(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == ownerCommand {
		return runOwner(ctx, args[1:], stdout, stderr)
	}
	var f flags
	if code, ok := program.Parse(name, "Serve a model: an ordinary replica, or one side of a prefill/decode pair.", &f, args, stdout, stderr); !ok {
		return code
	}
	s, err := f.check()
	if err != nil {
		return program.Complain(name, stderr, program.Usage, err)
	}
	var entry *pdEntry
	if s.role != 0 {
		entry, err = loadEntry(&s, stderr)
		if err != nil {
			return program.Complain(name, stderr, program.Usage, err)
		}
	}
	err = run(ctx, s, entry, env, stdout, stderr)
	if err == nil {
		return program.Done
	}
	if code := pd.CodeOf(err); code == pd.CodeNativeLibraryMissing || code == pd.CodeInvalidConfig {
		return program.Complain(name, stderr, program.Usage, err)
	}
	return program.Complain(name, stderr, program.Failed, err)
}

// run binds every port before it allocates anything, then serves.
func run(ctx context.Context, s settings, entry *pdEntry, env []string, stdout, stderr io.Writer) error {
	if entry != nil {
		entry.hangUps = program.CatchHangUps()
		defer entry.hangUps.Release()
	}
	steps := s.startup(stderr)
	steps.model(s)
	l, err := listen(s, s.Logger(stderr))
	if err != nil {
		return err
	}
	steps.step("port bound: %s", l.Addr())
	if s.steps, err = openStepMetrics(program.Env(env, stepMetricsDir)); err != nil {
		shutdown(l, 0)
		return err
	}
	var n server
	if entry == nil {
		n, err = newReplica(s, s.Logger(stderr), steps)
	} else {
		n, err = newPDNode(ctx, s, entry, stderr, steps)
	}
	if err != nil {
		shutdown(l, 0)
		return errors.Join(err, s.steps.close())
	}
	return errors.Join(serveNode(ctx, s, n, l, env, stdout), s.steps.close())
}

// server is a node of any role, assembled and bound, not yet serving.
type server interface {
	// http is the HTTP side.
	http() serve.Config
	// run works until the context ends.
	run(ctx context.Context)
	// drain waits until nothing is in progress.
	drain(ctx context.Context) error
	// logger is where the node's log goes.
	logger() *slog.Logger
	// ready is the line that says where the node is.
	ready() string
	// close frees what the node holds, after run has returned.
	close(ctx context.Context) error
}

// listen binds an address before anything is allocated.
func listen(s settings, log *slog.Logger) (*edge.Server, error) {
	l, err := edge.Listen(edge.ServerConfig{
		Address: net.JoinHostPort(s.Host, strconv.Itoa(s.Port)), MaxBody: s.MaxBody, Refuse: serve.Refuse, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("HTTP port: %w", err)
	}
	return l, nil
}

// serveNode runs a node from ready to drained.
func serveNode(ctx context.Context, s settings, n server, l *edge.Server, env []string, stdout io.Writer) (err error) {
	log := n.logger()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer func() {
		end()
		running.Wait()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, n.close(closing))
	}()
	if err := program.ServePprof(life, s.Pprof, log); err != nil {
		shutdown(l, 0)
		return err
	}
	running.Go(func() { n.run(life) })
	served := make(chan error, 1)
	side := serve.New(n.http())
	go func() { served <- l.Serve(side.Handle) }()
	fmt.Fprintf(stdout, "%s ready: %s http=%s model=%s\n", name, n.ready(), l.Addr(), s.ServedModel)
	if err := program.Notify(env, "READY=1"); err != nil {
		log.Warn("service manager", "err", err)
	}
	select {
	case <-ctx.Done():
	case err := <-served:
		return fmt.Errorf("HTTP server: %w", err)
	}
	log.Info("stopping", "why", context.Cause(ctx), "drain_timeout", s.Drain)
	_ = program.Notify(env, "STOPPING=1")
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Drain)
	defer cancel()
	err = n.drain(draining)
	shutdown(l, time.Second)
	<-served
	return err
}

// shutdown ends a server; what still runs after the grace is cut.
func shutdown(l *edge.Server, grace time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	_ = l.Shutdown(ctx) // an expired grace cuts connections, which is what is wanted
}

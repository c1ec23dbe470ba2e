package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/router/fleet"
	"github.com/hw-native-sys/pypto-pd/router/fleet/launcher"
)

// commandTime is how long a launch or a stop command may take, and slack what its
// confirmation adds: together with a drain and a grace they bound a shutdown.
const (
	commandTime = 120 * time.Second
	slack       = 10 * time.Second
)

// remembered is the state file: its lock, and what it held.
type remembered struct {
	store *fleet.StateStore // nil where nothing is remembered
	state fleet.StateFile
	// aside is where a file went that could not be understood.
	aside string
}

// remember locks and reads the state file. One that cannot be understood may name
// devices that are held, so that only an operator's word gets past it.
func (f *flags) remember() (r remembered, err error) {
	if f.StateFile == "" {
		return r, nil
	}
	if r.store, err = fleet.OpenState(f.StateFile); err != nil {
		return r, err
	}
	if r.state, err = r.store.Load(); err == nil {
		return r, nil
	}
	if f.DiscardState {
		r.aside = f.StateFile + ".discarded"
		if moved := os.Rename(f.StateFile, r.aside); moved == nil {
			return r, nil
		}
	}
	return r, errors.Join(err, r.store.Close())
}

// run starts everything and waits for the end. The port is bound before anything
// else is started, so that a taken one is an error and no more.
func (f *flags) run(ctx context.Context, s setup, env []string, stdout, stderr io.Writer) (code int) {
	hangUps := program.CatchHangUps()
	defer hangUps.Release()
	memory, err := f.remember()
	if err != nil {
		return refuse(stderr, program.Failed, err)
	}
	if memory.store != nil {
		defer memory.store.Close()
	}
	log := f.Logger(stderr)
	var router *fleet.Router // is there before the server is served
	server, err := edge.Listen(edge.ServerConfig{
		Address: net.JoinHostPort(f.Host, strconv.Itoa(f.Port)), Certificate: s.certificate, MaxBody: f.MaxBody, MaxConnections: f.MaxConnections,
		Refuse: fleet.Refuse, Refusing: func(c *edge.Call, status int) { router.Refusing(c, status) }, Log: log,
	})
	if err != nil {
		return refuse(stderr, program.Failed, err)
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	if err := program.ServePprof(life, f.Pprof, log); err != nil {
		shutdown(server, 0)
		return refuse(stderr, program.Failed, err)
	}
	boot := pd.NewBootID()
	log = log.With("boot", boot)
	if memory.aside != "" {
		log.Warn("the state file could not be understood and was discarded; what it recorded may still hold devices", "kept_as", memory.aside)
	}
	commands := launcher.New(launcher.Options{Env: env, CommandLimit: commandTime, Log: log})
	defer commands.Close()
	pool, err := fleet.NewPool(fleet.PoolOptions{
		Config: s.config, Options: s.options, Launcher: commands, Store: memory.store, State: memory.state, Boot: boot, TrustOf: s.trusts.Of, Log: log,
	})
	if err != nil {
		shutdown(server, 0)
		return refuse(stderr, program.Failed, err)
	}
	router = fleet.NewRouter(fleet.RouterOptions{Options: s.options, Pool: pool, Connections: server.Connections, Log: log})
	defer router.Close()
	var serving sync.WaitGroup
	defer func() {
		end()
		serving.Wait()
	}()
	live := &live{flags: f, env: env, setup: s, pool: pool, router: router, log: log}
	served := make(chan error, 1)
	serving.Go(func() { pool.Run(life) })
	serving.Go(func() { served <- server.Serve(router.Handle) })
	serving.Go(func() { hangUps.Each(life, log, live.reload) })
	f.announce(s, server, boot, env, stdout, log)
	select {
	case <-ctx.Done():
	case err := <-served:
		shutdown(server, 0)
		return refuse(stderr, program.Failed, fmt.Errorf("HTTP server: %w", err))
	}
	if err := drain(ctx, s.options, pool, router, server, env, log); err != nil {
		return refuse(stderr, program.Failed, err)
	}
	return program.Done
}

// announce prints the banner and the ready line.
func (f *flags) announce(s setup, server *edge.Server, boot pd.BootID, env []string, stdout io.Writer, log *slog.Logger) {
	scheme := "http"
	if s.certificate != nil {
		scheme = "https"
	}
	s.banner(stdout, scheme+"://"+server.Addr().String())
	fmt.Fprintf(stdout, "%s ready: %s=%s boot=%s replicas=%d slots=%d\n", name, scheme, server.Addr(), boot, len(s.config.Replicas), len(s.config.Slots))
	for _, w := range s.options.Warnings {
		log.Warn(w)
	}
	if err := program.Notify(env, "READY=1"); err != nil {
		log.Warn("service manager", "error", err)
	}
}

// drain retires what the router launched, all at once and each drained, while
// /health says draining and running requests on the other replicas finish. The
// error names replicas of which nobody knows whether they are gone.
func drain(ctx context.Context, o fleet.Options, pool *fleet.Pool, router *fleet.Router, server *edge.Server, env []string, log *slog.Logger) error {
	log.Info("shutting down", "why", context.Cause(ctx), "drain_timeout", o.DrainTimeout)
	if err := program.Notify(env, "STOPPING=1"); err != nil {
		log.Warn("service manager", "error", err)
	}
	router.Drain()
	bound := o.DrainTimeout + 2*commandTime + o.StopGrace + slack
	bounded, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), bound, fmt.Errorf("replicas are not retired after %v", bound))
	defer cancel()
	requests, cancelRequests := context.WithTimeoutCause(context.WithoutCancel(ctx), o.DrainTimeout, fmt.Errorf("requests still run after %v", o.DrainTimeout))
	defer cancelRequests()
	settled := make(chan error, 1)
	var settling sync.WaitGroup
	settling.Go(func() { settled <- router.Settle(requests) })
	err := pool.Shutdown(bounded)
	settling.Wait()
	if cut := <-settled; cut != nil {
		log.Warn("requests are cut", "why", cut)
	}
	shutdown(server, time.Second)
	if err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	return nil
}

// shutdown ends the server; what still runs after the grace is cut.
func shutdown(server *edge.Server, grace time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	_ = server.Shutdown(ctx) // an expired grace cuts connections, which is what is wanted
}

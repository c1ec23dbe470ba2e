// Package app is pypto-pd-router as a function: flags → config → Run. It holds
// no logic of its own.
package app

import (
	"cmp"
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
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/router/pdrouter"
	"github.com/hw-native-sys/pypto-pd/router/relay"
)

// confirmTime is how long a stopping router asks nodes to confirm the end of
// requests that were cut or had failed.
const confirmTime = 5 * time.Second

// Run runs the router until the context ends, then drains it: /health answers
// 503, running requests finish. It returns the process's exit code.
func Run(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	var f flags
	if code, ok := program.Parse(name, "Route generations over pairs of prefill and decode nodes.", &f, args, stdout, stderr); !ok {
		return code
	}
	if err := f.check(); err != nil {
		return program.Complain(name, stderr, program.Usage, err)
	}
	c, err := config.Load(f.PDConfig)
	if err != nil {
		return program.Complain(name, stderr, program.Usage, err)
	}
	files, err := f.open()
	if err != nil {
		return program.Complain(name, stderr, program.Usage, err)
	}
	if err := run(ctx, f, c, files, env, stdout, stderr); err != nil {
		return program.Complain(name, stderr, program.Failed, err)
	}
	return program.Done
}

// run binds the port first, so that a taken one is an error before anything
// else is started.
func run(ctx context.Context, f flags, c *config.Config, files files, env []string, stdout, stderr io.Writer) (err error) {
	hangUps := program.CatchHangUps()
	defer hangUps.Release()
	address := net.JoinHostPort(f.Host, strconv.Itoa(f.Port))
	listener, err := edge.Listen(edge.ServerConfig{
		Address: address, Certificate: files.certificate, MaxBody: f.MaxBody, MaxConnections: f.MaxConnections, Refuse: relay.Refuse, Log: f.Logger(stderr),
	})
	if err != nil {
		return err
	}
	boot := pd.NewBootID()
	j, err := journal.Open(journal.Options{
		Root: c.Observability.Root, Run: c.Run(), Role: journal.Router, Identity: listener.Addr().String(), Boot: boot,
		Enabled: c.Observability.Enabled, Program: name, Version: program.Version(), Provider: c.Provider,
	})
	if err != nil {
		shutdown(listener, 0)
		return err
	}
	var writing, serving sync.WaitGroup
	writing.Go(j.Run)
	defer func() {
		err = errors.Join(err, j.Close())
		writing.Wait()
	}()
	log := f.Logger(io.MultiWriter(stderr, j.Log())).With("run", c.Run(), "boot", boot, "role", "router")
	for _, w := range c.Warnings {
		log.Warn("pd.json", "text", w)
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		end()
		serving.Wait()
	}()
	if err := program.ServePprof(life, f.Pprof, log); err != nil {
		shutdown(listener, 0)
		return err
	}
	r := pdrouter.New(pdrouter.Options{
		Config: c, Boot: boot, PollInterval: f.PollInterval, PollTimeout: f.PollTimeout,
		Queue: pdrouter.QueueOptions{Size: f.QueueSize, Timeout: f.QueueTimeout}, Log: log,
		Keys: files.keys, Secret: files.secret, Connections: listener.Connections,
		Record: func(e pdrouter.Event) { j.Emit(eventOf(e)) },
	})
	serving.Go(func() { r.Run(life) })
	serving.Go(func() {
		hangUps.Each(life, log, func() error { return errors.Join(files.reload(log), reread(f.PDConfig, r)) })
	})
	served := make(chan error, 1)
	serving.Go(func() { served <- r.Serve(listener) })
	j.Emit(journal.Event{Event: journal.ServiceReady})
	scheme := "http"
	if files.certificate != nil {
		scheme = "https"
	}
	fmt.Fprintf(stdout, "%s ready: %s=%s run=%s boot=%s prefill=%d decode=%d\n", name, scheme, listener.Addr(), c.Run(), boot, len(c.Prefill), len(c.Decode))
	if err := program.Notify(env, "READY=1"); err != nil {
		log.Warn("service manager", "error", err)
	}
	select {
	case <-ctx.Done():
	case err := <-served:
		return fmt.Errorf("HTTP server: %w", err)
	}
	return drain(ctx, r, listener, log, cmp.Or(f.DrainTimeout, c.RequestTimeout), env, j)
}

// drain lets running requests finish while /health says draining, then closes
// the server. What outlasts the time is aborted on its nodes.
func drain(ctx context.Context, r *pdrouter.Router, listener *edge.Server, log *slog.Logger, limit time.Duration, env []string, j *journal.Journal) error {
	log.Info("draining", "why", context.Cause(ctx), "timeout", limit)
	if err := program.Notify(env, "STOPPING=1"); err != nil {
		log.Warn("service manager", "error", err)
	}
	r.Drain()
	waiting, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, fmt.Errorf("requests still run after %v", limit))
	defer cancel()
	err := r.Settle(waiting)
	shutdown(listener, time.Second)
	if err != nil {
		err = fmt.Errorf("drain: %w", err)
	}
	confirming, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), confirmTime, fmt.Errorf("not confirmed within %v", confirmTime))
	defer cancel()
	if err := errors.Join(r.Settle(confirming), r.Confirm(confirming)); err != nil {
		// The nodes have seen their connections end; /health of each says more.
		log.Warn("nodes have not confirmed the end of requests", "error", err)
	}
	j.Emit(journal.Event{Event: journal.ServiceStopped})
	return err
}

// shutdown ends the server; what still runs after the grace is cut.
func shutdown(l *edge.Server, grace time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	_ = l.Shutdown(ctx) // an expired grace cuts connections, which is what is wanted
}

func eventOf(e pdrouter.Event) journal.Event {
	out := journal.Event{Event: e.Name, Request: string(e.Fence.Request), Handoff: string(e.Fence.Handoff), Peer: &e.Fence.Decode}
	if e.Code != 0 {
		out.Code = e.Code.String()
	}
	return out
}

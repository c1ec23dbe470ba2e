package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/hw-native-sys/pypto-pd/router/fleet"
)

// live is a running router as a reload sees it.
type live struct {
	flags  *flags
	env    []string
	setup  setup
	pool   *fleet.Pool
	router *fleet.Router
	log    *slog.Logger
}

// reload reads everything again: certificates and authorities, then the fleet file
// with the admin token. What cannot be taken in stays as it was, and does not keep
// the rest from being read.
func (l *live) reload() error {
	var all []error
	if c := l.setup.certificate; c != nil {
		if err := c.Reload(); err != nil {
			all = append(all, err)
		} else {
			l.log.Info("certificate read again", "valid_until", c.NotAfter())
		}
	}
	all = append(all, l.setup.trusts.Reload())
	flags := *l.flags
	flags.InitialReplicas = nil // that was the start's; a pool may become smaller
	next, defects := flags.read(l.env)
	if len(defects) > 0 {
		return errors.Join(append(all, defects...)...)
	}
	l.router.SetToken(next.options.AdminToken)
	if err := l.pool.Reload(next.config, next.options); err != nil {
		return errors.Join(append(all, err)...)
	}
	l.log.Info("fleet file read again", "replicas", len(next.config.Replicas), "slots", len(next.config.Slots), "ceiling", next.options.Ceiling)
	return errors.Join(all...)
}

// hangUps reads everything again for every SIGHUP until the context ends.
func (l *live) hangUps(ctx context.Context, signals chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			err := l.reload()
			l.router.Reloaded(err)
			if err != nil {
				l.log.Error("not everything could be read again; that stays as it was", "error", err)
			}
		}
	}
}

// catchHangUps keeps SIGHUP from ending the process until stop is called. One
// that comes before there is a router waits.
func catchHangUps() (signals chan os.Signal, stop func()) {
	signals = make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	return signals, func() { signal.Stop(signals) }
}

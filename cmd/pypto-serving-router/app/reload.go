package app

import (
	"errors"
	"log/slog"

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
func (l *live) reload() (err error) {
	defer func() { l.router.Reloaded(err) }()
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

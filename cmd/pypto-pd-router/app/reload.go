package app

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/control"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/router/pdrouter"
	"github.com/hw-native-sys/pypto-pd/router/relay"
)

// files are what flags name beside pd.json; nil where there is none. All but the
// secret are read again on SIGHUP.
type files struct {
	secret      *control.Secret
	certificate *edge.Certificate
	keys        *relay.Keys
}

// open reads the files that flags name.
func (f flags) open() (files, error) {
	var out files
	var err error
	if f.TLSCert != "" {
		if out.certificate, err = edge.LoadCertificate(f.TLSCert, f.TLSKey); err != nil {
			return out, fmt.Errorf("--tls-cert: %w", err)
		}
	}
	if f.APIKeyFile != "" {
		if out.keys, err = relay.LoadKeys(f.APIKeyFile); err != nil {
			return out, fmt.Errorf("--api-key-file: %w", err)
		}
	}
	if f.ControlSecretFile != "" {
		if out.secret, err = control.LoadSecret(f.ControlSecretFile); err != nil {
			return out, fmt.Errorf("--control-secret-file: %w", err)
		}
	}
	return out, nil
}

// reload reads everything again. What cannot be read stays as it was, and does
// not keep the rest from being read.
func (f files) reload(log *slog.Logger) error {
	var all []error
	if f.certificate != nil {
		if err := f.certificate.Reload(); err != nil {
			all = append(all, err)
		} else {
			log.Info("certificate read again", "valid_until", f.certificate.NotAfter())
		}
	}
	if f.keys != nil {
		if err := f.keys.Reload(); err != nil {
			all = append(all, err)
		} else {
			log.Info("API keys read again", "keys", f.keys.Count())
		}
	}
	return errors.Join(all...)
}

// reread takes the next version of pd.json in.
func reread(path string, r *pdrouter.Router) error { return r.Reload(config.Load(path)) }

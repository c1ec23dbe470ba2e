package app

import (
	"errors"
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/router/fleet"
)

// setup is everything that flags and files say, without a defect.
type setup struct {
	config      *fleet.Config
	options     fleet.Options
	trusts      *fleet.Trusts
	certificate *edge.Certificate // nil without TLS
}

// read reads and checks all there is to read. It reports every defect and starts
// nothing.
func (f *flags) read(env []string) (setup, []error) {
	var s setup
	all := f.check()
	add := func(err error) {
		if err != nil {
			all = append(all, each(err)...)
		}
	}
	settings, err := f.settings(env)
	add(err)
	s.config, err = fleet.Load(f.Replicas)
	add(err)
	against := s.config
	if err != nil {
		// What does not depend on the file is checked all the same.
		against, settings.InitialReplicas = &fleet.Config{Replicas: []fleet.Static{{}}}, nil
	}
	s.options, err = settings.Resolve(against)
	add(err)
	if s.config != nil {
		s.trusts, err = fleet.LoadTrusts(f.CAFile, s.config)
		add(err)
	}
	if f.TLSCert != "" && f.TLSKey != "" {
		if s.certificate, err = edge.LoadCertificate(f.TLSCert, f.TLSKey); err != nil {
			add(fmt.Errorf("--tls-cert: %w", err))
		}
	}
	return s, all
}

// each takes an error that holds several apart, down to the defects of a file.
func each(err error) []error {
	if defects, ok := errors.AsType[fleet.Defects](err); ok {
		file := ""
		if outer := err.Error(); len(outer) > len(defects.Error()) {
			file = outer[:len(outer)-len(defects.Error())]
		}
		var out []error
		for _, d := range defects {
			out = append(out, fmt.Errorf("%s%w", file, d))
		}
		return out
	}
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		if joined, ok := inner.(interface{ Unwrap() []error }); ok {
			return joined.Unwrap()
		}
	}
	if e, ok := err.(*pd.Error); ok {
		// Op and code are for logs; a line begins with error: already.
		return []error{errors.New(e.Message())}
	}
	return []error{err}
}

package fleet

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// Trusts say by which authorities the certificates of https replicas are judged:
// those of the replica's own file, else those of the router's, else the system's.
// They can be read again while they are in use. The methods are safe for concurrent
// use.
type Trusts struct {
	caFile string // constant; "" for the system's

	mu sync.RWMutex
	// guarded by mu
	byFile map[string]*edge.Trust
}

// LoadTrusts reads the authorities of a configuration's https replicas; caFile is
// for those that name none themselves. The error holds every file that cannot be
// read.
func LoadTrusts(caFile string, c *Config) (*Trusts, error) {
	t := &Trusts{caFile: caFile, byFile: map[string]*edge.Trust{}}
	var all []error
	if caFile != "" {
		// Also where nobody uses it yet: a reload may bring one who does.
		_, err := t.file(caFile)
		all = append(all, err)
	}
	for _, r := range c.Replicas {
		if r.Scheme == "https" {
			_, err := t.Of(r)
			all = append(all, err)
		}
	}
	return t, errors.Join(all...)
}

// Of is what an https replica is judged by. The error is its file.
func (t *Trusts) Of(r Static) (*edge.Trust, error) {
	file := r.CAFile
	if file == "" {
		file = t.caFile
	}
	return t.file(file)
}

// file gives one trust for each file, so that replicas share what was read.
func (t *Trusts) file(path string) (*edge.Trust, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.byFile[path]; known != nil {
		return known, nil
	}
	trust, err := edge.LoadTrust(path)
	if err != nil {
		return nil, fmt.Errorf("load trust: %w", err)
	}
	t.byFile[path] = trust
	return trust, nil
}

// Reload reads every file again. What cannot be read stays as it was, and does not
// keep the rest from being read.
func (t *Trusts) Reload() error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var all []error
	for _, trust := range t.byFile {
		all = append(all, trust.Reload())
	}
	return errors.Join(all...)
}

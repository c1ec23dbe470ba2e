package fleet

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// Trusts say by which authorities the certificates of https replicas are judged:
// those of the replica's own file, else those of the router's, else the system's.
// They can be read again while they are in use.
type Trusts struct {
	caFile string // constant; "" for the system's

	byURL atomic.Pointer[map[string]*edge.Trust]
}

// LoadTrusts reads the authorities of a configuration's https replicas; caFile is
// for those that name none themselves. The error holds every file that cannot be
// read.
func LoadTrusts(caFile string, c *Config) (*Trusts, error) {
	t := &Trusts{caFile: caFile}
	return t, t.Reload(c)
}

// Reload reads all files again, for another configuration. After an error nothing
// has changed.
func (t *Trusts) Reload(c *Config) error {
	byURL, byFile := map[string]*edge.Trust{}, map[string]*edge.Trust{}
	var all []error
	load := func(file string) *edge.Trust {
		if known, ok := byFile[file]; ok {
			return known
		}
		trust, err := edge.LoadTrust(file)
		if err != nil {
			all = append(all, err)
		}
		byFile[file] = trust
		return trust
	}
	if t.caFile != "" {
		load(t.caFile)
	}
	for _, r := range c.Replicas {
		if r.Scheme != "https" {
			continue
		}
		file := r.CAFile
		if file == "" {
			file = t.caFile
		}
		byURL[r.URL()] = load(file)
	}
	if len(all) > 0 {
		return fmt.Errorf("load trust: %w", errors.Join(all...))
	}
	t.byURL.Store(&byURL)
	return nil
}

// Of is what a replica's certificate is judged by, nil for one that is spoken to
// in the clear.
func (t *Trusts) Of(url string) *edge.Trust { return (*t.byURL.Load())[url] }

// addressOf is the host:port of a replica's base address.
func addressOf(url string) string {
	_, address, _ := strings.Cut(url, "://")
	return address
}

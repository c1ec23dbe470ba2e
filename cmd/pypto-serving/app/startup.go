package app

import (
	"fmt"
	"io"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// startup tells people how far a start has come, one plain line per step. A
// launcher keeps what a server says, and from nothing else can it be seen where
// a start has ended; so the lines do not depend on the level of the log.
type startup struct{ to io.Writer }

// startup is silent without --show-startup-logs.
func (s settings) startup(stderr io.Writer) startup {
	if !s.ShowStartupLogs {
		return startup{io.Discard}
	}
	return startup{stderr}
}

func (u startup) step(format string, args ...any) {
	fmt.Fprintf(u.to, "%s: startup: "+format+"\n", append([]any{name}, args...)...)
}

// model is what will be served, before anything is bound or allocated.
func (u startup) model(s settings) {
	u.step("model %s, served as %s, revision %s", s.Model, s.ServedModel, s.revision)
	u.step("geometry %s: %d ranks, tp %d, %d partitions, %d tokens per page, at most %d tokens and %d requests at once",
		s.SimGeometry, s.topology.Ranks, s.topology.TP, s.topology.Partitions(), s.BlockSize, s.MaxModelLen, s.MaxNumSeqs)
}

// memory is what the cache takes of every rank.
func (u startup) memory(s settings, c *pd.Contract, l adapter.Layout) {
	regions := regionsOf(c, l)
	var bytes int64
	for _, n := range regions {
		bytes += n
	}
	u.step("memory allocated: %d ranks with %d regions, %d bytes each", s.topology.Ranks, len(regions), bytes)
}

package pdnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hw-native-sys/pypto-pd/cgo/dl"
	"github.com/hw-native-sys/pypto-pd/mooncake"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

// Provider is the map from names in pd.json to data planes. It runs in the
// process that owns the memory, and in a node to check the options. Options are
// in the provider's own form; log gets what an operator should see.
func Provider(name, options string, log *slog.Logger) (transfer.Provider, error) {
	switch name {
	case simulator.Name:
		var o SimulatorOptions
		if err := strictjson.Decode([]byte(options), &o, strictjson.Limits{}); err != nil {
			return nil, fmt.Errorf("provider %s: options: %w", name, err)
		}
		return simulator.New(simulator.Config{
			Link: simulator.Link{BytesPerSecond: o.LinkRate, Latency: time.Duration(o.LinkLatencyNanos)}, Faults: o.Faults, Seed: o.Seed,
		})
	case mooncake.Name:
		var o MooncakeOptions
		if err := strictjson.Decode([]byte(options), &o, strictjson.Limits{}); err != nil {
			return nil, fmt.Errorf("provider %s: options: %w", name, err)
		}
		return mooncake.New(mooncake.Options{Protocol: o.Protocol, Library: o.Library, AscendLibrary: o.AscendLibrary, Log: log})
	}
	return nil, fmt.Errorf("provider %q is unknown", name)
}

// Locate says whether what a provider needs is on this machine, before a node
// writes, binds or starts anything.
func Locate(p transfer.Provider) error {
	m, ok := p.(*mooncake.Provider)
	if !ok {
		return nil
	}
	err := m.Locate()
	if errors.Is(err, dl.ErrNoCgo) {
		err = fmt.Errorf("%w, or set \"provider\": \"simulator\" in pd.json to run without it", err)
	}
	return err
}

// NewArena makes the memory that a provider moves, where it is not just any
// memory of the process; nil where it is. In an owner process whose node
// computes in the same memory, shared, host memory is the process's anyway.
func NewArena(p transfer.Provider, rank pd.Rank, shared bool) (transfer.Arena, error) {
	m, ok := p.(*mooncake.Provider)
	if !ok || (shared && !m.OnDevice()) {
		return nil, nil
	}
	return m.NewArena(rank)
}

// MooncakeOptions are the native data plane's: how bytes move, and where the
// libraries are, "" for the usual places.
type MooncakeOptions struct {
	Protocol      mooncake.Protocol `json:"protocol"`
	Library       string            `json:"library"`
	AscendLibrary string            `json:"ascend_library"`
}

// SimulatorOptions are the simulated data plane's. Each owner process counts
// the batches of its faults by itself.
type SimulatorOptions struct {
	// LinkRate is the bytes per second of one rank's link, 0 without a limit.
	LinkRate         int64             `json:"link_rate"`
	LinkLatencyNanos int64             `json:"link_latency_ns"`
	Seed             uint64            `json:"seed"`
	Faults           []simulator.Fault `json:"faults"`
}

// Options puts the options of the provider of a name in the form that Provider
// reads.
func Options(name string, s SimulatorOptions, m MooncakeOptions) string {
	var v any = m
	if name == simulator.Name {
		if s.Faults == nil {
			s.Faults = []simulator.Fault{}
		}
		v = s
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // numbers, enums and paths
	}
	return string(b)
}

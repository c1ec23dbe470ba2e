package pdnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

// Provider is the map from names in pd.json to data planes. It runs in the
// process that owns the memory, and in a node to check the options. Options are
// in the provider's own form.
func Provider(name, options string) (transfer.Provider, error) {
	switch name {
	case simulator.Name:
		var o SimulatorOptions
		if err := strictjson.Decode([]byte(options), &o, strictjson.Limits{}); err != nil {
			return nil, fmt.Errorf("provider %s: options: %w", name, err)
		}
		return simulator.New(simulator.Config{
			Link: simulator.Link{BytesPerSecond: o.LinkRate, Latency: time.Duration(o.LinkLatencyNanos)}, Faults: o.Faults, Seed: o.Seed,
		})
	case "mooncake":
		return nil, errors.New(`provider mooncake: this build has no native data plane (libtransfer_engine.so); set "provider": "simulator" in pd.json to run without it`)
	}
	return nil, fmt.Errorf("provider %q is unknown", name)
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

// Options puts the options of a provider in the form that Provider reads; those
// of others than the simulator have none yet.
func Options(name string, o SimulatorOptions) string {
	if name != simulator.Name {
		return "{}"
	}
	if o.Faults == nil {
		o.Faults = []simulator.Fault{}
	}
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // numbers and enums
	}
	return string(b)
}

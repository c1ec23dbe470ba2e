package pdnode

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

// SimulatorOptions are what flags say of the simulated data plane; the zero
// value is an ideal one.
type SimulatorOptions struct {
	// BytesPerSecond is the rate of one rank's link, 0 without a limit, and
	// Latency that of one transfer.
	BytesPerSecond int64
	Latency        time.Duration
	// Faults is the path of a file of faults, "" for none; Seed draws them.
	Faults string
	Seed   uint64
}

// Provider is the map from names in pd.json to data planes.
func Provider(name string, o SimulatorOptions) (transfer.Provider, error) {
	switch name {
	case simulator.Name:
		faults, err := readFaults(o.Faults)
		if err != nil {
			return nil, err
		}
		return simulator.New(simulator.Config{
			Link: simulator.Link{BytesPerSecond: o.BytesPerSecond, Latency: o.Latency}, Faults: faults, Seed: o.Seed,
		})
	case "mooncake":
		return nil, errors.New(`provider mooncake: this build has no native data plane (libtransfer_engine.so); set "provider": "simulator" in pd.json to run without it`)
	}
	return nil, fmt.Errorf("provider %q is unknown", name)
}

func readFaults(path string) ([]simulator.Fault, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--sim-faults: %w", err)
	}
	var file struct {
		Faults []simulator.Fault `json:"faults"`
	}
	if err := strictjson.Decode(b, &file, strictjson.Limits{}); err != nil {
		return nil, fmt.Errorf("--sim-faults %s: %w", path, err)
	}
	return file.Faults, nil
}

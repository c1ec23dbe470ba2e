package app

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hw-native-sys/pypto-pd/pd/engine/reference"
)

// stepMetricsDir is the environment variable that switches decode step metrics
// on; each node has a folder of its own.
const stepMetricsDir = "PYPTO_SERVING_DECODE_METRICS_DIR"

// stepMetrics writes one JSON line per decode batch. Only the engine's step loop
// writes; close comes after that loop has ended.
type stepMetrics struct {
	file *os.File
	out  *bufio.Writer
	json *json.Encoder
	err  error
}

// stepRecord is one line. The mean acceptance length is the sum of accepted over
// the number of its entries; a batch's duration counts once.
type stepRecord struct {
	Schema       int    `json:"schema_version"`
	TimestampNS  int64  `json:"timestamp_ns"`
	PID          int    `json:"pid"`
	Step         int64  `json:"step_id"`
	DurationNS   int64  `json:"duration_ns"`
	Path         string `json:"path"`
	MixedPrefill bool   `json:"mixed_prefill"`
	BatchSize    int    `json:"batch_size"`
	Accepted     []int  `json:"accepted_tokens"`
}

// openStepMetrics starts a file in a folder that holds no records of another
// run; "" switches it off.
func openStepMetrics(dir string) (*stepMetrics, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("%s: %w", stepMetricsDir, err)
	}
	if old, _ := filepath.Glob(filepath.Join(dir, "decode-*.jsonl")); len(old) > 0 {
		return nil, fmt.Errorf("%s: %s holds records of another run (%s); use a fresh folder", stepMetricsDir, dir, filepath.Base(old[0]))
	}
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("decode-%d.jsonl", os.Getpid())), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", stepMetricsDir, err)
	}
	m := &stepMetrics{file: f, out: bufio.NewWriterSize(f, 64<<10)}
	m.json = json.NewEncoder(m.out)
	return m, nil
}

// hook is the engine's callback; nil where the metrics are off.
func (m *stepMetrics) hook() func(reference.DecodeBatch) {
	if m == nil {
		return nil
	}
	return func(b reference.DecodeBatch) {
		if m.err != nil {
			return // a full disk never disturbs serving; close tells
		}
		// The engine prepares inputs inside the step, so this is the unprepared path.
		m.err = m.json.Encode(stepRecord{
			Schema: 1, TimestampNS: b.Ended.UnixNano(), PID: os.Getpid(), Step: b.Step, DurationNS: b.Ended.Sub(b.Began).Nanoseconds(),
			Path: "sync_unprepared", MixedPrefill: b.MixedPrefill, BatchSize: len(b.Accepted), Accepted: b.Accepted,
		})
	}
}

// close writes what is buffered and tells the first error of writing.
func (m *stepMetrics) close() error {
	if m == nil {
		return nil
	}
	if err := m.out.Flush(); m.err == nil {
		m.err = err
	}
	if err := m.file.Close(); m.err == nil {
		m.err = err
	}
	if m.err != nil {
		return fmt.Errorf("decode step metrics: %w", m.err)
	}
	return nil
}

package app

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/engine/reference"
)

// Behaviour 178: one line per decode batch, off by default, never mixed with
// another run.
func TestDecodeStepMetrics(t *testing.T) {
	off, err := openStepMetrics("")
	require.NoError(t, err)
	require.Nil(t, off.hook())
	require.NoError(t, off.close())

	dir := filepath.Join(t.TempDir(), "steps")
	m, err := openStepMetrics(dir)
	require.NoError(t, err)
	began := time.Unix(100, 0)
	m.hook()(reference.DecodeBatch{Step: 7, Began: began, Ended: began.Add(3 * time.Millisecond), MixedPrefill: true, Accepted: []int{8, 1, 3}})
	m.hook()(reference.DecodeBatch{Step: 8, Began: began, Ended: began.Add(time.Millisecond), Accepted: []int{4}})
	require.NoError(t, m.close())
	files, err := filepath.Glob(filepath.Join(dir, "decode-*.jsonl"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	text, err := os.ReadFile(files[0])
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	require.Len(t, lines, 2)
	var r stepRecord
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &r))
	require.Equal(t, stepRecord{
		Schema: 1, TimestampNS: began.Add(3 * time.Millisecond).UnixNano(), PID: os.Getpid(), Step: 7, DurationNS: 3e6,
		Path: "sync_unprepared", MixedPrefill: true, BatchSize: 3, Accepted: []int{8, 1, 3},
	}, r)

	_, err = openStepMetrics(dir)
	require.ErrorContains(t, err, "use a fresh folder")
}

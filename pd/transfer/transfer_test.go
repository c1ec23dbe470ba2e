package transfer

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Behaviour 92.
func TestIdentityRowRoundTrips(t *testing.T) {
	want := Identity{Boot: pd.NewBootID(), Rank: 15, Epoch: 1<<40 + 3}
	row := want.Row()
	got, err := ParseRow(row[:])
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestIdentityRowRefusesWhatIsNoRow(t *testing.T) {
	good := Identity{Boot: pd.NewBootID(), Rank: 1, Epoch: 1}.Row()
	for name, spoil := range map[string]func(b []byte) []byte{
		"zeroed memory": func(b []byte) []byte { clear(b); return b },
		"short":         func(b []byte) []byte { return b[:RowBytes-1] },
		"boot not hex":  func(b []byte) []byte { b[8] = 'G'; return b },
		"epoch 0":       func(b []byte) []byte { clear(b[48:56]); return b },
		"rank too high": func(b []byte) []byte { b[41] = 1; return b },
		"negative rank": func(b []byte) []byte { b[47] = 0x80; return b },
	} {
		row := good
		_, err := ParseRow(spoil(row[:]))
		require.Error(t, err, name)
	}
}

// Behaviour 101.
func TestCheckSegments(t *testing.T) {
	source := Extents{"a": 1024, "b": 256, "only_source": 64}
	target := Extents{"a": 512, "b": 256, "only_target": 64}
	one := func(c pd.ComponentID, from, to, n int64) []pd.Segment {
		return []pd.Segment{{Component: "b", Bytes: 64}, {Component: c, SourceOffset: from, TargetOffset: to, Bytes: n}}
	}
	for _, c := range []struct {
		name     string
		segments []pd.Segment
		bytes    int64
		err      string
	}{
		{"none", nil, 0, ""},
		{"whole target", one("a", 512, 0, 512), 576, ""},
		{"unknown at source", one("only_target", 0, 0, 64), 0, `segment 1: component "only_target" is not registered at the source`},
		{"unknown at target", one("only_source", 0, 0, 64), 0, `"only_source" is not registered at the target`},
		{"zero", one("a", 0, 0, 0), 0, "want more than 0 bytes"},
		{"negative", one("a", 0, 0, -64), 0, "want more than 0 bytes"},
		{"odd length", one("a", 0, 0, 63), 0, "want multiples of 64"},
		{"odd source", one("a", 32, 0, 64), 0, "want multiples of 64"},
		{"odd target", one("a", 0, 32, 64), 0, "want multiples of 64"},
		{"negative source", one("a", -64, 0, 64), 0, "source [-64,+64) is outside the extent of 1024"},
		{"past source", one("a", 1024, 0, 64), 0, "source [1024,+64) is outside"},
		{"past target", one("a", 0, 512, 64), 0, "target [512,+64) is outside the extent of 512"},
		{"straddles target", one("a", 0, 448, 128), 0, "target [448,+128) is outside"},
		{"overflow", one("a", math.MaxInt64-63, 0, 64), 0, "outside the extent"},
		{"huge", one("a", 64, 0, math.MaxInt64-63), 0, "outside the extent"},
	} {
		n, err := CheckSegments(c.segments, source, target)
		if c.err == "" {
			require.NoError(t, err, c.name)
			require.Equal(t, c.bytes, n, c.name)
			continue
		}
		require.Error(t, err, c.name)
		require.True(t, strings.Contains(err.Error(), c.err), "%s: %v", c.name, err)
	}
}

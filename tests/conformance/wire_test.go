package conformance

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

var update = flag.Bool("update", false, "rewrite golden files and generated documents")

// golden compares got with a file, or rewrites the file.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o644))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run make gen to write it")
	require.Equal(t, string(want), string(got), "%s differs; run make gen and explain the difference in the commit", path)
}

// TestMessages holds the bytes of every message: what a node writes, and that
// it reads the same value back.
func TestMessages(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			b, err := wire.Encode(s.value)
			require.NoError(t, err)
			require.NoError(t, s.value.Check())
			golden(t, filepath.Join("testdata", "wire", s.name+".json"), b)
			back, err := s.decode(b)
			require.NoError(t, err)
			again, err := wire.Encode(back)
			require.NoError(t, err)
			require.Equal(t, string(b), string(again))
			theirs, err := wire.Encode(s.value)
			require.NoError(t, err)
			require.Equal(t, string(b), string(theirs), "encoding changes nothing")
		})
	}
}

// TestDigests holds the digests that both nodes of a pair compute.
func TestDigests(t *testing.T) {
	c, k, m := contract(), continuation(), manifest()
	metadata := must(wire.MetadataHash(&k))
	b, err := json.MarshalIndent(map[string]string{
		"contract":               must(wire.ContractDigest(&c)),
		"continuation":           metadata,
		"manifest":               must(wire.ManifestHash(&m)),
		"prepared":               must(wire.PreparedDigest(metadata)),
		"continuation_least":     must(wire.MetadataHash(&pd.Continuation{Temperature: "0", TopP: "1"})),
		"prepared_empty":         must(wire.PreparedDigest("")),
		"manifest_without_lists": must(wire.ManifestHash(&pd.Manifest{})),
	}, "", "  ")
	require.NoError(t, err)
	golden(t, filepath.Join("testdata", "wire", "digests.json"), append(b, '\n'))
}

// Behaviour 21.
func TestManifestHashKnowsNoOrder(t *testing.T) {
	m := manifest()
	hash := must(wire.ManifestHash(&m))
	slices.Reverse(m.Copies)
	slices.Reverse(m.Units)
	slices.Reverse(m.RankMap)
	shuffled := manifest()
	shuffled.Copies, shuffled.Units, shuffled.RankMap = slices.Clone(m.Copies), slices.Clone(m.Units), slices.Clone(m.RankMap)
	assert.Equal(t, hash, must(wire.ManifestHash(&shuffled)))
	assert.Equal(t, m, shuffled, "hashing does not sort the manifest itself")
}

// Behaviour 44.
func TestManifestHashKnowsEverythingElse(t *testing.T) {
	whole := manifest()
	hashes := map[string]string{must(wire.ManifestHash(&whole)): "the manifest itself"}
	for name, change := range map[string]func(*pd.Manifest){
		"fence":                func(m *pd.Manifest) { m.Fence.Decode.Boot = m.Fence.Prefill.Boot },
		"chunk":                func(m *pd.Manifest) { m.Chunk++ },
		"span":                 func(m *pd.Manifest) { m.Span.End++ },
		"final":                func(m *pd.Manifest) { m.Final = false },
		"source partition":     func(m *pd.Manifest) { m.SourcePartition++ },
		"target partition":     func(m *pd.Manifest) { m.TargetPartition++ },
		"rank map":             func(m *pd.Manifest) { m.RankMap[0].Source++ },
		"hit":                  func(m *pd.Manifest) { m.SourceHitTokens++ },
		"copy component":       func(m *pd.Manifest) { m.Copies[0].Component = "kv" },
		"copy source":          func(m *pd.Manifest) { m.Copies[0].Source++ },
		"copy target":          func(m *pd.Manifest) { m.Copies[0].Target++ },
		"copy count":           func(m *pd.Manifest) { m.Copies[0].Count++ },
		"copy rows":            func(m *pd.Manifest) { m.Copies[0].ValidRows++ },
		"copy twice":           func(m *pd.Manifest) { m.Copies = append(m.Copies, m.Copies[0]) },
		"unit target":          func(m *pd.Manifest) { m.Units[0].Target++ },
		"unit component":       func(m *pd.Manifest) { m.Units[0].Component = "win" },
		"unit bytes":           func(m *pd.Manifest) { m.Units[0].Bytes++ },
		"bootstrap source":     func(m *pd.Manifest) { m.Bootstrap.SourceSlot++ },
		"bootstrap target":     func(m *pd.Manifest) { m.Bootstrap.TargetSlot++ },
		"bootstrap generation": func(m *pd.Manifest) { m.Bootstrap.TargetGeneration-- },
		"no bootstrap":         func(m *pd.Manifest) { m.Bootstrap = nil },
		"first token":          func(m *pd.Manifest) { m.FirstToken = ptr(pd.Token(1)) },
		"no first token":       func(m *pd.Manifest) { m.FirstToken = nil },
		"metadata hash":        func(m *pd.Manifest) { m.MetadataHash = strings.Repeat("1", 64) },
		"prepared digest":      func(m *pd.Manifest) { m.PreparedDigest = strings.Repeat("1", 64) },
	} {
		m := manifest()
		change(&m)
		hash := must(wire.ManifestHash(&m))
		assert.Empty(t, hashes[hash], "%s does not change the hash", name)
		hashes[hash] = name
	}
}

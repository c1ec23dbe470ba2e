package adapter_test

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
)

func tokens(n int) []pd.Token {
	out := make([]pd.Token, n)
	for i := range out {
		out[i] = pd.Token(i * 7)
	}
	return out
}

// The chain of pd-domain §4.5, computed by hand.
func TestPrefixHashesAreAChain(t *testing.T) {
	c := dsv4.Full().Contract("revision", "simulator")
	got := adapter.PrefixHashes(&c, "digest", tokens(200))
	require.Len(t, got, 2, "one chain for each page size that is shared")
	require.Len(t, got[32], 6, "full pages only")
	require.Len(t, got[128], 1)
	parent := sha256.Sum256([]byte("pypto-serving-prefix-root/v1\nrevision\ndigest"))
	for page := range 6 {
		text := append(parent[:], 0, 0, 0, 32)
		for _, token := range tokens(200)[page*32 : page*32+32] {
			text = binary.BigEndian.AppendUint64(text, uint64(token))
		}
		parent = sha256.Sum256(text)
		require.Equal(t, pd.PageHash(parent), got[32][page])
	}
}

func TestPrefixHashesNameEverythingBeforeThem(t *testing.T) {
	c := dsv4.Full().Contract("revision", "simulator")
	want := adapter.PrefixHashes(&c, "digest", tokens(300))
	require.Equal(t, want[32][:8], adapter.PrefixHashes(&c, "digest", tokens(256))[32], "a longer prompt begins alike")
	changed := tokens(300)
	changed[40]++
	got := adapter.PrefixHashes(&c, "digest", changed)
	require.Equal(t, want[32][0], got[32][0])
	for page := 1; page < 9; page++ {
		require.NotEqual(t, want[32][page], got[32][page], "page %d", page)
	}
	require.NotEqual(t, want[32][0], adapter.PrefixHashes(&c, "other", tokens(300))[32][0], "another contract")
	other := dsv4.Full().Contract("other", "simulator")
	require.NotEqual(t, want[32][0], adapter.PrefixHashes(&other, "digest", tokens(300))[32][0], "other weights")
	require.NotEqual(t, want[32][3], want[128][0], "another page size is another chain")
	require.Empty(t, adapter.PrefixHashes(&c, "digest", tokens(31))[32])
}

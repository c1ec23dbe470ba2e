package relay_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/router/relay"
)

func TestKeyFilesWithMistakesAreRefusedWithoutNamingAKey(t *testing.T) {
	secret := "sk-0123456789abcdef"
	path := filepath.Join(t.TempDir(), "keys")
	for text, want := range map[string]string{
		"":                                "no key",
		"# " + secret + "\n\n":            "no key",
		secret + "\nshort-" + "x1\n":      "line 2: the key has 8 bytes, want 16..512",
		secret + " " + secret:             "line 1: a key is one word",
		secret + "\u00e9":                 "line 1: a key is one word",
		strings.Repeat("k", 513):          "line 1: the key has 513 bytes",
		strings.Repeat("k", 1<<20+10):     "exceeds 1048576 bytes",
		strings.Repeat(secret+"\n", 1025): "more than 1024 keys",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := relay.LoadKeys(path)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, path)
		require.NotContains(t, err.Error(), secret)
	}
	_, err := relay.LoadKeys(path + "x")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestKeyFileMayBeReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(path, []byte("# team a\n  sk-0123456789abcdef \r\n\nsk-fedcba9876543210"), 0o600))
	k, err := relay.LoadKeys(path)
	require.NoError(t, err)
	require.Equal(t, 2, k.Count())
	require.NoError(t, os.WriteFile(path, []byte("bad"), 0o600))
	require.Error(t, k.Reload())
	require.Equal(t, 2, k.Count(), "the keys from before stay")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, "sk-%032d", 1), 0o600))
	require.NoError(t, k.Reload())
	require.Equal(t, 1, k.Count())
}

package relay

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

const (
	// maxKeys bounds the keys of a file, because each request is compared with
	// all of them, and maxKeyFile its bytes.
	maxKeys    = 1024
	maxKeyFile = 1 << 20
	// A shorter key is guessed, a longer one is a mistake.
	minKeyBytes = 16
	maxKeyBytes = 512
)

// Keys are the API keys of clients, read from a file that can be read again. The
// process keeps digests only.
type Keys struct {
	path    string // constant
	digests atomic.Pointer[[][sha256.Size]byte]
}

// LoadKeys reads a file with one key per line; empty lines and those that begin
// with # are passed. The error names the line, never a key.
func LoadKeys(path string) (*Keys, error) {
	k := &Keys{path: path}
	return k, k.Reload()
}

// Reload reads the file again. After an error the keys from before stay valid.
func (k *Keys) Reload() error {
	f, err := os.Open(k.path)
	if err != nil {
		return fmt.Errorf("read API keys: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return fmt.Errorf("read API keys: %w", err)
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("read API keys %s: %s", k.path, fmt.Sprintf(format, args...))
	}
	if len(text) > maxKeyFile {
		return bad("the file exceeds %d bytes", maxKeyFile)
	}
	var digests [][sha256.Size]byte
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxKeyFile+1)
	for number := 1; lines.Scan(); number++ {
		key := strings.TrimSpace(lines.Text())
		if key == "" || key[0] == '#' {
			continue
		}
		switch {
		case len(key) < minKeyBytes || len(key) > maxKeyBytes:
			return bad("line %d: the key has %d bytes, want %d..%d", number, len(key), minKeyBytes, maxKeyBytes)
		case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }):
			return bad("line %d: a key is one word of visible ASCII characters", number)
		case len(digests) == maxKeys:
			return bad("there are more than %d keys", maxKeys)
		}
		digests = append(digests, sha256.Sum256([]byte(key)))
	}
	if len(digests) == 0 {
		return bad("there is no key in it")
	}
	k.digests.Store(&digests)
	return nil
}

// Count is how many keys are valid.
func (k *Keys) Count() int { return len(*k.digests.Load()) }

// Check refuses a call that carries no valid key as `Authorization: Bearer KEY`;
// the caller sends the error. A nil Keys refuses none. How long it takes tells
// nothing about how much of a key was right, or which one.
func (k *Keys) Check(c *edge.Call) error {
	if k == nil {
		return nil
	}
	header := c.Header("Authorization")
	scheme, key, _ := strings.Cut(header, " ")
	given := sha256.Sum256([]byte(strings.TrimSpace(key)))
	known := 0
	for _, d := range *k.digests.Load() {
		known |= subtle.ConstantTimeCompare(d[:], given[:])
	}
	if known == 1 && strings.EqualFold(scheme, "Bearer") {
		return nil
	}
	text := "the API key is not valid"
	if header == "" {
		text = "an API key is required: send it as Authorization: Bearer KEY"
	}
	c.SetHeader("WWW-Authenticate", "Bearer")
	return pd.Errorf(pd.CodeUnauthorized, "check API key", "%s", text)
}

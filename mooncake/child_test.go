package mooncake

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/tests/fakelib"
)

const (
	envRole    = "MOONCAKE_TEST_ROLE"
	envLibrary = "MOONCAKE_TEST_LIBRARY"
	envBytes   = "MOONCAKE_TEST_BYTES"
)

// childMain runs what a test asked this binary to be, and says whether it did.
func childMain() bool {
	if os.Getenv(envRole) == "" {
		return false
	}
	if err := child(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// child is an engine with one region in a process of its own. It tells its
// target, then answers orders: sum, fence, write.
func child() error {
	bytes, err := strconv.ParseInt(os.Getenv(envBytes), 10, 64)
	if err != nil {
		return err
	}
	p, err := New(Options{Library: os.Getenv(envLibrary)})
	if err != nil {
		return err
	}
	arena, err := p.NewArena(1)
	if err != nil {
		return err
	}
	memory, err := arena.Allocate("kv", bytes)
	if err != nil {
		return err
	}
	target := transfer.Target{
		Peer:     pd.Peer{Node: "child", Boot: pd.NewBootID()},
		Identity: transfer.Identity{Rank: 1},
	}
	target.Identity.Boot = target.Peer.Boot
	e, err := p.Open(ctxBackground, transfer.Options{Identity: target.Identity, Hostname: "127.0.0.1", AttemptTimeout: time.Minute})
	if err != nil {
		return err
	}
	envelope, err := e.Register("kv", memory)
	if err != nil {
		return err
	}
	target.Regions = []pd.Region{{Component: "kv", Bytes: bytes, Envelope: envelope}}
	if err := e.Freeze(); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	tell := func() error {
		target.Endpoint, target.Identity.Epoch = e.Endpoint(), e.Epoch()
		return out.Encode(target)
	}
	if err := tell(); err != nil {
		return err
	}
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		switch orders.Text() {
		case "sum":
			err = out.Encode(digest(memory.Bytes()))
		case "fence":
			if err = e.Fence(ctxBackground); err == nil {
				err = tell()
			}
		case "write":
			// To itself, for children that are to die of it.
			var s transfer.Session
			if s, err = e.Connect(ctxBackground, target); err == nil {
				_, err = s.Submit(pieces(bytes, 2))
			}
		}
		if err != nil {
			return err
		}
	}
	if err := e.Close(); err != nil {
		return err
	}
	return arena.Close()
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// process is a child and what it has told.
type process struct {
	*exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	knobs  *fakelib.Libraries
	target transfer.Target
	// said is its standard error, whole once it has ended.
	said bytes.Buffer
}

// spawn starts a child with knobs of its own.
func spawn(t *testing.T, library string, bytes int64, set func(k *fakelib.Libraries)) *process {
	p := &process{Cmd: exec.Command(os.Args[0])}
	var err error
	p.knobs, err = fakelib.Build(t.TempDir())
	require.NoError(t, err)
	if set != nil {
		set(p.knobs)
	}
	p.Env = append(os.Environ(), envRole+"=target", envLibrary+"="+library, envBytes+"="+strconv.FormatInt(bytes, 10),
		fakelib.EnvKnobs+"="+p.knobs.Knobs)
	p.Stderr = io.MultiWriter(os.Stderr, &p.said)
	p.in, err = p.StdinPipe()
	require.NoError(t, err)
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	p.out = json.NewDecoder(out)
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		_ = p.Process.Kill() // it may have ended
		_ = p.Wait()         // and been waited for
	})
	return p
}

// peer starts a child that becomes a target.
func peer(t *testing.T, library string, bytes int64) *process {
	p := spawn(t, library, bytes, nil)
	require.NoError(t, p.out.Decode(&p.target))
	return p
}

func (p *process) order(t *testing.T, what string) {
	_, err := io.WriteString(p.in, what+"\n")
	require.NoError(t, err)
}

func (p *process) sum(t *testing.T) (sum string) {
	p.order(t, "sum")
	require.NoError(t, p.out.Decode(&sum))
	return sum
}

package mooncake

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/cgo/dl"
	"github.com/hw-native-sys/pypto-pd/tests/fakelib"
)

// fakes are the libraries of this process, compiled when the first test wants
// them.
var fakes = sync.OnceValues(func() (*fakelib.Libraries, error) {
	dir, err := os.MkdirTemp("", "pypto-knobs-")
	if err != nil {
		return nil, err
	}
	cleanups = append(cleanups, func() { os.RemoveAll(dir) })
	l, err := fakelib.Build(dir)
	if err != nil {
		return nil, err
	}
	return l, dl.Setenv(fakelib.EnvKnobs, l.Knobs)
})

var cleanups []func()

func TestMain(m *testing.M) {
	// What a user has set for the real library must not reach the fake one.
	for _, name := range []string{"PYPTO_MOONCAKE_LIBRARY", "PYPTO_ASCENDCL_LIBRARY"} {
		kept[name] = os.Getenv(name)
		os.Unsetenv(name)
	}
	if childMain() {
		return
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	for _, f := range cleanups {
		f()
	}
	os.Exit(code)
}

// kept is what the environment held of the variables that TestMain removed.
var kept = map[string]string{}

// needFakes gives the libraries with every knob off, and checks at the end of
// the test that nothing of them is left.
func needFakes(t testing.TB) *fakelib.Libraries {
	t.Helper()
	if !dl.Available {
		t.Skip(dl.ErrNoCgo)
	}
	l, err := fakes()
	require.NoError(t, err)
	l.Reset()
	counters := []fakelib.Counter{fakelib.Engines, fakelib.Regions, fakelib.Segments, fakelib.Tasks, fakelib.Threads, fakelib.Allocations}
	before := map[fakelib.Counter]int64{}
	for _, c := range counters {
		before[c] = l.Get(c)
	}
	t.Cleanup(func() {
		l.Reset()
		for _, c := range counters {
			require.Equal(t, before[c], l.Get(c), "counter %d of the library", c)
		}
	})
	return l
}

// tcp is a provider over the fake library.
func tcp(t testing.TB, l *fakelib.Libraries) *Provider {
	p, err := New(Options{Library: l.TransferEngine})
	require.NoError(t, err)
	return p
}

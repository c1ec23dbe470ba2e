package mooncake

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/cgo/dl"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/transfertest"
)

// real is a provider over the library that PYPTO_MOONCAKE_LIBRARY names. The
// tests that need it are skipped where it is not set, and only there.
func real(t testing.TB) *Provider {
	path := kept["PYPTO_MOONCAKE_LIBRARY"]
	if path == "" {
		t.Skip("PYPTO_MOONCAKE_LIBRARY is not set; make conformance-mooncake runs this against a real library")
	}
	require.True(t, dl.Available, dl.ErrNoCgo)
	p, err := New(Options{Library: path})
	require.NoError(t, err)
	return p
}

// TestRealConformance is the suite over TCP. Nothing can stall the real library
// within one process; real_peer_test.go does it with two.
func TestRealConformance(t *testing.T) {
	transfertest.Run(t, func(t *testing.T) transfertest.Harness {
		p := real(t)
		return transfertest.Harness{
			Provider:  p,
			NewMemory: newMemory(lateArena(t, p)),
			Hostname:  "127.0.0.1",

			TimeoutHoldsSource: true,
		}
	})
}

// TestRealPorts: an engine of the real library listens on two ports, and both
// are known, so that neither comes back.
func TestRealPorts(t *testing.T) {
	p := real(t)
	s := newSide(t, p, sideOptions{})
	first := s.native.Ports()
	require.Len(t, first, 2)
	require.NoError(t, s.Fence(t.Context()))
	for _, port := range s.native.Ports() {
		require.NotContains(t, first, port)
	}
}

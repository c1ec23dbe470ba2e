package mooncake

import (
	"errors"
	"flag"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

var ipv6 = flag.Bool("mooncake.ipv6", false, "this process uses the real library with IPv6")

func TestIPv6(t *testing.T) {
	probe, err := net.Listen("tcp", "[::1]:0")
	if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
		t.Skip("this machine has no IPv6 loopback")
	}
	require.NoError(t, err)
	require.NoError(t, probe.Close())
	eachLibrary(t, func(t *testing.T, p *Provider, library string) {
		if library == kept["PYPTO_MOONCAKE_LIBRARY"] && !*ipv6 {
			t.Skip("the real library takes one family of addresses per process; make conformance-mooncake gives this test one")
		}
		source, target := newSide(t, p, sideOptions{host: "::1"}), newSide(t, p, sideOptions{host: "::1", rank: 1})
		source.noise(1)
		v := source.write(t, source.connect(t, target.target()), pieces(64<<10, 4))
		require.Equal(t, pd.Done, v.Settlement, v.Detail)
		require.Equal(t, source.memory.Bytes(), target.memory.Bytes())
	})
}

package mooncake

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/cgo/dl"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/tests/fakelib"
)

func TestOptionsAreChecked(t *testing.T) {
	for want, o := range map[string]Options{
		`protocol "rdma": want tcp or ascend`:       {Protocol: "rdma"},
		`log level "loud"`:                          {LogLevel: "loud"},
		"ports 15000..15001: want at least 17":      {MinPort: 15000, MaxPort: 15001},
		"ports 80..9000":                            {MinPort: 80, MaxPort: 9000},
		"ascend base port 65535: want 1024..39935":  {AscendBasePort: 65535},
		"connect timeout 1µs, transfer timeout 10s": {ConnectTimeout: time.Microsecond},
	} {
		_, err := New(o)
		require.ErrorIs(t, err, pd.CodeInvalidConfig, want)
		require.ErrorContains(t, err, want)
	}
}

// TestNothingIsLoadedBeforeOpen: a provider that cannot work is made, named and
// asked for its facts; what is missing is told at Check and Open.
func TestNothingIsLoadedBeforeOpen(t *testing.T) {
	if !dl.Available {
		t.Skip(dl.ErrNoCgo)
	}
	p, err := New(Options{Library: filepath.Join(t.TempDir(), "absent.so")})
	require.NoError(t, err)
	require.Equal(t, "mooncake", p.Name())
	require.Equal(t, transfer.Facts{
		FenceProves: true, TerminalFreesSource: true, Acknowledged: true, Build: "mooncake-tcp/1/absent",
	}, p.Facts())
	err = p.Check(t.Context(), "127.0.0.1")
	require.ErrorIs(t, err, pd.CodeNativeLibraryMissing)
	for _, part := range []string{
		"find Mooncake Transfer Engine by explicit path", "absent.so: no such file or directory",
		"build Mooncake's transfer engine as a shared library with its C API", `"provider": "simulator"`,
	} {
		require.ErrorContains(t, err, part)
	}
	_, err = p.Open(t.Context(), transfer.Options{Identity: transfer.Identity{Boot: pd.NewBootID()}, Hostname: "127.0.0.1", AttemptTimeout: time.Second})
	require.ErrorIs(t, err, pd.CodeNativeLibraryMissing)
}

// TestWithoutCgo: the program builds and says what it lacks.
func TestWithoutCgo(t *testing.T) {
	if dl.Available {
		t.Skip("this test binary has cgo")
	}
	p, err := New(Options{})
	require.NoError(t, err)
	err = p.Check(t.Context(), "127.0.0.1")
	require.ErrorIs(t, err, pd.CodeNativeLibraryMissing)
	require.ErrorIs(t, err, dl.ErrNoCgo)
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	l := needFakes(t)
	p := tcp(t, l)
	before := p.Facts()
	require.NoError(t, p.Check(t.Context(), "127.0.0.1"))
	require.Equal(t, before, p.Facts())
	require.Regexp(t, `^mooncake-tcp/1/[0-9a-f]{64}$`, p.Facts().Build)
	require.ErrorContains(t, p.Check(t.Context(), ""), "hostname is empty: set transfer_hostname or host")
	err := p.Check(t.Context(), "no such host")
	require.ErrorIs(t, err, pd.CodeInvalidConfig)
	require.ErrorContains(t, err, "hostname no such host")
	require.ErrorContains(t, err, "give transfer_hostname an address of this machine")
}

func TestCheckWarnsOfLoopback(t *testing.T) {
	l := needFakes(t)
	var log bytes.Buffer
	p, err := New(Options{Library: l.TransferEngine, Log: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	require.NoError(t, p.Check(t.Context(), "127.0.0.1"))
	require.Contains(t, log.String(), "peers on other machines cannot use it")
	require.Contains(t, log.String(), "path="+l.TransferEngine)
	require.NoError(t, p.Check(t.Context(), "192.0.2.1"))
	require.Contains(t, log.String(), "no address of this machine")
}

func TestCheckOfAscend(t *testing.T) {
	l := needFakes(t)
	t.Setenv(envRoCE, "0")
	p := ascend(t, l)
	require.NoError(t, p.Check(t.Context(), "127.0.0.1"))
	require.Regexp(t, `^mooncake-ascend/1/[0-9a-f]{64}$`, p.Facts().Build)

	conf := filepath.Join(t.TempDir(), "hccn.conf")
	env := func(value string, set bool) func(string) (string, bool) {
		return func(string) (string, bool) { return value, set }
	}
	require.ErrorContains(t, checkRoCE(env("", false), conf), "HCCL_INTRA_ROCE_ENABLE is not set: set it to 1")
	require.ErrorContains(t, checkRoCE(env("yes", true), conf), `is "yes": want 0 or 1`)
	require.ErrorContains(t, checkRoCE(env("1", true), conf), "mount the host's file")
	require.NoError(t, os.WriteFile(conf, nil, 0o600))
	require.NoError(t, checkRoCE(env("1", true), conf))

	l.Set(fakelib.AclInitCode, 507899)
	err := ascend(t, l).Check(t.Context(), "127.0.0.1")
	require.ErrorContains(t, err, "ascend device: aclInit: code 507899 (internal): E507899: aclInit was told to fail")
}

// TestEnvironment: what a settlement rests on is enforced before the library is
// loaded, and a user's other value is an error that says why.
func TestEnvironment(t *testing.T) {
	o := Options{}
	o.withDefaults()
	env, err := environment(&o, "")
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"MC_RETRY_CNT": "1", "MC_TCP_ENABLE_CONNECTION_POOL": "1", "MC_FORCE_TCP": "1", "MC_LOG_LEVEL": "ERROR",
		"MC_MIN_RPC_PORT": "15000", "MC_MIN_PRC_PORT": "15000", "MC_MAX_RPC_PORT": "17000", "MC_MAX_PRC_PORT": "17000",
	}, env)
	for hostname, want := range map[string]string{"::1": "1", "127.0.0.1": "", "::ffff:127.0.0.1": "", "example.com": ""} {
		env, err = environment(&o, hostname)
		require.NoError(t, err)
		require.Equal(t, want, env["MC_USE_IPV6"], hostname)
		_, known := env["MC_USE_IPV6"]
		require.Equal(t, hostname != "example.com", known, "a name leaves it to the user")
	}
	o.Protocol, o.AscendAsync = Ascend, true
	env, err = environment(&o, "")
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"MC_RETRY_CNT": "1", "ASCEND_AUTO_CONNECT": "0", "MC_FORCE_TCP": "", "MC_LOG_LEVEL": "ERROR",
		"ASCEND_USE_ASYNC_TRANSFER": "1",
		"ASCEND_BASE_PORT":          "20000", "ASCEND_CONNECT_TIMEOUT": "10000", "ASCEND_TRANSFER_TIMEOUT": "10000",
		"MC_MIN_RPC_PORT": "15000", "MC_MIN_PRC_PORT": "15000", "MC_MAX_RPC_PORT": "17000", "MC_MAX_PRC_PORT": "17000",
	}, env)

	t.Run("the user's", func(t *testing.T) {
		t.Setenv("MC_RETRY_CNT", "9")
		t.Setenv("MC_TCP_PROTO", "1")
		t.Setenv("MC_FORCE_TCP", "1")
		_, err := environment(&o, "")
		require.ErrorContains(t, err, `MC_RETRY_CNT is "9": unset it or set it to 1: a hidden second try`)
		require.ErrorContains(t, err, `MC_TCP_PROTO is "1": unset it`)
		require.ErrorContains(t, err, `MC_FORCE_TCP is "1": unset it: it keeps the device transport out`)
		p, err := New(Options{})
		require.NoError(t, err)
		require.ErrorIs(t, p.Check(t.Context(), "127.0.0.1"), pd.CodeInvalidConfig)
	})
	t.Run("as wanted", func(t *testing.T) {
		t.Setenv("MC_RETRY_CNT", "1")
		t.Setenv("MC_LOG_LEVEL", "INFO")
		env, err := environment(&o, "")
		require.NoError(t, err)
		require.NotContains(t, env, "MC_LOG_LEVEL", "the user's own value stays")
	})
}

// TestLibrarySeesTheEnvironment: it is set where C code looks.
func TestLibrarySeesTheEnvironment(t *testing.T) {
	l := needFakes(t)
	e, err := tcp(t, l).Open(t.Context(), transfer.Options{Identity: transfer.Identity{Boot: pd.NewBootID()}, Hostname: "127.0.0.1", AttemptTimeout: time.Second})
	require.NoError(t, err)
	require.NoError(t, e.Close())
	require.Equal(t, int64(1), l.Get(fakelib.RetryCount))
}

// TestPortsOfEarlierBootsStayUnused: whoever still sends to one of them must
// not reach this boot's memory.
func TestPortsOfEarlierBootsStayUnused(t *testing.T) {
	l := needFakes(t)
	asked := map[int]bool{}
	s := newSide(t, tcp(t, l), sideOptions{portUsed: func(port int) bool {
		first := len(asked) == 0
		asked[port] = true
		return first
	}})
	ports := s.native.Ports()
	require.Len(t, ports, 1)
	require.Len(t, asked, 2, "the first port was taken, the second is used")
	require.Equal(t, "127.0.0.1:"+strconv.Itoa(ports[0]), s.Endpoint())

	_, err := openSide(t, tcp(t, l), sideOptions{portUsed: func(int) bool { return true }})
	require.ErrorContains(t, err, "createTransferEngine: the library took a port that an earlier engine had in 8 tries; widen the port range 15000..17000")
}

// TestPortsAreToldApart: engines that are created at once in one process do not
// take each other's ports for their own.
func TestPortsAreToldApart(t *testing.T) {
	l := needFakes(t)
	p := tcp(t, l)
	var sides [8]*side
	for i := range sides {
		sides[i] = newSide(t, p, sideOptions{rank: pd.Rank(i)})
	}
	var all sync.WaitGroup
	errs := make([]error, len(sides))
	for i, s := range sides {
		all.Go(func() { errs[i] = s.Fence(t.Context()) })
	}
	all.Wait()
	seen := map[int]bool{}
	for i, s := range sides {
		require.NoError(t, errs[i])
		ports := s.native.Ports()
		require.Len(t, ports, 1)
		require.False(t, seen[ports[0]])
		seen[ports[0]] = true
	}
}

func TestOwnListeners(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	ports, known := ownListeners()
	if !known {
		t.Skip("this system does not tell its sockets")
	}
	require.True(t, ports[port])
	require.NoError(t, listener.Close())
	ports, _ = ownListeners()
	require.False(t, ports[port])
}

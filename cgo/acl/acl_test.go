package acl

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/cgo/dl"
	"github.com/hw-native-sys/pypto-pd/tests/fakelib"
)

func TestMain(m *testing.M) {
	os.Unsetenv(EnvLibrary)
	os.Exit(m.Run())
}

// load gives the fake runtime.
func load(t testing.TB) *API {
	t.Helper()
	if !dl.Available {
		t.Skip(dl.ErrNoCgo)
	}
	l, err := fakelib.Build(t.TempDir())
	require.NoError(t, err)
	api, err := Load(Options{Path: l.Ascend})
	require.NoError(t, err)
	require.Equal(t, l.Ascend, api.Info().Path)
	return api
}

// onDevice runs a test on a thread that has the context of device 0.
func onDevice(t *testing.T, api *API) {
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	require.NoError(t, api.Init())
	require.NoError(t, api.SetDevice(0))
	t.Cleanup(func() { require.NoError(t, api.ResetDevice(0)) })
}

func TestDeviceMemory(t *testing.T) {
	api := load(t)
	onDevice(t, api)
	n, err := api.DeviceCount()
	require.NoError(t, err)
	require.Equal(t, 1, n)
	free, total, err := api.MemoryInfo()
	require.NoError(t, err)
	require.Equal(t, total, free)

	address, err := api.Malloc(1 << 20)
	require.NoError(t, err)
	after, _, err := api.MemoryInfo()
	require.NoError(t, err)
	require.Equal(t, free-1<<20, after)
	require.NoError(t, api.Fill(address, 1<<20, 7))
	got := make([]byte, 3)
	require.NoError(t, api.CopyIn(address+1, []byte{1}))
	require.NoError(t, api.CopyOut(address, got))
	require.Equal(t, []byte{7, 1, 7}, got)
	require.NoError(t, api.Free(address))
	require.Equal(t, &Error{Call: "aclrtFree", Code: 100000, Text: "E100000: not an address of aclrtMalloc"}, api.Free(address))
	require.Equal(t, "1.15.0", api.Version())
	require.Equal(t, "Ascend910B-fake", api.SocName())
}

func TestInitIsOncePerProcess(t *testing.T) {
	require.NoError(t, load(t).Init())
	require.NoError(t, load(t).Init(), "somebody did it before")
}

// TestContextIsOfTheThread: another thread has none, and its error is its own.
func TestContextIsOfTheThread(t *testing.T) {
	api := load(t)
	onDevice(t, api)
	errs := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: a fresh thread, and it ends
		_, err := api.Malloc(64)
		errs <- err
	}()
	require.EqualError(t, <-errs, "aclrtMalloc: code 107002 (the thread has no device context): E107002: the context is empty")
	require.EqualError(t, api.SetDevice(5), "aclrtSetDevice: code 107001 (wrong use): E107001: invalid device")
}

func TestNothingForeignReachesC(t *testing.T) {
	api := load(t)
	onDevice(t, api)
	for _, n := range []int64{0, -1} {
		_, err := api.Malloc(n)
		require.ErrorContains(t, err, "want more than 0")
		require.Error(t, api.Fill(4096, n, 0))
	}
	require.Error(t, api.Free(0))
	require.Error(t, api.CopyIn(0, []byte{1}))
	require.Error(t, api.CopyIn(4096, nil))
	require.Error(t, api.CopyOut(4096, nil))
	require.Error(t, api.CopyOut(^uintptr(0), []byte{1}))
}

func TestMissingRuntime(t *testing.T) {
	if !dl.Available {
		_, err := Load(Options{})
		require.ErrorIs(t, err, dl.ErrNoCgo)
		return
	}
	_, err := Load(Options{Path: filepath.Join(t.TempDir(), "no.so")})
	require.ErrorContains(t, err, "find Ascend runtime by explicit path")
	require.ErrorContains(t, err, "install CANN and source its set_env.sh")
	required, optional := Symbols()
	require.Len(t, required, 9)
	require.Equal(t, []string{"aclGetRecentErrMsg", "aclrtGetVersion", "aclrtGetSocName"}, optional)
}

package mooncake

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/transfertest"
	"github.com/hw-native-sys/pypto-pd/tests/fakelib"
)

// ascend is a provider over the fake runtime, whose device memory happens to be
// memory of this process.
func ascend(t testing.TB, l *fakelib.Libraries) *Provider {
	p, err := New(Options{Protocol: Ascend, Library: l.AscendTransferEngine, AscendLibrary: l.Ascend})
	require.NoError(t, err)
	return p
}

// windowed lets a test look into the fake runtime's device memory.
type windowed struct{ transfer.Memory }

func (w windowed) Bytes() []byte {
	base := w.Base()
	// An address that Go did not allocate; it stays until the arena is closed.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&base)), w.Len())
}

func TestAscendConformance(t *testing.T) {
	transfertest.Run(t, func(t *testing.T) transfertest.Harness {
		l := needFakes(t)
		p := ascend(t, l)
		arena := lateArena(t, p)
		return transfertest.Harness{
			Provider: p,
			Stalled:  stalledProvider{p, l},
			NewMemory: func(t testing.TB, size int64) transfer.Memory {
				return windowed{newMemory(arena)(t, size)}
			},
			Hostname: "127.0.0.1",

			TimeoutHoldsSource: true,
		}
	})
}

func TestDeviceMemory(t *testing.T) {
	l := needFakes(t)
	a, err := ascend(t, l).NewArena(0)
	require.NoError(t, err)
	m, err := a.Allocate("kv", 5000)
	require.NoError(t, err)
	require.Nil(t, m.Bytes())
	require.Zero(t, m.Base()%transfer.Alignment)
	device, ok := m.(transfer.Copier)
	require.True(t, ok)

	got := make([]byte, 5000)
	require.NoError(t, device.CopyOut(0, got))
	require.Equal(t, make([]byte, 5000), got, "device memory begins as zeroes")

	want := bytes.Repeat([]byte("page"), 64)
	require.NoError(t, device.CopyIn(5000-256, want))
	require.NoError(t, device.CopyOut(5000-256, got[:256]))
	require.Equal(t, want, got[:256])
	for _, offset := range []int64{-1, 5000 - 255, 5000, 1 << 62} {
		require.Error(t, device.CopyIn(offset, want), offset)
		require.Error(t, device.CopyOut(offset, want), offset)
	}
	require.NoError(t, device.CopyOut(5000, nil))

	l.Set(fakelib.AclCopyCode, 507011)
	require.ErrorContains(t, device.CopyOut(0, got), "aclrtMemcpy: code 507011 (internal): E507011: aclrtMemcpy was told to fail")
	l.Set(fakelib.AclCopyCode, 0)

	require.NoError(t, a.Close())
	require.NoError(t, a.Close(), "Close is idempotent")
	_, err = a.Allocate("kv", 64)
	require.ErrorIs(t, err, pd.CodeOwnerLost)
}

func TestDeviceErrorsSayWhatToDo(t *testing.T) {
	l := needFakes(t)
	l.Set(fakelib.AclMemory, 1<<20)
	a, err := ascend(t, l).NewArena(0)
	require.NoError(t, err)
	_, err = a.Allocate("kv", 1<<21)
	require.ErrorIs(t, err, pd.CodeCapacityExhausted)
	require.ErrorContains(t, err, "aclrtMalloc: code 207001 (out of memory): E207001: out of memory; device 0 has 1048576 of 1048576 bytes free")
	l.Set(fakelib.AclMisaligns, 8)
	_, err = a.Allocate("kv", 4096)
	require.ErrorContains(t, err, "aclrtMalloc: the address is not a multiple of 64")
	require.NoError(t, a.Close())

	p, err := New(Options{Protocol: Ascend, Library: l.AscendTransferEngine, AscendLibrary: l.Ascend, Device: func(r pd.Rank) int { return int(r) }})
	require.NoError(t, err)
	_, err = p.NewArena(1)
	require.ErrorContains(t, err, "device 1: this process sees 1 devices; check ASCEND_RT_VISIBLE_DEVICES")
	l.Set(fakelib.AclDevices, 2)
	a, err = p.NewArena(1)
	require.NoError(t, err)
	require.NoError(t, a.Close())
}

// TestHostMemory: what TCP moves is outside of Go's heap and begins as zeroes.
func TestHostMemory(t *testing.T) {
	p, err := New(Options{})
	require.NoError(t, err)
	a, err := p.NewArena(0)
	require.NoError(t, err)
	m, err := a.Allocate("kv", 100_000)
	require.NoError(t, err)
	require.Zero(t, m.Base()%4096)
	require.Equal(t, make([]byte, 100_000), m.Bytes())
	for _, bytes := range []int64{0, -1, 1 << 62} {
		_, err = a.Allocate("kv", bytes)
		require.ErrorIs(t, err, pd.CodeInvalidConfig, bytes)
	}
	require.NoError(t, a.Close())
}

package te

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/cgo/dl"
	"github.com/hw-native-sys/pypto-pd/cgo/handle"
	"github.com/hw-native-sys/pypto-pd/tests/fakelib"
)

func TestMain(m *testing.M) {
	os.Unsetenv(EnvLibrary)
	goleak.VerifyTestMain(m)
}

// load gives the fake library.
func load(t testing.TB) (*API, *fakelib.Libraries) {
	t.Helper()
	if !dl.Available {
		t.Skip(dl.ErrNoCgo)
	}
	l, err := fakelib.Build(t.TempDir())
	require.NoError(t, err)
	api, err := Load(Options{Path: l.TransferEngine, Env: map[string]string{"MC_FORCE_TCP": "1"}})
	require.NoError(t, err)
	require.Equal(t, l.TransferEngine, api.Info().Path)
	return api, l
}

func create(t testing.TB, api *API) *Engine {
	e, err := api.Create("127.0.0.1")
	require.NoError(t, err)
	return e
}

// pages is memory outside of Go's heap.
func pages(t testing.TB, bytes int) ([]byte, uintptr) {
	b, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(b)) })
	return b, uintptr(unsafe.Pointer(unsafe.SliceData(b)))
}

// end polls until the batch of an owner has ended.
func end(t testing.TB, e *Engine, owner handle.Handle) Report {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		for _, r := range e.Poll(nil, time.Millisecond, 0) {
			if r.Owner == owner && r.Ended {
				return r
			}
		}
	}
	t.Fatal("the batch does not end")
	return Report{}
}

func TestWriteAndRead(t *testing.T) {
	api, _ := load(t)
	source, target := create(t, api), create(t, api)
	from, fromBase := pages(t, 1<<20)
	to, toBase := pages(t, 1<<20)
	for i := range from {
		from[i] = byte(i * 7)
	}
	require.NoError(t, target.Register(toBase, 1<<20, "cpu:0"))
	segment, err := source.OpenSegment(target.Name())
	require.NoError(t, err)
	require.Positive(t, segment)

	requests := make([]Request, MaxTasks)
	for i := range requests {
		offset := uintptr(i * 4096)
		requests[i] = Request{Source: fromBase + offset, Target: toBase + 1<<20 - 4096 - offset, Segment: segment, Bytes: 4096}
	}
	require.NoError(t, source.Submit(Write, requests, 77))
	r := end(t, source, 77)
	require.Equal(t, Report{Owner: 77, Ended: true, Freed: true, Tasks: MaxTasks, Completed: MaxTasks}, r)
	require.Zero(t, source.Live())
	for i := range requests {
		require.Equal(t, from[i*4096:(i+1)*4096], to[1<<20-(i+1)*4096:1<<20-i*4096], "page %d", i)
	}

	clear(from)
	require.NoError(t, source.Submit(Read, []Request{{Source: fromBase, Target: toBase, Segment: segment, Bytes: 1 << 20}}, 78))
	require.Equal(t, 1, end(t, source, 78).Completed)
	require.Equal(t, to, from)

	require.NoError(t, target.Unregister(toBase))
	require.Equal(t, &Error{Call: "unregisterLocalMemory", Code: -3}, target.Unregister(toBase))
	require.NoError(t, source.Submit(Write, requests[:2], 79))
	r = end(t, source, 79)
	require.Equal(t, Report{Owner: 79, Ended: true, Freed: true, Tasks: 2, Failed: 2, Task: 1, Status: Failed}, r, "the last task is asked first")
	require.Zero(t, source.Destroy())
	require.Zero(t, target.Destroy())
}

// TestNothingForeignReachesC: what would be followed as a pointer, or end the
// process, is an error here.
func TestNothingForeignReachesC(t *testing.T) {
	api, _ := load(t)
	e := create(t, api)
	defer e.Destroy()
	for _, host := range []string{"", "a\x00b"} {
		_, err := api.Create(host)
		require.ErrorContains(t, err, "createTransferEngine: code -1: host", "%q", host)
		_, err = e.OpenSegment(host)
		require.ErrorContains(t, err, "openSegmentNoCache: code -1", "%q", host)
		require.ErrorContains(t, e.Register(4096, 4096, host), "registerLocalMemory: code -1", "%q", host)
	}
	require.Error(t, e.Register(0, 64, "cpu:0"))
	require.Error(t, e.Register(4096, 0, "cpu:0"))
	require.Error(t, e.Register(4096, -64, "cpu:0"))
	_, err := e.OpenSegment("127.0.0.1:1")
	require.ErrorContains(t, err, "openSegmentNoCache: code -1: the peer does not answer or refuses")

	good := Request{Source: 4096, Target: 4096, Segment: 1, Bytes: 64}
	require.ErrorContains(t, e.Submit(7, []Request{good}, 1), "opcode 7: want 0 or 1")
	require.ErrorContains(t, e.Submit(Write, nil, 1), "0 requests: want 1..256")
	require.ErrorContains(t, e.Submit(Write, make([]Request, MaxTasks+1), 1), "257 requests: want 1..256")
	for want, spoil := range map[string]func(r *Request){
		"an address is 0":              func(r *Request) { r.Source = 0 },
		"request 1: an address is 0":   func(r *Request) { r.Target = 0 },
		"length 0: want more than 0":   func(r *Request) { r.Bytes = 0 },
		"length -1: want more than 0":  func(r *Request) { r.Bytes = -1 },
		"segment -1 does not exist":    func(r *Request) { r.Segment = -1 },
		"address plus length overflow": func(r *Request) { r.Target, r.Bytes = math.MaxUint-63, math.MaxInt64 },
	} {
		bad := good
		spoil(&bad)
		require.ErrorContains(t, e.Submit(Write, []Request{good, bad}, 1), want)
	}
	var refusal *Error
	require.ErrorAs(t, e.Submit(Write, []Request{good}, 1), &refusal, "segment 1 was never opened")
	require.True(t, refusal.Refused())
	require.Equal(t, "submitTransfer: code 1 (invalid argument)", refusal.Error())
	require.Zero(t, e.Live(), "a refused batch is freed at once")
}

func TestErrorsNameCallAndCode(t *testing.T) {
	for want, e := range map[string]*Error{
		"registerLocalMemory: code -7 (address overlaps a registered one)": {Call: "registerLocalMemory", Code: -7},
		"submitTransfer: code 200 (metadata): text":                        {Call: "submitTransfer", Code: 200, Text: "text"},
		"freeBatchID: code 12345":                                          {Call: "freeBatchID", Code: 12345},
	} {
		require.Equal(t, want, e.Error())
	}
	require.False(t, (&Error{Call: "submitTransfer", Code: 8}).Refused())
	require.False(t, (&Error{Call: "freeBatchID", Code: 1}).Refused())
	require.Equal(t, "TIMEOUT", Timeout.String())
	require.Equal(t, "status 99", Status(99).String())
}

func TestMissingLibrary(t *testing.T) {
	if !dl.Available {
		_, err := Load(Options{})
		require.ErrorIs(t, err, dl.ErrNoCgo)
		return
	}
	_, err := Load(Options{Path: filepath.Join(t.TempDir(), "no.so")})
	require.ErrorContains(t, err, "find Mooncake Transfer Engine by explicit path")
	l, err := fakelib.Build(t.TempDir())
	require.NoError(t, err)
	_, err = Load(Options{Path: l.Ascend})
	require.ErrorContains(t, err, "lacks createTransferEngine, destroyTransferEngine, ")
	found, err := Identify(Options{Path: l.TransferEngine})
	require.NoError(t, err)
	api, err := Load(Options{Path: l.TransferEngine})
	require.NoError(t, err)
	require.Equal(t, api.Info().SHA256, found.SHA256)
	require.Equal(t, api.Info().Path, found.Path)
	require.Len(t, Symbols(), 10)
}

// BenchmarkSubmitAndPoll is the cost of Go and cgo per segment, over transfers
// of 64 bytes that the library makes meanwhile.
func BenchmarkSubmitAndPoll(b *testing.B) {
	api, _ := load(b)
	source, target := create(b, api), create(b, api)
	defer source.Destroy()
	defer target.Destroy()
	_, fromBase := pages(b, 1<<20)
	_, toBase := pages(b, 1<<20)
	require.NoError(b, target.Register(toBase, 1<<20, "cpu:0"))
	segment, err := source.OpenSegment(target.Name())
	require.NoError(b, err)
	requests := make([]Request, MaxTasks)
	for i := range requests {
		requests[i] = Request{Source: fromBase + uintptr(i*128), Target: toBase + uintptr(i*128), Segment: segment, Bytes: 64}
	}
	var submitting time.Duration
	var reports []Report
	b.ReportAllocs()
	segments := 0
	for b.Loop() {
		begin := time.Now()
		require.NoError(b, source.Submit(Write, requests, 1))
		submitting += time.Since(begin)
		segments += len(requests)
		for ended := false; !ended; {
			reports = source.Poll(reports[:0], time.Millisecond, 0)
			for _, r := range reports {
				ended = ended || r.Ended
			}
		}
	}
	b.ReportMetric(float64(submitting.Nanoseconds())/float64(segments), "submit-ns/segment")
}

func ExampleStatus() {
	fmt.Println(Completed, Failed, Status(12))
	// Output: COMPLETED FAILED status 12
}

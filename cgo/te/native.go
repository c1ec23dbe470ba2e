//go:build cgo && linux

package te

/*
#cgo CFLAGS: -std=c11 -Wall -Wextra -I${SRCDIR}/../../include
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/hw-native-sys/pypto-pd/cgo/dl"
	"github.com/hw-native-sys/pypto-pd/cgo/handle"
)

// API is a loaded library.
type API struct {
	library *dl.Library
	table   *C.pypto_te_table // never freed, as the library is never unloaded
}

// Load finds, checks and loads the library, once per process and file. The
// environment of the options is set first.
func Load(o Options) (*API, error) {
	for name, value := range o.Env {
		if err := dl.Setenv(name, value); err != nil {
			return nil, err
		}
	}
	library, err := dl.Open(o.request())
	if err != nil {
		return nil, err
	}
	addresses, err := library.Resolve(symbols)
	if err != nil {
		return nil, err
	}
	table := C.pypto_te_bind((*C.uintptr_t)(unsafe.Pointer(unsafe.SliceData(addresses))), C.size_t(len(addresses)))
	if table == nil {
		return nil, errors.New("bind Mooncake Transfer Engine: no memory for the table of functions")
	}
	return &API{library: library, table: table}, nil
}

// Info tells which file was loaded.
func (a *API) Info() dl.Info { return a.library.Info() }

// Engine is one native engine.
type Engine struct {
	// constant
	api    *API
	native unsafe.Pointer
	name   string

	// owned by the caller of Poll
	live     **C.pypto_te_batch // C memory: C reads it
	liveLen  int
	liveRoom int

	news *C.uint32_t // C memory: counts the submits, which a poll looks at

	mu        sync.Mutex
	submitted []*C.pypto_te_batch // not yet polled
}

// Create makes an engine that peers reach by host. Its ports are chosen by the
// library. The caller destroys it.
func (a *API) Create(host string) (*Engine, error) {
	if err := dl.CheckString("host", host); err != nil {
		return nil, &Error{Call: "createTransferEngine", Code: -1, Text: err.Error()}
	}
	text := C.CString(host)
	defer C.free(unsafe.Pointer(text))
	e := &Engine{api: a, news: (*C.uint32_t)(C.calloc(1, C.sizeof_uint32_t))}
	if e.news == nil {
		return nil, errors.New("no memory for an engine")
	}
	dl.Guard(func() { e.native = C.pypto_te_create(a.table, text) })
	if e.native == nil {
		C.free(unsafe.Pointer(e.news))
		return nil, &Error{Call: "createTransferEngine", Code: -1, Text: "no engine; the library's own log says why"}
	}
	var room [256]C.char
	if code := C.pypto_te_name(a.table, e.native, &room[0], C.size_t(len(room))); code != 0 {
		C.pypto_te_destroy(a.table, e.native)
		C.free(unsafe.Pointer(e.news))
		return nil, &Error{Call: "getLocalIpAndPort", Code: int(code)}
	}
	e.name = C.GoString(&room[0])
	if e.name == "" {
		C.pypto_te_destroy(a.table, e.native)
		C.free(unsafe.Pointer(e.news))
		return nil, &Error{Call: "getLocalIpAndPort", Code: 0, Text: "the engine has no name"}
	}
	return e, nil
}

// Name is "host:port", which peers open.
func (e *Engine) Name() string { return e.name }

// Destroy ends the engine and blocks until it has: up to a second on a healthy
// machine, and longer where a peer hangs. It returns how many native batches
// could not be freed; their memory is lost for good. The Engine must not be
// used any more.
func (e *Engine) Destroy() (leaked int) {
	C.pypto_te_destroy(e.api.table, e.native)
	e.native = nil
	e.collect()
	leaked = e.liveLen
	for _, b := range e.liveSlice() {
		C.free(unsafe.Pointer(b))
	}
	C.free(unsafe.Pointer(e.live))
	C.free(unsafe.Pointer(e.news))
	e.live, e.liveLen, e.liveRoom, e.news = nil, 0, 0, nil
	return leaked
}

// OpenSegment gets a peer's segment by its engine's name, after asking the peer
// anew. It blocks, for a minute where a peer has stopped. That it succeeds
// proves nothing: a segment that was open before stays so when its peer is
// gone.
func (e *Engine) OpenSegment(name string) (Segment, error) {
	const call = "openSegmentNoCache"
	if err := dl.CheckString("segment", name); err != nil {
		return 0, &Error{Call: call, Code: -1, Text: err.Error()}
	}
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	id := C.pypto_te_open_segment(e.api.table, e.native, text)
	if id <= 0 {
		return 0, &Error{Call: call, Code: int(id), Text: "the peer does not answer or refuses"}
	}
	return Segment(id), nil
}

// Register makes memory known to the engine and to its peers. The memory must
// stay until Unregister or Destroy returned; it must not be of the Go heap.
func (e *Engine) Register(address uintptr, bytes int64, location string) error {
	const call = "registerLocalMemory"
	if err := dl.CheckString("location", location); err != nil {
		return &Error{Call: call, Code: -1, Text: err.Error()}
	}
	if address == 0 || bytes <= 0 {
		return &Error{Call: call, Code: -1, Text: fmt.Sprintf("%d bytes at a given address: want more than 0 and an address that is not 0", bytes)}
	}
	text := C.CString(location)
	defer C.free(unsafe.Pointer(text))
	code := C.pypto_te_register(e.api.table, e.native, C.uintptr_t(address), C.size_t(bytes), text)
	if code != 0 {
		return &Error{Call: call, Code: int(code)}
	}
	return nil
}

// Unregister takes memory back. It does not stop what peers are writing.
func (e *Engine) Unregister(address uintptr) error {
	if code := C.pypto_te_unregister(e.api.table, e.native, C.uintptr_t(address)); code != 0 {
		return &Error{Call: "unregisterLocalMemory", Code: int(code)}
	}
	return nil
}

// Submit begins a batch of copies, all of one kind. Without an error every
// request was accepted. With an error that is Refused, or no *Error at all,
// nothing was begun and there is no batch. With any other error the batch
// exists and some of it may have begun; it is polled like others. Reports name
// the batch by its owner. The slice is the caller's again when Submit returned.
func (e *Engine) Submit(op Opcode, requests []Request, owner handle.Handle) error {
	if err := check(op, requests); err != nil {
		return err
	}
	b := C.pypto_te_batch_new(C.uint32_t(len(requests)))
	if b == nil {
		return errors.New("no memory for a batch")
	}
	b.owner = C.uint64_t(owner)
	native := unsafe.Slice((*C.pypto_te_request)(unsafe.Add(unsafe.Pointer(b), requestsAt)), len(requests))
	for i := range requests {
		r, n := &requests[i], &native[i]
		n.source, n.target_offset = C.uintptr_t(r.Source), C.uint64_t(r.Target)
		n.target_id, n.length = C.int32_t(r.Segment), C.uint64_t(r.Bytes)
	}
	code := C.pypto_te_submit(e.api.table, e.native, b, C.int(op))
	if b.native == C.PYPTO_TE_NO_BATCH || b.native == 0 {
		C.free(unsafe.Pointer(b))
		return errors.New("allocateBatchID: the library has no batch to give")
	}
	if code == C.PYPTO_TE_CODE_INVALID_ARGUMENT || code == C.PYPTO_TE_CODE_TOO_MANY_REQUESTS {
		C.free(unsafe.Pointer(b))
		return &Error{Call: "submitTransfer", Code: int(code)}
	}
	e.mu.Lock()
	e.submitted = append(e.submitted, b)
	e.mu.Unlock()
	e.counter().Add(1)
	if code != 0 {
		return &Error{Call: "submitTransfer", Code: int(code)}
	}
	return nil
}

// counter is the count of submits as Go sees it.
func (e *Engine) counter() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(e.news)) }

// requestsAt is where a batch's requests begin.
const requestsAt = C.sizeof_pypto_te_batch

// Yielding makes the calling thread interrupt nobody when it wakes up, if the system
// allows it: the library's threads, which copy, come before the one that polls. The
// caller has locked the thread, and never unlocks it.
func Yielding() { _ = C.pypto_te_yielding() }

// Live counts the batches that are not freed. It belongs on the thread of Poll.
func (e *Engine) Live() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.submitted) + e.liveLen
}

// Poll asks for the status of every live batch in one call, again and again
// until something changed, a batch was submitted or wait is over, and appends what
// changed to dst. What has ended is freed. quiet is for how long nothing had
// happened before: the pauses between two looks are one part in 16 of that and of
// the wait, at least 50 us (200 us with four batches or more) and at most 1 ms.
func (e *Engine) Poll(dst []Report, wait, quiet time.Duration) []Report {
	seen := e.counter().Load() // before what it counts is collected
	e.collect()
	if e.liveLen == 0 {
		return dst
	}
	if C.pypto_te_poll(e.api.table, e.native, e.live, C.size_t(e.liveLen), e.news, C.uint32_t(seen), C.int64_t(wait), C.int64_t(quiet)) == 0 {
		return dst
	}
	live := e.liveSlice()
	kept := live[:0]
	for _, b := range live {
		if b.changed != 0 {
			dst = append(dst, report(b))
		}
		if b.freed == 0 {
			kept = append(kept, b)
			continue
		}
		C.free(unsafe.Pointer(b))
	}
	e.liveLen = len(kept)
	return dst
}

func report(b *C.pypto_te_batch) Report {
	r := Report{
		Owner: handle.Handle(b.owner), Ended: b.ended != 0, Freed: b.freed != 0, Tasks: int(b.count),
		Completed: int(b.completed), Short: int(b.partial), Failed: int(b.failed), Absent: int(b.absent),
		Task: int(b.first_task), Status: Status(b.first_status),
	}
	switch {
	case b.submit_code != 0:
		r.Call, r.Code = "submitTransfer", int(b.submit_code)
	case b.first_code != 0:
		r.Call, r.Code = "getTransferStatus", int(b.first_code)
	case b.free_code != 0:
		r.Call, r.Code = "freeBatchID", int(b.free_code)
	}
	return r
}

func (e *Engine) liveSlice() []*C.pypto_te_batch { return unsafe.Slice(e.live, e.liveLen) }

// collect takes what was submitted into the list that C reads.
func (e *Engine) collect() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if need := e.liveLen + len(e.submitted); need > e.liveRoom {
		room := max(64, 2*need)
		list := (**C.pypto_te_batch)(C.calloc(C.size_t(room), C.size_t(unsafe.Sizeof(e.live))))
		copy(unsafe.Slice(list, room), e.liveSlice())
		C.free(unsafe.Pointer(e.live))
		e.live, e.liveRoom = list, room
	}
	copy(unsafe.Slice(e.live, e.liveRoom)[e.liveLen:], e.submitted)
	e.liveLen += len(e.submitted)
	clear(e.submitted)
	e.submitted = e.submitted[:0]
}

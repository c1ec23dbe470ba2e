//go:build cgo && linux

package acl

/*
#cgo CFLAGS: -std=c11 -Wall -Wextra -I${SRCDIR}/../../include
#include <stdlib.h>
#include <string.h>
#include <pypto/acl_abi.h>

typedef struct { int code; char text[512]; } pypto_acl_result;

static pypto_acl_table *pypto_acl_bind(const uintptr_t *addresses, size_t count) {
	_Static_assert(sizeof(uintptr_t) == sizeof(void (*)(void)), "functions have the size of integers");
	if (count * sizeof(uintptr_t) != sizeof(pypto_acl_table)) return NULL;
	pypto_acl_table *t = malloc(sizeof *t);
	if (t != NULL) memcpy(t, addresses, sizeof *t);
	return t;
}

// The message is of this thread and is gone once it was read, so it is copied
// before anything else is called.
static void finish(const pypto_acl_table *t, pypto_acl_result *r, int code) {
	r->code = code;
	if (code == 0 || t->recent_error == NULL) return;
	const char *text = t->recent_error();
	if (text != NULL) strncpy(r->text, text, sizeof r->text - 1);
}

static void pypto_acl_init(const pypto_acl_table *t, pypto_acl_result *r) { finish(t, r, t->init(NULL)); }
static void pypto_acl_set_device(const pypto_acl_table *t, pypto_acl_result *r, int32_t d) { finish(t, r, t->set_device(d)); }
static void pypto_acl_reset_device(const pypto_acl_table *t, pypto_acl_result *r, int32_t d) { finish(t, r, t->reset_device(d)); }
static void pypto_acl_count(const pypto_acl_table *t, pypto_acl_result *r, uint32_t *n) { finish(t, r, t->device_count(n)); }
static void pypto_acl_free(const pypto_acl_table *t, pypto_acl_result *r, uintptr_t a) { finish(t, r, t->release((void *)a)); }
static void pypto_acl_fill(const pypto_acl_table *t, pypto_acl_result *r, uintptr_t a, int32_t v, size_t n) {
	finish(t, r, t->fill((void *)a, n, v, n));
}
static void pypto_acl_malloc(const pypto_acl_table *t, pypto_acl_result *r, size_t n, uintptr_t *a) {
	void *p = NULL;
	finish(t, r, t->allocate(&p, n, PYPTO_ACL_MALLOC_HUGE_FIRST));
	*a = (uintptr_t)p;
}
static void pypto_acl_copy_in(const pypto_acl_table *t, pypto_acl_result *r, uintptr_t a, const void *p, size_t n) {
	finish(t, r, t->copy((void *)a, n, p, n, PYPTO_ACL_HOST_TO_DEVICE));
}
static void pypto_acl_copy_out(const pypto_acl_table *t, pypto_acl_result *r, uintptr_t a, void *p, size_t n) {
	finish(t, r, t->copy(p, n, (const void *)a, n, PYPTO_ACL_DEVICE_TO_HOST));
}
static void pypto_acl_memory(const pypto_acl_table *t, pypto_acl_result *r, size_t *free, size_t *total) {
	finish(t, r, t->memory_info(PYPTO_ACL_MEM_HBM, free, total));
}
// -1: the runtime does not say.
static void pypto_acl_version(const pypto_acl_table *t, pypto_acl_result *r, int32_t *v) {
	if (t->version == NULL) { r->code = -1; return; }
	finish(t, r, t->version(&v[0], &v[1], &v[2]));
}
static const char *pypto_acl_soc(const pypto_acl_table *t) { return t->soc_name == NULL ? NULL : t->soc_name(); }
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/hw-native-sys/pypto-pd/cgo/dl"
)

// API is a loaded runtime.
type API struct {
	library *dl.Library
	table   *C.pypto_acl_table // never freed, as the library is never unloaded

	once    sync.Once
	initErr error
}

// Load finds, checks and loads the runtime, once per process and file.
func Load(o Options) (*API, error) {
	library, err := dl.Open(o.request())
	if err != nil {
		return nil, err
	}
	addresses, err := library.Resolve(symbols)
	if err != nil {
		return nil, err
	}
	table := C.pypto_acl_bind((*C.uintptr_t)(unsafe.Pointer(unsafe.SliceData(addresses))), C.size_t(len(addresses)))
	if table == nil {
		return nil, errors.New("bind Ascend runtime: no memory for the table of functions")
	}
	return &API{library: library, table: table}, nil
}

// Info tells which file was loaded.
func (a *API) Info() dl.Info { return a.library.Info() }

// call turns a result into an error.
func call(name string, f func(r *C.pypto_acl_result)) error {
	var r C.pypto_acl_result
	f(&r)
	if r.code != C.PYPTO_ACL_OK {
		return &Error{Call: name, Code: int(r.code), Text: C.GoString(&r.text[0])}
	}
	return nil
}

// Init initialises the runtime, once. That somebody else in the process did so
// before is as good; nobody here ever finalises it.
func (a *API) Init() error {
	a.once.Do(func() {
		var err error
		dl.Guard(func() { err = call("aclInit", func(r *C.pypto_acl_result) { C.pypto_acl_init(a.table, r) }) })
		var known *Error
		if !errors.As(err, &known) || known.Code != C.PYPTO_ACL_REPEAT_INITIALIZE {
			a.initErr = err
		}
	})
	return a.initErr
}

// SetDevice gives the calling thread the context of a logical device.
func (a *API) SetDevice(device int) (err error) {
	dl.Guard(func() {
		err = call("aclrtSetDevice", func(r *C.pypto_acl_result) { C.pypto_acl_set_device(a.table, r, C.int32_t(device)) })
	})
	return err
}

// ResetDevice gives up what this process holds of a device, for all threads.
func (a *API) ResetDevice(device int) error {
	return call("aclrtResetDevice", func(r *C.pypto_acl_result) { C.pypto_acl_reset_device(a.table, r, C.int32_t(device)) })
}

// DeviceCount counts the devices that this process sees.
func (a *API) DeviceCount() (int, error) {
	var n C.uint32_t
	err := call("aclrtGetDeviceCount", func(r *C.pypto_acl_result) { C.pypto_acl_count(a.table, r, &n) })
	return int(n), err
}

// Malloc allocates device memory, in huge pages if there are. The caller frees
// it.
func (a *API) Malloc(bytes int64) (uintptr, error) {
	if bytes <= 0 {
		return 0, &Error{Call: "aclrtMalloc", Code: 100000, Text: fmt.Sprintf("%d bytes: want more than 0", bytes)}
	}
	var address C.uintptr_t
	err := call("aclrtMalloc", func(r *C.pypto_acl_result) { C.pypto_acl_malloc(a.table, r, C.size_t(bytes), &address) })
	if err == nil && address == 0 {
		err = &Error{Call: "aclrtMalloc", Code: 0, Text: "no address"}
	}
	return uintptr(address), err
}

// Free frees device memory.
func (a *API) Free(address uintptr) error {
	if err := checkBuffer("aclrtFree", address, 1); err != nil {
		return err
	}
	return call("aclrtFree", func(r *C.pypto_acl_result) { C.pypto_acl_free(a.table, r, C.uintptr_t(address)) })
}

// Fill sets device memory to one byte.
func (a *API) Fill(address uintptr, bytes int64, value byte) error {
	if err := checkBuffer("aclrtMemset", address, bytes); err != nil {
		return err
	}
	return call("aclrtMemset", func(r *C.pypto_acl_result) {
		C.pypto_acl_fill(a.table, r, C.uintptr_t(address), C.int32_t(value), C.size_t(bytes))
	})
}

// CopyIn copies p into device memory.
func (a *API) CopyIn(address uintptr, p []byte) error {
	if err := checkBuffer("aclrtMemcpy", address, int64(len(p))); err != nil {
		return err
	}
	return call("aclrtMemcpy", func(r *C.pypto_acl_result) {
		C.pypto_acl_copy_in(a.table, r, C.uintptr_t(address), unsafe.Pointer(unsafe.SliceData(p)), C.size_t(len(p)))
	})
}

// CopyOut copies device memory into p.
func (a *API) CopyOut(address uintptr, p []byte) error {
	if err := checkBuffer("aclrtMemcpy", address, int64(len(p))); err != nil {
		return err
	}
	return call("aclrtMemcpy", func(r *C.pypto_acl_result) {
		C.pypto_acl_copy_out(a.table, r, C.uintptr_t(address), unsafe.Pointer(unsafe.SliceData(p)), C.size_t(len(p)))
	})
}

// MemoryInfo tells how many bytes of the thread's device are free, and how many
// it has.
func (a *API) MemoryInfo() (free, total int64, err error) {
	var f, n C.size_t
	err = call("aclrtGetMemInfo", func(r *C.pypto_acl_result) { C.pypto_acl_memory(a.table, r, &f, &n) })
	return int64(f), int64(n), err
}

// Version is the runtime's version, or "" if it does not say.
func (a *API) Version() string {
	var v [3]C.int32_t
	if call("aclrtGetVersion", func(r *C.pypto_acl_result) { C.pypto_acl_version(a.table, r, &v[0]) }) != nil {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2])
}

// SocName is the name of the thread's device, or "" if the runtime does not
// say.
func (a *API) SocName() string {
	name := C.pypto_acl_soc(a.table)
	if name == nil {
		return ""
	}
	return C.GoString(name)
}

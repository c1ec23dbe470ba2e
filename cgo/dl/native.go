//go:build cgo && linux

package dl

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { pypto_dl_signals = 65 };

// dlerror is of the calling thread, so it is copied here.
static uintptr_t pypto_dl_open(const char *path, char *text, size_t room) {
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (handle == NULL) {
		const char *why = dlerror();
		strncpy(text, why != NULL ? why : "dlopen gave no reason", room - 1);
	}
	return (uintptr_t)handle;
}

// pypto_dl_signals_save remembers the disposition of every signal; a signal
// that has none, such as those of the C library itself, keeps a zero mark.
typedef struct { int known; struct sigaction action; } pypto_dl_disposition;

static pypto_dl_disposition *pypto_dl_signals_save(void) {
	pypto_dl_disposition *all = calloc(pypto_dl_signals, sizeof *all);
	if (all == NULL) abort();
	for (int i = 1; i < pypto_dl_signals; i++) all[i].known = sigaction(i, NULL, &all[i].action) == 0;
	return all;
}

// pypto_dl_signals_restore puts back what changed.
static void pypto_dl_signals_restore(pypto_dl_disposition *all) {
	for (int i = 1; i < pypto_dl_signals; i++) {
		struct sigaction now;
		if (!all[i].known || sigaction(i, NULL, &now) != 0) continue;
		if (now.sa_sigaction == all[i].action.sa_sigaction && now.sa_flags == all[i].action.sa_flags) continue;
		sigaction(i, &all[i].action, NULL);
	}
	free(all);
}

static uintptr_t pypto_dl_lookup(uintptr_t handle, const char *name) {
	return (uintptr_t)dlsym((void *)handle, name);
}

static int pypto_dl_setenv(const char *name, const char *value) {
	return (*value == 0 ? unsetenv(name) : setenv(name, value, 1)) == 0 ? 0 : errno;
}

// 1: will be inherited by a child; 0: will not, or is no descriptor.
static int pypto_dl_inheritable(int fd) {
	int flags = fcntl(fd, F_GETFD);
	return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

static void pypto_dl_seal(int fd) {
	int flags = fcntl(fd, F_GETFD);
	if (flags >= 0) fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
}
*/
import "C"

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

// Available says whether this program can call native libraries.
const Available = true

func open(path string) (uintptr, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var text [2048]C.char
	var handle C.uintptr_t
	Guard(func() { handle = C.pypto_dl_open(name, &text[0], C.size_t(len(text))) })
	if handle == 0 {
		return 0, errors.New(C.GoString(&text[0]))
	}
	return uintptr(handle), nil
}

func lookup(handle uintptr, symbol string) uintptr {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	return uintptr(C.pypto_dl_lookup(C.uintptr_t(handle), name))
}

func setenv(name, value string) error {
	n, v := C.CString(name), C.CString(value)
	defer C.free(unsafe.Pointer(n))
	defer C.free(unsafe.Pointer(v))
	if code := C.pypto_dl_setenv(n, v); code != 0 {
		return os.NewSyscallError("setenv "+name, syscall.Errno(code))
	}
	return nil
}

// keepSignals runs a call and undoes what it did to signal dispositions.
func keepSignals(call func()) {
	all := C.pypto_dl_signals_save()
	call()
	C.pypto_dl_signals_restore(all)
}

// inheritable lists the descriptors that a child process would get.
func inheritable() map[int]bool {
	open := map[int]bool{}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return open // without /proc nothing can be known
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && C.pypto_dl_inheritable(C.int(fd)) == 1 {
			open[fd] = true
		}
	}
	return open
}

func closeOnExec(fd int) { C.pypto_dl_seal(C.int(fd)) }

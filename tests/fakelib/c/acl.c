/*
 * An Ascend runtime for tests: device memory is memory of this process, and
 * the rules are the real ones: a context per thread, a message per thread that
 * is gone once it was read.
 */
#define _GNU_SOURCE
#include "knobs.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_ALLOCATIONS = 1024, HUGE_PAGE = 2 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { char *base; size_t length, room; char *mapped; } allocations[MAX_ALLOCATIONS];
static int allocation_count, initialised;
static int64_t used;
static _Thread_local int32_t device = -1;
static _Thread_local char message[256], read_message[256];

static int fail(int code, const char *text) {
	snprintf(message, sizeof message, "E%d: %s", code, text);
	return code;
}

static int context(void) { return device < 0 ? fail(107002, "the context is empty") : 0; }

static int64_t devices(void) { return knob(K_ACL_DEVICES) > 0 ? knob(K_ACL_DEVICES) : 1; }
static int64_t capacity(void) { return knob(K_ACL_MEMORY) > 0 ? knob(K_ACL_MEMORY) : INT64_C(1) << 30; }

int fakelib_acl_owns(const void *p, size_t n) {
	int owns = 0;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < allocation_count; i++)
		owns |= (const char *)p >= allocations[i].base && (const char *)p + n <= allocations[i].base + allocations[i].length;
	pthread_mutex_unlock(&lock);
	return owns;
}

int aclInit(const char *config) {
	(void)config;
	if (knob(K_ACL_INIT_CODE)) return fail((int)knob(K_ACL_INIT_CODE), "aclInit was told to fail");
	if (initialised) return fail(100002, "repeat initialise");
	initialised = 1;
	return 0;
}

const char *aclGetRecentErrMsg(void) {
	if (message[0] == 0) return NULL;
	memcpy(read_message, message, sizeof message);
	message[0] = 0;
	return read_message;
}

int aclrtGetVersion(int32_t *major, int32_t *minor, int32_t *patch) {
	*major = 1, *minor = 15, *patch = 0;
	return 0;
}

const char *aclrtGetSocName(void) { return "Ascend910B-fake"; }

int aclrtGetDeviceCount(uint32_t *n) {
	if (!initialised) return fail(100001, "not initialised");
	*n = (uint32_t)devices();
	return 0;
}

int aclrtSetDevice(int32_t d) {
	if (!initialised) return fail(100001, "not initialised");
	if (d < 0 || d >= devices()) return fail(107001, "invalid device");
	device = d;
	return 0;
}

int aclrtGetDevice(int32_t *d) {
	if (context()) return 107002;
	*d = device;
	return 0;
}

int aclrtResetDevice(int32_t d) {
	if (d != device) return fail(107001, "invalid device");
	device = -1;
	return 0;
}

int aclrtGetMemInfo(int attribute, size_t *available, size_t *total) {
	(void)attribute;
	if (context()) return 107002;
	*available = (size_t)(capacity() - used), *total = (size_t)capacity();
	return 0;
}

int aclrtMalloc(void **p, size_t n, int policy) {
	(void)policy;
	if (context()) return 107002;
	if (knob(K_ACL_MALLOC_CODE)) return fail((int)knob(K_ACL_MALLOC_CODE), "aclrtMalloc was told to fail");
	pthread_mutex_lock(&lock);
	int code = 0;
	if (n == 0) code = fail(100000, "size is 0");
	else if (used + (int64_t)n > capacity() || allocation_count == MAX_ALLOCATIONS) code = fail(207001, "out of memory");
	if (code == 0) {
		size_t room = n + 2 * HUGE_PAGE;
		char *mapped = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (mapped == MAP_FAILED) abort();
		char *base = (char *)(((uintptr_t)mapped + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE) + knob(K_ACL_MISALIGNS);
		memset(base, 0xA5, n < 4096 ? n : 4096); /* never zero by itself */
		allocations[allocation_count].base = base, allocations[allocation_count].mapped = mapped;
		allocations[allocation_count].length = n, allocations[allocation_count++].room = room;
		used += (int64_t)n;
		*p = base;
		count(C_ALLOCATIONS, 1);
	}
	pthread_mutex_unlock(&lock);
	return code;
}

int aclrtFree(void *p) {
	if (context()) return 107002;
	pthread_mutex_lock(&lock);
	int code = 1;
	for (int i = 0; i < allocation_count; i++) {
		if (allocations[i].base != (char *)p) continue;
		munmap(allocations[i].mapped, allocations[i].room);
		used -= (int64_t)allocations[i].length;
		allocations[i] = allocations[--allocation_count];
		count(C_ALLOCATIONS, -1);
		code = 0;
		break;
	}
	pthread_mutex_unlock(&lock);
	return code == 0 ? 0 : fail(100000, "not an address of aclrtMalloc");
}

int aclrtMemcpy(void *to, size_t room, const void *from, size_t n, int kind) {
	if (context()) return 107002;
	if (knob(K_ACL_COPY_CODE)) return fail((int)knob(K_ACL_COPY_CODE), "aclrtMemcpy was told to fail");
	if (n > room || kind < 1 || kind > 2) return fail(100000, "size or kind");
	if (!fakelib_acl_owns(kind == 1 ? to : from, n)) return fail(100000, "not device memory");
	memcpy(to, from, n);
	return 0;
}

int aclrtMemset(void *p, size_t room, int32_t value, size_t n) {
	if (context()) return 107002;
	if (n > room || !fakelib_acl_owns(p, n)) return fail(100000, "not device memory");
	memset(p, value, n);
	return 0;
}

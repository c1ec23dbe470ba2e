//go:build cgo && linux

#define _GNU_SOURCE
#include "shim.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The only way to name peers without a metadata service. Any other string can
 * end the process. */
static const char metadata[] = "P2PHANDSHAKE";

pypto_te_table *pypto_te_bind(const uintptr_t *addresses, size_t count) {
	_Static_assert(sizeof(uintptr_t) == sizeof(void (*)(void)), "functions have the size of integers");
	if (count * sizeof(uintptr_t) != sizeof(pypto_te_table)) return NULL;
	pypto_te_table *t = malloc(sizeof *t);
	if (t != NULL) memcpy(t, addresses, sizeof *t);
	return t;
}

void *pypto_te_create(const pypto_te_table *t, const char *host) {
	return t->create(metadata, host, host, 0, 0);
}

void pypto_te_destroy(const pypto_te_table *t, void *engine) { t->destroy(engine); }

int pypto_te_name(const pypto_te_table *t, void *engine, char *buffer, size_t size) {
	return t->local_name(engine, buffer, size);
}

int32_t pypto_te_open_segment(const pypto_te_table *t, void *engine, const char *name) {
	return t->open_segment(engine, name);
}

int pypto_te_register(const pypto_te_table *t, void *engine, uintptr_t address, size_t length, const char *location) {
	return t->register_memory(engine, (void *)address, length, location, 1);
}

int pypto_te_unregister(const pypto_te_table *t, void *engine, uintptr_t address) {
	return t->unregister_memory(engine, (void *)address);
}

pypto_te_batch *pypto_te_batch_new(uint32_t count) {
	pypto_te_batch *b = calloc(1, sizeof *b + count * sizeof b->requests[0]);
	if (b == NULL) return NULL;
	b->count = b->cursor = count;
	b->native = PYPTO_TE_NO_BATCH;
	return b;
}

/* Returns -1 if there is no native batch to submit to. */
int pypto_te_submit(const pypto_te_table *t, void *engine, pypto_te_batch *b, int opcode) {
	b->native = t->allocate_batch(engine, b->count);
	if (b->native == PYPTO_TE_NO_BATCH || b->native == 0) return -1;
	for (uint32_t i = 0; i < b->count; i++) b->requests[i].opcode = opcode;
	b->submit_code = t->submit(engine, b->native, b->requests, b->count);
	if (b->submit_code == PYPTO_TE_CODE_INVALID_ARGUMENT || b->submit_code == PYPTO_TE_CODE_TOO_MANY_REQUESTS) {
		/* Refused as a whole: the batch is empty and can be freed at once. */
		b->free_code = t->free_batch(engine, b->native);
	}
	return b->submit_code;
}

/* Remembers the first task that did not simply complete. */
static void first(pypto_te_batch *b, int status, int code) {
	if (b->odd || b->partial || b->failed || b->absent) return;
	b->first_task = b->cursor - 1;
	b->first_status = status;
	b->first_code = code;
}

static int poll_one(const pypto_te_table *t, void *engine, pypto_te_batch *b) {
	while (b->cursor > 0) {
		pypto_te_status s = {PYPTO_TE_WAITING, 0};
		int code = t->status(engine, b->native, b->cursor - 1, &s);
		if (code != 0) {
			first(b, s.status, code);
			b->absent++;
		} else if (s.status == PYPTO_TE_COMPLETED) {
			if (s.transferred_bytes == b->requests[b->cursor - 1].length) {
				b->completed++;
			} else {
				first(b, s.status, 0);
				b->partial++;
			}
		} else if (s.status == PYPTO_TE_FAILED) {
			first(b, s.status, 0);
			b->failed++;
		} else if (s.status == PYPTO_TE_WAITING || s.status == PYPTO_TE_PENDING || b->odd) {
			return 0;
		} else {
			first(b, s.status, 0);
			b->odd = 1;
			return 1;
		}
		b->cursor--;
	}
	int told = b->ended;
	b->ended = 1;
	b->free_code = t->free_batch(engine, b->native);
	b->freed = b->free_code == 0;
	return !told || b->freed;
}

int pypto_te_yielding(void) {
	struct sched_param none = {0};
	return sched_setscheduler(0, SCHED_BATCH, &none);
}

static int64_t monotonic(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int pypto_te_poll(const pypto_te_table *t, void *engine, pypto_te_batch **live, size_t count, const uint32_t *news, uint32_t seen,
                  int64_t wait_nanos, int64_t quiet_nanos) {
	int64_t begin = monotonic();
	for (;;) {
		int changed = 0;
		for (size_t i = 0; i < count; i++) {
			live[i]->changed = (uint8_t)poll_one(t, engine, live[i]);
			changed += live[i]->changed;
		}
		int64_t waited = monotonic() - begin;
		if (changed > 0 || waited >= wait_nanos || __atomic_load_n(news, __ATOMIC_ACQUIRE) != seen) return changed;
		int64_t pause = (quiet_nanos + waited) / PYPTO_TE_PAUSE_SHARE;
		int64_t least = PYPTO_TE_PAUSE_LEAST * (int64_t)(count < PYPTO_TE_PAUSE_BATCHES ? count : PYPTO_TE_PAUSE_BATCHES);
		if (pause < least) pause = least;
		if (pause > PYPTO_TE_PAUSE_MOST) pause = PYPTO_TE_PAUSE_MOST;
		struct timespec nap = {0, (long)pause};
		nanosleep(&nap, NULL);
	}
}

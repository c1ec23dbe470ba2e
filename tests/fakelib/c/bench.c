/*
 * What the Transfer Engine does when C alone calls it: the same transfers as
 * the Go benchmark, with the same window and pauses of 5 to 80 us between polls.
 *
 * bench LIBRARY BYTES reads lines "COUNT SIZE TIMES": TIMES writes of COUNT
 * scattered pieces of SIZE bytes, and answers each with its nanoseconds.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { TASKS = 256, WINDOW = 1024, WAITING = 0, COMPLETED = 4, WRITE = 1 };

typedef struct {
	int opcode;
	void *source;
	int32_t target_id;
	uint64_t target_offset, length;
} request;
typedef struct {
	int status;
	uint64_t transferred_bytes;
} task_status;

static void *(*create)(const char *, const char *, const char *, uint64_t, int);
static void (*destroy)(void *);
static int (*local_name)(void *, char *, size_t);
static int32_t (*open_segment)(void *, const char *);
static int (*register_memory)(void *, void *, size_t, const char *, int);
static uint64_t (*allocate_batch)(void *, size_t);
static int (*submit)(void *, uint64_t, request *, size_t);
static int (*status)(void *, uint64_t, size_t, task_status *);
static int (*free_batch)(void *, uint64_t);

static void bind(void *library, void *slot, const char *name) {
	void *f = dlsym(library, name);
	if (f == NULL) fprintf(stderr, "%s is not there\n", name), exit(1);
	memcpy(slot, &f, sizeof f);
}

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

typedef struct {
	uint64_t id;
	size_t count, cursor;
} batch;

/* Asks for the last open task first; 1 when all have completed. */
static int ended(void *engine, batch *b) {
	while (b->cursor > 0) {
		task_status s = {WAITING, 0};
		if (status(engine, b->id, b->cursor - 1, &s) != 0) exit(1);
		if (s.status == WAITING) return 0;
		if (s.status != COMPLETED) fprintf(stderr, "status %d\n", s.status), exit(1);
		b->cursor--;
	}
	if (free_batch(engine, b->id) != 0) exit(1);
	return 1;
}

int main(int argc, char **argv) {
	if (argc != 3) return 2;
	void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (library == NULL) fprintf(stderr, "%s\n", dlerror()), exit(1);
	bind(library, &create, "createTransferEngine");
	bind(library, &destroy, "destroyTransferEngine");
	bind(library, &local_name, "getLocalIpAndPort");
	bind(library, &open_segment, "openSegmentNoCache");
	bind(library, &register_memory, "registerLocalMemory");
	bind(library, &allocate_batch, "allocateBatchID");
	bind(library, &submit, "submitTransfer");
	bind(library, &status, "getTransferStatus");
	bind(library, &free_batch, "freeBatchID");
	size_t size = (size_t)strtoull(argv[2], NULL, 10);
	char *from = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *to = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(from, 1, size);
	memset(to, 2, size);
	void *source = create("P2PHANDSHAKE", "127.0.0.1", "127.0.0.1", 0, 0);
	void *target = create("P2PHANDSHAKE", "127.0.0.1", "127.0.0.1", 0, 0);
	char name[256] = "";
	if (source == NULL || target == NULL || local_name(target, name, sizeof name) != 0) return 1;
	if (register_memory(source, from, size, "cpu:0", 1) != 0 || register_memory(target, to, size, "cpu:0", 1) != 0) return 1;
	int32_t segment = open_segment(source, name);
	if (segment < 1) return 1;

	size_t count, bytes, times;
	while (scanf("%zu %zu %zu", &count, &bytes, &times) == 3) {
		if (count * bytes > size) return 2;
		int64_t begin = now();
		batch live[WINDOW];
		size_t open = 0, tasks = 0;
		size_t total = count * times, next = 0;
		long pause = 5000;
		while (next < total || open > 0) {
			while (next < total) {
				/* A batch does not go over the end of one write. */
				size_t n = count - next % count < TASKS ? count - next % count : TASKS;
				if (tasks + n > WINDOW) break;
				request list[TASKS];
				for (size_t i = 0; i < n; i++) {
					size_t at = (count - 1 - (next + i) % count) * bytes;
					list[i] = (request){WRITE, from + at, segment, (uintptr_t)to + at, bytes};
				}
				batch *b = &live[open++];
				b->id = allocate_batch(source, n), b->count = b->cursor = n;
				if (submit(source, b->id, list, n) != 0) return 1;
				next += n, tasks += n, pause = 5000;
			}
			size_t before = open;
			for (size_t i = 0; i < open;) {
				if (!ended(source, &live[i])) {
					i++;
					continue;
				}
				tasks -= live[i].count;
				live[i] = live[--open];
			}
			if (open == before && open > 0) {
				struct timespec t = {0, pause};
				nanosleep(&t, NULL);
				if (pause < 80000) pause *= 2;
			} else {
				pause = 5000;
			}
		}
		printf("%" PRId64 "\n", now() - begin);
		fflush(stdout);
	}
	destroy(target);
	destroy(source);
	fflush(stdout);
	_Exit(0);
}

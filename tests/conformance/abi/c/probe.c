/*
 * Asks a library what the data plane relies on, through our header alone. Each
 * answer is a line "question value"; the test knows the right ones.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <pypto/te_abi.h>

static pypto_te_table te;

static void bind(void *library, void *slot, const char *name) {
	void *f = dlsym(library, name);
	if (f == NULL) {
		fprintf(stderr, "%s is not there\n", name);
		exit(1);
	}
	memcpy(slot, &f, sizeof f);
}

static void nap(void) {
	struct timespec t = {0, 1000000};
	nanosleep(&t, NULL);
}

/* Polls one task until it ended. */
static pypto_te_status until_end(void *engine, uint64_t batch, size_t task) {
	pypto_te_status s;
	for (int i = 0; i < 30000; i++) {
		memset(&s, 0xff, sizeof s);
		if (te.status(engine, batch, task, &s) != 0) break;
		if (s.status == PYPTO_TE_COMPLETED || s.status == PYPTO_TE_FAILED) break;
		nap();
	}
	return s;
}

int main(int argc, char **argv) {
	if (argc != 2) return 2;
	void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (library == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	bind(library, &te.create, "createTransferEngine");
	bind(library, &te.destroy, "destroyTransferEngine");
	bind(library, &te.local_name, "getLocalIpAndPort");
	bind(library, &te.open_segment, "openSegmentNoCache");
	bind(library, &te.register_memory, "registerLocalMemory");
	bind(library, &te.unregister_memory, "unregisterLocalMemory");
	bind(library, &te.allocate_batch, "allocateBatchID");
	bind(library, &te.submit, "submitTransfer");
	bind(library, &te.status, "getTransferStatus");
	bind(library, &te.free_batch, "freeBatchID");

	enum { SIZE = 1 << 20 };
	char *from = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *to = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(from, 5, SIZE);
	void *source = te.create("P2PHANDSHAKE", "127.0.0.1", "127.0.0.1", 0, 0);
	void *target = te.create("P2PHANDSHAKE", "127.0.0.1", "127.0.0.1", 0, 0);
	char name[256] = "", again[256] = "";
	printf("create %d\n", source != NULL && target != NULL);
	printf("name %d\n", te.local_name(target, name, sizeof name));
	printf("name_is_host_port %d\n", strncmp(name, "127.0.0.1:", 10) == 0);

	printf("register %d\n", te.register_memory(target, to, SIZE, "cpu:0", 1));
	printf("register_twice %d\n", te.register_memory(target, to, SIZE, "cpu:0", 1));
	printf("register_overlap %d\n", te.register_memory(target, to + SIZE - 64, 128, "cpu:0", 1));
	printf("register_nothing %d\n", te.register_memory(target, from, 0, "cpu:0", 1));
	printf("unregister_inside %d\n", te.unregister_memory(target, to + 64));

	printf("open_nobody %d\n", te.open_segment(source, "127.0.0.1:1"));
	int32_t segment = te.open_segment(source, name);
	printf("open %d\n", segment > 0);
	printf("open_again_is_same %d\n", te.open_segment(source, name) == segment);

	pypto_te_request r = {PYPTO_TE_WRITE, (uintptr_t)from, segment, (uintptr_t)to, SIZE};
	uint64_t batch = te.allocate_batch(source, 1);
	pypto_te_status s;
	printf("status_of_empty_batch %d\n", te.status(source, batch, 0, &s));
	pypto_te_request bad = r;
	bad.target_id = 12345;
	printf("submit_unknown_segment %d\n", te.submit(source, batch, &bad, 1));
	pypto_te_request two[2] = {r, r};
	printf("submit_too_many %d\n", te.submit(source, batch, two, 2));
	printf("status_after_refusals %d\n", te.status(source, batch, 0, &s));
	printf("submit %d\n", te.submit(source, batch, &r, 1));
	/* The bytes are there, and nobody has asked for the status. */
	for (int i = 0; i < 30000 && ((volatile char *)to)[SIZE - 1] != 5; i++) nap();
	for (int i = 0; i < 50; i++) nap();
	printf("landed %d\n", memcmp(from, to, SIZE) == 0);
	printf("free_before_poll %d\n", te.free_batch(source, batch));
	s = until_end(source, batch, 0);
	printf("status %d\n", s.status);
	printf("bytes_are_all %d\n", s.transferred_bytes == SIZE);
	printf("status_past_end %d\n", te.status(source, batch, 1, &s));
	printf("free_after_poll %d\n", te.free_batch(source, batch));

	printf("free_empty_batch %d\n", te.free_batch(source, te.allocate_batch(source, 4)));

	two[1].target_offset = (uintptr_t)to + SIZE - 64;
	two[1].length = 128;
	batch = te.allocate_batch(source, 2);
	printf("submit_past_region %d\n", te.submit(source, batch, two, 2));
	printf("straddling_task %d\n", until_end(source, batch, 1).status);
	printf("its_neighbour %d\n", until_end(source, batch, 0).status);
	printf("free %d\n", te.free_batch(source, batch));

	te.destroy(target);
	printf("dead_segment_still_opens %d\n", te.open_segment(source, name) == segment);
	batch = te.allocate_batch(source, 1);
	printf("submit_to_the_dead %d\n", te.submit(source, batch, &r, 1));
	printf("status_of_the_dead %d\n", until_end(source, batch, 0).status);
	printf("free_of_the_dead %d\n", te.free_batch(source, batch));
	target = te.create("P2PHANDSHAKE", "127.0.0.1", "127.0.0.1", 0, 0);
	printf("create_over_same_memory %d\n", te.register_memory(target, to, SIZE, "cpu:0", 1));
	te.local_name(target, again, sizeof again);
	printf("opens_by_new_name %d\n", te.open_segment(source, again) > 0);
	te.destroy(target);
	te.destroy(source);
	printf("end 1\n");
	/* Not through exit handlers of C++. */
	fflush(stdout);
	_Exit(0);
}

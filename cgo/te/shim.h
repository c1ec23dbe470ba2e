/* What cgo/te adds to the library's calls: nothing that decides. */
#ifndef PYPTO_TE_SHIM_H
#define PYPTO_TE_SHIM_H

#include <pypto/te_abi.h>

/* One submitted batch: its requests, and what polling has learnt. */
typedef struct pypto_te_batch {
	uint64_t native;
	uint64_t owner;
	uint32_t count;
	uint32_t cursor; /* tasks below it are still to be asked; the last is asked first */
	uint32_t completed, partial, failed, absent;
	uint8_t ended, freed, odd, changed;
	uint32_t first_task;
	int first_status, first_code, submit_code, free_code;
	pypto_te_request requests[];
} pypto_te_batch;

pypto_te_table *pypto_te_bind(const uintptr_t *addresses, size_t count);
void *pypto_te_create(const pypto_te_table *t, const char *host);
void pypto_te_destroy(const pypto_te_table *t, void *engine);
int pypto_te_name(const pypto_te_table *t, void *engine, char *buffer, size_t size);
int32_t pypto_te_open_segment(const pypto_te_table *t, void *engine, const char *name);
int pypto_te_register(const pypto_te_table *t, void *engine, uintptr_t address, size_t length, const char *location);
int pypto_te_unregister(const pypto_te_table *t, void *engine, uintptr_t address);
pypto_te_batch *pypto_te_batch_new(uint32_t count);
int pypto_te_submit(const pypto_te_table *t, void *engine, pypto_te_batch *b, int opcode);

/* The pause between two looks is one part in PAUSE_SHARE of the time for which
 * nothing has happened, within bounds, in nanoseconds: what has taken long is
 * noticed a little later, and polling leaves the library's threads their cores. A
 * shorter one than PAUSE_LEAST would take as long, with the kernel's timer slack.
 * Where several batches are under way, up to PAUSE_BATCHES times that: the others
 * go on meanwhile. */
enum { PYPTO_TE_PAUSE_SHARE = 16, PYPTO_TE_PAUSE_LEAST = 50000, PYPTO_TE_PAUSE_BATCHES = 4, PYPTO_TE_PAUSE_MOST = 1000000 };

/* The calling thread interrupts nobody when it wakes up, if the system allows it;
 * 0 if it does. */
int pypto_te_yielding(void);

/* Asks for all batches again and again until one changed, *news is not seen any
 * more, or wait_nanos are over; quiet_nanos is for how long nothing had happened
 * before. */
int pypto_te_poll(const pypto_te_table *t, void *engine, pypto_te_batch **live, size_t count, const uint32_t *news, uint32_t seen,
                  int64_t wait_nanos, int64_t quiet_nanos);

#endif

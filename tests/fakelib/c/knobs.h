/* Knobs and counters, in a file that the test maps too. The names and their
 * order are those of knobs.go. */
#ifndef FAKELIB_KNOBS_H
#define FAKELIB_KNOBS_H

#include <stdint.h>

enum {
	/* knobs: 0 is off */
	K_CREATE_FAILS, K_CREATE_THROWS, K_CREATE_MILLIS, K_CREATE_HANDLERS, K_CREATE_PRINTS, K_WRONG_PORT, K_SAME_PORT,
	K_STALL, K_REGISTER_NTH, K_REGISTER_CODE, K_PINS, K_OPEN_FAILS, K_OPEN_MILLIS, K_ALLOCATE_FAILS, K_SUBMIT_CODE,
	K_SUBMIT_BEGINS, K_SUBMIT_MILLIS, K_SUBMIT_SEGV, K_STATUS, K_STATUS_CODE, K_SHORT, K_FREE_CODE, K_FAIL_NTH_TASK,
	K_HALF_THEN_FAIL, K_HIDDEN_RETRY, K_HOLD_RETRIES, K_HOLD_OPEN, K_HOLD_DESTROY, K_DESTROY_MILLIS, K_ANSWER_MILLIS, K_UNREGISTER_CODE,
	K_ACL_INIT_CODE, K_ACL_MALLOC_CODE, K_ACL_COPY_CODE, K_ACL_DEVICES, K_ACL_MEMORY, K_ACL_MISALIGNS,
	KNOBS,
	/* counters */
	C_ENGINES = 64, C_BATCHES, C_REGIONS, C_SEGMENTS, C_TASKS, C_THREADS, C_ALLOCATIONS, C_CREATED, C_SUBMITTED,
	C_REQUESTS, C_FREED, C_STATUS_CALLS, C_HIDDEN_RETRIES, C_RETRY_CNT, C_APPLIED,
	SLOTS = 128,
};

int64_t *fakelib_slots(void);

static inline int64_t knob(int k) { return __atomic_load_n(&fakelib_slots()[k], __ATOMIC_SEQ_CST); }
static inline void count(int c, int64_t n) { __atomic_add_fetch(&fakelib_slots()[c], n, __ATOMIC_SEQ_CST); }

/* Takes one from a knob that counts down; true for the one that reaches 0. */
static inline int turn(int k) {
	for (;;) {
		int64_t n = knob(k);
		if (n <= 0) return 0;
		if (__atomic_compare_exchange_n(&fakelib_slots()[k], &n, n - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return n == 1;
	}
}

#endif

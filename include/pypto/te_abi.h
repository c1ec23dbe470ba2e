/*
 * The part of the Transfer Engine's C ABI that this project calls, in its own
 * words: layouts, numbers and the types of functions. Nothing here is linked;
 * every function is found by name at run time (cgo/dl).
 *
 * In a request the source is an integer, because Go fills requests in and knows
 * device addresses as integers only. It has the size and place of the library's
 * pointer, which tests/conformance/abi checks.
 */
#ifndef PYPTO_TE_ABI_H
#define PYPTO_TE_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opcodes. The library does not check them: an unknown one may overwrite the
 * source, so none but these two is ever passed. */
#define PYPTO_TE_READ 0
#define PYPTO_TE_WRITE 1

/* What allocateBatchID returns when it has none. */
#define PYPTO_TE_NO_BATCH UINT64_MAX

/* Status of one task. Only COMPLETED and FAILED end a task for freeBatchID. */
#define PYPTO_TE_WAITING 0
#define PYPTO_TE_PENDING 1
#define PYPTO_TE_INVALID 2
#define PYPTO_TE_CANCELED 3
#define PYPTO_TE_COMPLETED 4
#define PYPTO_TE_TIMEOUT 5
#define PYPTO_TE_FAILED 6

/* Codes of submitTransfer and freeBatchID that mean something exact. */
#define PYPTO_TE_CODE_INVALID_ARGUMENT 1
#define PYPTO_TE_CODE_TOO_MANY_REQUESTS 2
#define PYPTO_TE_CODE_BATCH_BUSY 4

/* One copy. source is an address in this process, target_offset one in the
 * peer's. */
typedef struct pypto_te_request {
	int opcode;
	uintptr_t source;
	int32_t target_id;
	uint64_t target_offset;
	uint64_t length;
} pypto_te_request;

typedef struct pypto_te_status {
	int status;
	uint64_t transferred_bytes;
} pypto_te_status;

/* The functions, in the order of pypto_te_names in cgo/te. */
typedef struct pypto_te_table {
	void *(*create)(const char *metadata, const char *server_name, const char *host, uint64_t port, int discover);
	void (*destroy)(void *engine);
	int (*local_name)(void *engine, char *buffer, size_t size);
	int32_t (*open_segment)(void *engine, const char *name);
	int (*register_memory)(void *engine, void *address, size_t length, const char *location, int remote);
	int (*unregister_memory)(void *engine, void *address);
	uint64_t (*allocate_batch)(void *engine, size_t size);
	int (*submit)(void *engine, uint64_t batch, pypto_te_request *requests, size_t count);
	int (*status)(void *engine, uint64_t batch, size_t task, pypto_te_status *status);
	int (*free_batch)(void *engine, uint64_t batch);
} pypto_te_table;

#ifdef __cplusplus
}
#endif

#endif

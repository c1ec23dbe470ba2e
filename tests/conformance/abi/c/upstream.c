/* Our header against the library's own. */
#include <transfer_engine_c.h>

#include <pypto/te_abi.h>

#define SAME(a, b) _Static_assert((a) == (b), #a " is not " #b)
#define FIELD(type, ours, field) \
	SAME(offsetof(struct type, field), offsetof(ours, field)); \
	SAME(sizeof(((struct type *)0)->field), sizeof(((ours *)0)->field))
/* The function has the type that our table gives it. */
#define FUNCTION(name, member) \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&name), __typeof__(((pypto_te_table *)0)->member)), #name " has another type")
/* The same where a struct is known by two names: each has the type with its own. */
#define STRUCT_FUNCTION(name, member, theirs, ours) \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&name), theirs), #name " has another type"); \
	_Static_assert(__builtin_types_compatible_p(__typeof__(((pypto_te_table *)0)->member), ours), #member " has another type")

SAME(sizeof(struct transfer_request), sizeof(pypto_te_request));
FIELD(transfer_request, pypto_te_request, opcode);
FIELD(transfer_request, pypto_te_request, source);
FIELD(transfer_request, pypto_te_request, target_id);
FIELD(transfer_request, pypto_te_request, target_offset);
FIELD(transfer_request, pypto_te_request, length);
SAME(sizeof(struct transfer_status), sizeof(pypto_te_status));
FIELD(transfer_status, pypto_te_status, status);
FIELD(transfer_status, pypto_te_status, transferred_bytes);

SAME(OPCODE_READ, PYPTO_TE_READ);
SAME(OPCODE_WRITE, PYPTO_TE_WRITE);
SAME(INVALID_BATCH, PYPTO_TE_NO_BATCH);
SAME(STATUS_WAITING, PYPTO_TE_WAITING);
SAME(STATUS_PENDING, PYPTO_TE_PENDING);
SAME(STATUS_INVALID, PYPTO_TE_INVALID);
SAME(STATUS_CANCELED, PYPTO_TE_CANCELED);
SAME(STATUS_COMPLETED, PYPTO_TE_COMPLETED);
SAME(STATUS_TIMEOUT, PYPTO_TE_TIMEOUT);
SAME(STATUS_FAILED, PYPTO_TE_FAILED);

FUNCTION(createTransferEngine, create);
FUNCTION(destroyTransferEngine, destroy);
FUNCTION(getLocalIpAndPort, local_name);
FUNCTION(openSegmentNoCache, open_segment);
FUNCTION(registerLocalMemory, register_memory);
FUNCTION(unregisterLocalMemory, unregister_memory);
FUNCTION(allocateBatchID, allocate_batch);
FUNCTION(freeBatchID, free_batch);
STRUCT_FUNCTION(submitTransfer, submit, int (*)(void *, uint64_t, struct transfer_request *, size_t),
                int (*)(void *, uint64_t, pypto_te_request *, size_t));
STRUCT_FUNCTION(getTransferStatus, status, int (*)(void *, uint64_t, size_t, struct transfer_status *),
                int (*)(void *, uint64_t, size_t, pypto_te_status *));

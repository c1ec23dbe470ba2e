/* What the headers must say on LP64, written down a second time. */
#include <pypto/acl_abi.h>
#include <pypto/te_abi.h>

#define IS(what, value) _Static_assert((what) == (value), #what " is not " #value)

IS(sizeof(void *), 8);
IS(sizeof(size_t), 8);
IS(sizeof(int), 4);
IS(sizeof(uintptr_t), sizeof(void *));

IS(sizeof(pypto_te_request), 40);
IS(_Alignof(pypto_te_request), 8);
IS(offsetof(pypto_te_request, opcode), 0);
IS(offsetof(pypto_te_request, source), 8);
IS(offsetof(pypto_te_request, target_id), 16);
IS(offsetof(pypto_te_request, target_offset), 24);
IS(offsetof(pypto_te_request, length), 32);
IS(sizeof(pypto_te_status), 16);
IS(offsetof(pypto_te_status, status), 0);
IS(offsetof(pypto_te_status, transferred_bytes), 8);

IS(PYPTO_TE_READ, 0);
IS(PYPTO_TE_WRITE, 1);
IS(PYPTO_TE_NO_BATCH, 0xffffffffffffffffu);
IS(PYPTO_TE_WAITING, 0);
IS(PYPTO_TE_PENDING, 1);
IS(PYPTO_TE_INVALID, 2);
IS(PYPTO_TE_CANCELED, 3);
IS(PYPTO_TE_COMPLETED, 4);
IS(PYPTO_TE_TIMEOUT, 5);
IS(PYPTO_TE_FAILED, 6);
IS(PYPTO_TE_CODE_INVALID_ARGUMENT, 1);
IS(PYPTO_TE_CODE_TOO_MANY_REQUESTS, 2);
IS(PYPTO_TE_CODE_BATCH_BUSY, 4);

/* A table is what dlsym gave, one after another. */
IS(sizeof(pypto_te_table), 10 * sizeof(void *));
IS(sizeof(pypto_acl_table), 12 * sizeof(void *));
IS(offsetof(pypto_te_table, free_batch), 9 * sizeof(void *));
IS(offsetof(pypto_acl_table, soc_name), 11 * sizeof(void *));

IS(PYPTO_ACL_OK, 0);
IS(PYPTO_ACL_REPEAT_INITIALIZE, 100002);
IS(PYPTO_ACL_MALLOC_HUGE_FIRST, 0);
IS(PYPTO_ACL_MALLOC_HUGE_ONLY, 1);
IS(PYPTO_ACL_MALLOC_NORMAL_ONLY, 2);
IS(PYPTO_ACL_MEM_DDR, 0);
IS(PYPTO_ACL_MEM_HBM, 1);
IS(PYPTO_ACL_HOST_TO_HOST, 0);
IS(PYPTO_ACL_HOST_TO_DEVICE, 1);
IS(PYPTO_ACL_DEVICE_TO_HOST, 2);
IS(PYPTO_ACL_DEVICE_TO_DEVICE, 3);

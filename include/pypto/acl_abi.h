/*
 * The part of the Ascend runtime's C ABI (libascendcl) that this project calls,
 * in its own words. Nothing here is linked; every function is found by name at
 * run time (cgo/dl).
 */
#ifndef PYPTO_ACL_ABI_H
#define PYPTO_ACL_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PYPTO_ACL_OK 0
/* aclInit: somebody in this process did it before. */
#define PYPTO_ACL_REPEAT_INITIALIZE 100002

/* aclrtMalloc policies. */
#define PYPTO_ACL_MALLOC_HUGE_FIRST 0
#define PYPTO_ACL_MALLOC_HUGE_ONLY 1
#define PYPTO_ACL_MALLOC_NORMAL_ONLY 2

/* aclrtGetMemInfo attributes. */
#define PYPTO_ACL_MEM_DDR 0
#define PYPTO_ACL_MEM_HBM 1

/* aclrtMemcpy kinds. */
#define PYPTO_ACL_HOST_TO_HOST 0
#define PYPTO_ACL_HOST_TO_DEVICE 1
#define PYPTO_ACL_DEVICE_TO_HOST 2
#define PYPTO_ACL_DEVICE_TO_DEVICE 3

/* The functions, in the order of pypto_acl_names in cgo/acl. The last three
 * may be absent. */
typedef struct pypto_acl_table {
	int (*init)(const char *config);
	int (*set_device)(int32_t device);
	int (*reset_device)(int32_t device);
	int (*device_count)(uint32_t *count);
	int (*allocate)(void **address, size_t size, int policy);
	int (*release)(void *address);
	int (*copy)(void *target, size_t room, const void *source, size_t size, int kind);
	int (*fill)(void *address, size_t room, int32_t value, size_t size);
	int (*memory_info)(int attribute, size_t *available, size_t *total);
	const char *(*recent_error)(void);
	int (*version)(int32_t *major, int32_t *minor, int32_t *patch);
	const char *(*soc_name)(void);
} pypto_acl_table;

#ifdef __cplusplus
}
#endif

#endif

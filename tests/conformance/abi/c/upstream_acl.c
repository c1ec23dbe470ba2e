/* Our header against that of the vendor's runtime. An enumeration is passed as
 * an int; its own type is another one, so that both types are written out. */
#include <acl/acl.h>
#include <acl/acl_rt.h>

#include <pypto/acl_abi.h>

#include <stdio.h>

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), #a " is not " #b)
#define FUNCTION(name, member, theirs, ours) \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&name), theirs), #name " has another type"); \
	_Static_assert(__builtin_types_compatible_p(__typeof__(((pypto_acl_table *)0)->member), ours), #member " has another type")

_Static_assert(sizeof(aclError) == sizeof(int), "aclError is no int");
_Static_assert(sizeof(aclrtMemMallocPolicy) == sizeof(int), "aclrtMemMallocPolicy is no int");
_Static_assert(sizeof(aclrtMemcpyKind) == sizeof(int), "aclrtMemcpyKind is no int");
_Static_assert(sizeof(aclrtMemAttr) == sizeof(int), "aclrtMemAttr is no int");

SAME(ACL_MEM_MALLOC_HUGE_FIRST, PYPTO_ACL_MALLOC_HUGE_FIRST);
SAME(ACL_MEM_MALLOC_HUGE_ONLY, PYPTO_ACL_MALLOC_HUGE_ONLY);
SAME(ACL_MEM_MALLOC_NORMAL_ONLY, PYPTO_ACL_MALLOC_NORMAL_ONLY);
SAME(ACL_DDR_MEM, PYPTO_ACL_MEM_DDR);
SAME(ACL_HBM_MEM, PYPTO_ACL_MEM_HBM);
SAME(ACL_MEMCPY_HOST_TO_HOST, PYPTO_ACL_HOST_TO_HOST);
SAME(ACL_MEMCPY_HOST_TO_DEVICE, PYPTO_ACL_HOST_TO_DEVICE);
SAME(ACL_MEMCPY_DEVICE_TO_HOST, PYPTO_ACL_DEVICE_TO_HOST);
SAME(ACL_MEMCPY_DEVICE_TO_DEVICE, PYPTO_ACL_DEVICE_TO_DEVICE);

FUNCTION(aclInit, init, aclError (*)(const char *), int (*)(const char *));
FUNCTION(aclrtSetDevice, set_device, aclError (*)(int32_t), int (*)(int32_t));
FUNCTION(aclrtResetDevice, reset_device, aclError (*)(int32_t), int (*)(int32_t));
FUNCTION(aclrtGetDeviceCount, device_count, aclError (*)(uint32_t *), int (*)(uint32_t *));
FUNCTION(aclrtMalloc, allocate, aclError (*)(void **, size_t, aclrtMemMallocPolicy), int (*)(void **, size_t, int));
FUNCTION(aclrtFree, release, aclError (*)(void *), int (*)(void *));
FUNCTION(aclrtMemcpy, copy, aclError (*)(void *, size_t, const void *, size_t, aclrtMemcpyKind), int (*)(void *, size_t, const void *, size_t, int));
FUNCTION(aclrtMemset, fill, aclError (*)(void *, size_t, int32_t, size_t), int (*)(void *, size_t, int32_t, size_t));
FUNCTION(aclrtGetMemInfo, memory_info, aclError (*)(aclrtMemAttr, size_t *, size_t *), int (*)(int, size_t *, size_t *));
FUNCTION(aclGetRecentErrMsg, recent_error, const char *(*)(void), const char *(*)(void));
FUNCTION(aclrtGetVersion, version, aclError (*)(int32_t *, int32_t *, int32_t *), int (*)(int32_t *, int32_t *, int32_t *));
FUNCTION(aclrtGetSocName, soc_name, const char *(*)(void), const char *(*)(void));

static int differs(const char *name, int theirs, int ours) {
	if (theirs != ours) printf("%s is %d, not %d\n", name, theirs, ours);
	return theirs != ours;
}

/* The vendor's error codes are objects, which no static assertion takes. */
int main(void) {
	return differs("ACL_SUCCESS", ACL_SUCCESS, PYPTO_ACL_OK) |
	       differs("ACL_ERROR_REPEAT_INITIALIZE", ACL_ERROR_REPEAT_INITIALIZE, PYPTO_ACL_REPEAT_INITIALIZE);
}

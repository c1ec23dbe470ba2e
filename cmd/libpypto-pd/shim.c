//go:build cgo

/*
 * The functions that C sees. A forked process has none of the threads that Go
 * runs on, so that a call would hang: each function looks first.
 */
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "_cgo_export.h"

#define API __attribute__((visibility("default")))

static pid_t loaded;

__attribute__((constructor)) static void load(void) { loaded = getpid(); }

static int32_t forked(pypto_pd_text *why)
{
	static const char text[] = "the process was forked after libpypto-pd was loaded; load it in the child instead";

	if (getpid() == loaded)
		return 0;
	if (why) {
		why->len = sizeof text - 1;
		if (why->at)
			memcpy(why->at, text, why->cap < why->len ? why->cap : why->len);
	}
	return PYPTO_PD_FORKED;
}

#define ENTER(why)                       \
	do {                             \
		int32_t code = forked(why); \
		if (code)                \
			return code;     \
	} while (0)

API uint32_t pypto_pd_abi(void) { return PYPTO_PD_ABI; }

API int32_t pypto_pd_version(pypto_pd_text *out)
{
	ENTER(out);
	return goVersion(out);
}

API int32_t pypto_pd_node_open(pypto_pd_bytes config, pypto_pd_node *out, pypto_pd_text *why)
{
	ENTER(why);
	return goNodeOpen(config, out, why);
}

API int32_t pypto_pd_node_shape(pypto_pd_node node, int32_t *ranks, int32_t *regions, pypto_pd_text *why)
{
	ENTER(why);
	return goNodeShape(node, ranks, regions, why);
}

API int32_t pypto_pd_node_region(pypto_pd_node node, int32_t index, pypto_pd_region *out, pypto_pd_text *why)
{
	ENTER(why);
	return goNodeRegion(node, index, out, why);
}

API int32_t pypto_pd_node_memory(pypto_pd_node node, int32_t rank, int32_t index, uint64_t address, uint64_t bytes, pypto_pd_text *why)
{
	ENTER(why);
	return goNodeMemory(node, rank, index, address, bytes, why);
}

API int32_t pypto_pd_node_start(pypto_pd_node node, int64_t timeout_ms, pypto_pd_text *why)
{
	ENTER(why);
	return goNodeStart(node, timeout_ms, why);
}

API int32_t pypto_pd_node_self(pypto_pd_node node, pypto_pd_text *out, pypto_pd_text *why)
{
	ENTER(why);
	return goNodeSelf(node, out, why);
}

API int32_t pypto_pd_node_poll(pypto_pd_node node, int64_t timeout_ms, pypto_pd_event *out, pypto_pd_text *why)
{
	ENTER(why);
	return goNodePoll(node, timeout_ms, out, why);
}

API int32_t pypto_pd_node_status(pypto_pd_node node, pypto_pd_text *out, pypto_pd_text *why)
{
	ENTER(why);
	return goNodeStatus(node, out, why);
}

API int32_t pypto_pd_node_drain(pypto_pd_node node, int64_t timeout_ms, pypto_pd_text *why)
{
	ENTER(why);
	return goNodeDrain(node, timeout_ms, why);
}

API int32_t pypto_pd_node_close(pypto_pd_node node, int64_t timeout_ms, pypto_pd_text *why)
{
	ENTER(why);
	return goNodeClose(node, timeout_ms, why);
}

API int32_t pypto_pd_post(pypto_pd_node node, const pypto_pd_route *route, pypto_pd_bytes continuation, pypto_pd_text *why)
{
	ENTER(why);
	return goPost(node, (pypto_pd_route *)route, continuation, why);
}

API int32_t pypto_pd_leave(pypto_pd_node node, const char *handoff, pypto_pd_text *why)
{
	ENTER(why);
	return goLeave(node, (char *)handoff, why);
}

API int32_t pypto_pd_prompt(pypto_pd_node node, const char *handoff, int32_t *tokens, uint64_t cap, uint64_t *len, pypto_pd_text *why)
{
	ENTER(why);
	return goPrompt(node, (char *)handoff, tokens, cap, len, why);
}

API int32_t pypto_pd_continuation(pypto_pd_node node, const char *handoff, pypto_pd_text *out, pypto_pd_text *why)
{
	ENTER(why);
	return goContinuation(node, (char *)handoff, out, why);
}

API int32_t pypto_pd_chunk_ready(pypto_pd_node node, const char *handoff, const pypto_pd_chunk *chunk, const pypto_pd_run *runs, uint64_t count, pypto_pd_text *why)
{
	ENTER(why);
	return goChunkReady(node, (char *)handoff, (pypto_pd_chunk *)chunk, (pypto_pd_run *)runs, count, why);
}

API int32_t pypto_pd_prefill_stopped(pypto_pd_node node, const char *handoff, int32_t code, pypto_pd_text *why)
{
	ENTER(why);
	return goPrefillStopped(node, (char *)handoff, code, why);
}

API int32_t pypto_pd_grant(pypto_pd_node node, const char *handoff, const pypto_pd_memory *memory, const pypto_pd_run *runs, uint64_t count, pypto_pd_text *why)
{
	ENTER(why);
	return goGrant(node, (char *)handoff, (pypto_pd_memory *)memory, (pypto_pd_run *)runs, count, why);
}

API int32_t pypto_pd_refuse(pypto_pd_node node, const char *handoff, pypto_pd_text *why)
{
	ENTER(why);
	return goRefuse(node, (char *)handoff, why);
}

API int32_t pypto_pd_decode_stopped(pypto_pd_node node, const char *handoff, int32_t code, pypto_pd_text *why)
{
	ENTER(why);
	return goDecodeStopped(node, (char *)handoff, code, why);
}

API int32_t pypto_pd_owner_open(pypto_pd_bytes config, pypto_pd_owner *out, pypto_pd_text *why)
{
	ENTER(why);
	return goOwnerOpen(config, out, why);
}

API int32_t pypto_pd_owner_memory(pypto_pd_owner owner, const char *component, uint64_t address, uint64_t bytes, pypto_pd_text *why)
{
	ENTER(why);
	return goOwnerMemory(owner, (char *)component, address, bytes, why);
}

API int32_t pypto_pd_owner_freeze(pypto_pd_owner owner, pypto_pd_text *why)
{
	ENTER(why);
	return goOwnerFreeze(owner, why);
}

API int32_t pypto_pd_owner_serve(pypto_pd_owner owner, const char *path, pypto_pd_text *why)
{
	ENTER(why);
	return goOwnerServe(owner, (char *)path, why);
}

API int32_t pypto_pd_owner_state(pypto_pd_owner owner, int32_t *serving, pypto_pd_text *why)
{
	ENTER(why);
	return goOwnerState(owner, serving, why);
}

API int32_t pypto_pd_owner_close(pypto_pd_owner owner, int64_t timeout_ms, pypto_pd_text *why)
{
	ENTER(why);
	return goOwnerClose(owner, timeout_ms, why);
}

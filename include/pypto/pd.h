/*
 * libpypto-pd: one side of a prefill/decode pair inside a model server that is
 * written in another language.
 *
 * The library owns the node: the control port of pd.json, who may write which
 * memory, the transfers, and every proof that memory is free again. The server
 * (the host) owns the model, its cache and its HTTP API. Nothing is called back:
 * the host polls events and answers with calls, from any thread.
 *
 * Every function returns 0 or a code of pd_codes.h, and, where `why` is not
 * NULL, writes the reason there. Calls that may wait take a timeout in
 * milliseconds and return PYPTO_PD_DEADLINE when it is over; all others only
 * check and queue. No call keeps a pointer that it was given, except the memory
 * of pypto_pd_node_memory.
 *
 * Load the library after fork: a process that forks afterwards may use it in the
 * parent only. Every call in a child returns PYPTO_PD_FORKED.
 */
#ifndef PYPTO_PD_H
#define PYPTO_PD_H

#include <stddef.h>
#include <stdint.h>

#include "pd_codes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. Functions, event kinds and codes are only ever
 * added within a version; structures never change. */
#define PYPTO_PD_ABI 1

/* The process was forked after the library was loaded. */
#define PYPTO_PD_FORKED (-1)
/* The library itself failed; `why` says how. Please report it. */
#define PYPTO_PD_PANIC (-2)

/* A node. 0 is none, and a handle that was closed is none for ever. */
typedef uint64_t pypto_pd_node;

/* The memory of one rank in a process of its own. */
typedef uint64_t pypto_pd_owner;

/* Text that the host gives: UTF-8, no terminating zero needed. */
typedef struct {
	const char *at;
	uint64_t len;
} pypto_pd_bytes;

/* Text that the library writes: at most cap bytes to at, no terminating zero;
 * len becomes the length of the whole text, which may be more than cap. */
typedef struct {
	char *at;
	uint64_t cap;
	uint64_t len;
} pypto_pd_text;

/* An arena that the host gives for every rank. Bytes are layer-major: page p of
 * layer l begins at (l * pages_per_layer + p) * page_bytes, row r of it
 * r * row_bytes later; l counts the component's own layers. In the bootstrap
 * arena, group -1, a page is a slot. */
typedef struct {
	char component[64]; /* zero-terminated */
	uint64_t bytes;     /* the whole arena */
	int32_t group;      /* index of its page table in lists of runs */
	int32_t layers;
	int32_t pages_per_layer;
	int32_t pool_pages; /* pages 0..pool_pages-1 may be granted */
	int32_t page_bytes;
	int32_t row_bytes;
	int32_t rows_per_page;
	int32_t row_tokens;    /* token positions that a row covers */
	int32_t page_tokens;   /* token positions that a page covers */
	int32_t ring_period;   /* pages of the ring; 0: the whole history is kept */
	int32_t window_tokens; /* last positions that decode reads; 0: all */
	int32_t reserved;
} pypto_pd_region;

/* Pages first..first+count-1 of a group. The runs of a group in order make its
 * table: entry i holds logical page i, or, in a ring, the newest logical page
 * that is i modulo the ring's period (or the table's length, if shorter). */
typedef struct {
	int32_t group;
	int32_t first;
	int32_t count;
} pypto_pd_run;

/* The headers of a router's POST, word by word. */
typedef struct {
	pypto_pd_bytes version; /* X-PD-Version */
	pypto_pd_bytes request; /* X-PD-Request-Id */
	pypto_pd_bytes handoff; /* X-PD-Handoff-Id */
	pypto_pd_bytes run;     /* X-PD-Run-Id */
	pypto_pd_bytes self;    /* X-PD-Self */
	pypto_pd_bytes peer;    /* X-PD-Peer */
} pypto_pd_route;

typedef enum {
	PYPTO_PD_ACCEPTED = 1,     /* decode: memory is held, the answer may begin (may come after ADOPT) */
	PYPTO_PD_ENDED = 2,        /* the POST is over, once per POST; code 0 as intended */
	PYPTO_PD_PREFILL = 3,      /* prefill: compute the prompt's first chunk */
	PYPTO_PD_RESUME = 4,       /* prefill: compute the next chunk */
	PYPTO_PD_STOP_PREFILL = 5, /* prefill: let the prompt go, then pypto_pd_prefill_stopped */
	PYPTO_PD_PAGES_FREE = 6,   /* prefill: nothing reads the pages of chunk any more */
	PYPTO_PD_RESERVE = 7,      /* decode: answer with pypto_pd_grant or pypto_pd_refuse */
	PYPTO_PD_WITHDRAWN = 8,    /* decode: the reservation is off; what was granted is free */
	PYPTO_PD_ADOPT = 9,        /* decode: the pages are complete, generate */
	PYPTO_PD_STOP_DECODE = 10, /* decode: stop, then pypto_pd_decode_stopped */
	PYPTO_PD_RELEASED = 11,    /* decode: pages and slot are free */
	PYPTO_PD_QUARANTINED = 12  /* decode: writes may still land; do not touch until RELEASED */
} pypto_pd_kind;

typedef struct {
	int32_t kind; /* pypto_pd_kind; skip what you do not know */
	int32_t code; /* ENDED */
	char handoff[40];   /* zero-terminated */
	char request[264];  /* zero-terminated */
	int32_t chunk;      /* PAGES_FREE */
	int32_t partition;  /* ADOPT */
	int32_t slot;       /* ADOPT */
	int32_t first_token;    /* ADOPT: sampled by prefill, the first of the output */
	int64_t tokens;         /* PREFILL, RESERVE, ADOPT: positions of the prompt */
	int64_t max_new_tokens; /* PREFILL, ADOPT */
	int64_t hit_tokens;     /* RESERVE: most that a grant may reuse; ADOPT: reused here */
	int64_t cached_tokens;  /* ADOPT: reused by prefill */
} pypto_pd_event;

typedef struct {
	int32_t chunk;     /* 0, 1, 2, ... */
	int32_t partition;
	int32_t final;     /* 1: the last chunk of the prompt */
	int32_t slot;      /* with final: the bootstrap slot */
	int32_t first_token; /* with final: the sampled token */
	int32_t reserved;
	int64_t start;     /* positions [start, end); chunk 0 starts at 0 */
	int64_t end;
	int64_t hit_tokens; /* of the prompt, from this node's own cache */
} pypto_pd_chunk;

typedef struct {
	int32_t partition;
	int32_t slot;       /* bootstrap slot */
	int64_t hit_tokens; /* of the prompt, already in the granted pages */
} pypto_pd_memory;

/* PYPTO_PD_ABI of the library that was loaded. */
uint32_t pypto_pd_abi(void);
/* The library's version, for people. */
int32_t pypto_pd_version(pypto_pd_text *out);

/* Reads a configuration (JSON, docs/embedding.md). Nothing is bound yet. */
int32_t pypto_pd_node_open(pypto_pd_bytes config, pypto_pd_node *out, pypto_pd_text *why);
/* How many ranks and regions the node needs. */
int32_t pypto_pd_node_shape(pypto_pd_node node, int32_t *ranks, int32_t *regions, pypto_pd_text *why);
/* Region `index` of every rank. */
int32_t pypto_pd_node_region(pypto_pd_node node, int32_t index, pypto_pd_region *out, pypto_pd_text *why);
/* Gives one arena of one rank: 64-byte aligned host memory, mapped and in place
 * until pypto_pd_node_close has returned 0. */
int32_t pypto_pd_node_memory(pypto_pd_node node, int32_t rank, int32_t index, uint64_t address, uint64_t bytes, pypto_pd_text *why);
/* Registers the memory, binds the control port of pd.json and takes requests. */
int32_t pypto_pd_node_start(pypto_pd_node node, int64_t timeout_ms, pypto_pd_text *why);
/* "node;boot", what a router sends as X-PD-Self. */
int32_t pypto_pd_node_self(pypto_pd_node node, pypto_pd_text *out, pypto_pd_text *why);
/* The next event. PYPTO_PD_DEADLINE: there is none yet. */
int32_t pypto_pd_node_poll(pypto_pd_node node, int64_t timeout_ms, pypto_pd_event *out, pypto_pd_text *why);
/* State, capacity, pages and gates as JSON. */
int32_t pypto_pd_node_status(pypto_pd_node node, pypto_pd_text *out, pypto_pd_text *why);
/* Takes nothing new in and waits until everything has ended. */
int32_t pypto_pd_node_drain(pypto_pd_node node, int64_t timeout_ms, pypto_pd_text *why);
/* Ends the node and the handle. While it returns an error the memory is still
 * the data plane's; call it again, or end the process. */
int32_t pypto_pd_node_close(pypto_pd_node node, int64_t timeout_ms, pypto_pd_text *why);

/* A router's POST arrived. continuation is JSON: on prefill prompt_tokens,
 * max_new_tokens, temperature and top_p (decimals as text), stop, stream and,
 * optional, seed, eos, output_parser, constraint; on decode stream alone. */
int32_t pypto_pd_post(pypto_pd_node node, const pypto_pd_route *route, pypto_pd_bytes continuation, pypto_pd_text *why);
/* The client of a POST has left, or the request is to be aborted. */
int32_t pypto_pd_leave(pypto_pd_node node, const char *handoff, pypto_pd_text *why);
/* The prompt of a request: as many tokens as fit cap; *len is how many it has. */
int32_t pypto_pd_prompt(pypto_pd_node node, const char *handoff, int32_t *tokens, uint64_t cap, uint64_t *len, pypto_pd_text *why);
/* All that is to be done for a request, as JSON. */
int32_t pypto_pd_continuation(pypto_pd_node node, const char *handoff, pypto_pd_text *out, pypto_pd_text *why);

/* Prefill: a chunk is complete on every rank; the request's whole tables. */
int32_t pypto_pd_chunk_ready(pypto_pd_node node, const char *handoff, const pypto_pd_chunk *chunk, const pypto_pd_run *runs, uint64_t count, pypto_pd_text *why);
/* Prefill: the prompt is let go. code 0 after STOP_PREFILL, else why the host
 * gave it up. */
int32_t pypto_pd_prefill_stopped(pypto_pd_node node, const char *handoff, int32_t code, pypto_pd_text *why);

/* Decode: memory for a reservation. Until RELEASED or WITHDRAWN it is nobody
 * else's, and nothing of it is read before ADOPT. */
int32_t pypto_pd_grant(pypto_pd_node node, const char *handoff, const pypto_pd_memory *memory, const pypto_pd_run *runs, uint64_t count, pypto_pd_text *why);
/* Decode: there is no room for a reservation. */
int32_t pypto_pd_refuse(pypto_pd_node node, const char *handoff, pypto_pd_text *why);
/* Decode: nothing reads or writes the request's pages any more. code 0: it is
 * finished or was stopped. The answer's end waits for ENDED. */
int32_t pypto_pd_decode_stopped(pypto_pd_node node, const char *handoff, int32_t code, pypto_pd_text *why);

/*
 * Owners: where the memory of the ranks is other processes' (one per rank and
 * card), each of them loads this library, gives its memory and serves; the node
 * names their sockets as "owners" in its configuration and gives none itself.
 * Registration and writes run in the owner. It serves one node after the other,
 * over the same memory; its death gates the node.
 */

/* Reads a configuration: {} or {"log_level":"info"}. */
int32_t pypto_pd_owner_open(pypto_pd_bytes config, pypto_pd_owner *out, pypto_pd_text *why);
/* Gives one arena by the name and size of its region: 64-byte aligned host
 * memory, in place until pypto_pd_owner_close has returned 0. */
int32_t pypto_pd_owner_memory(pypto_pd_owner owner, const char *component, uint64_t address, uint64_t bytes, pypto_pd_text *why);
/* Ends the giving of memory. */
int32_t pypto_pd_owner_freeze(pypto_pd_owner owner, pypto_pd_text *why);
/* Waits for nodes at a local socket, from now on. */
int32_t pypto_pd_owner_serve(pypto_pd_owner owner, const char *path, pypto_pd_text *why);
/* Whether a node is being served; why: how the last one ended. */
int32_t pypto_pd_owner_state(pypto_pd_owner owner, int32_t *serving, pypto_pd_text *why);
/* Ends the service and the handle. */
int32_t pypto_pd_owner_close(pypto_pd_owner owner, int64_t timeout_ms, pypto_pd_text *why);

#ifdef __cplusplus
}
#endif

#endif

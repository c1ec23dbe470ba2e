/*
 * A toy model with the tiny cache of DeepSeek V4 DSpark: the bytes of a cache
 * row are a function of the tokens before it, and an answer is the fingerprint
 * of the bytes that decode finds in its own pages. It is the function that
 * `pypto-serving --backend sim` computes, so the two can be paired.
 */
#ifndef TOY_H
#define TOY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pypto/pd.h"

enum { MAX_REGIONS = 16, MAX_GROUPS = 16, DIGEST = 32, KEY = 16 };

void sha256(const void *data, size_t len, uint8_t out[DIGEST]);
void hex(const uint8_t *data, size_t len, char *out); /* 2 * len + 1 bytes */

/* Memory of one request: a partition, a slot and a page table per group. */
struct held {
	int partition, slot;
	int32_t *tables[MAX_GROUPS];
	int pages[MAX_GROUPS];
};

/* The arenas of every rank, and which pages and slots are free. */
struct cache {
	int ranks, tp, partitions, regions, groups;
	pypto_pd_region region[MAX_REGIONS]; /* the last is the bootstrap arena */
	uint8_t **arena;                     /* [rank * regions + region] */
	/* a ring of free ids per partition and group; the last group are the slots */
	struct pool {
		int32_t *id;
		int first, count, size;
	} *pool;
};

/* Reads the shape of a node and gives it memory. Exits on failure. */
void cache_open(struct cache *c, pypto_pd_node node, int tp);
void cache_close(struct cache *c);
/* Pages and a slot for so many positions; false if there are none. */
bool cache_take(struct cache *c, int64_t tokens, struct held *out);
void cache_give_back(struct cache *c, struct held *h);
/* The tables as runs; the caller frees. */
pypto_pd_run *cache_runs(const struct cache *c, const struct held *h, uint64_t *count);

/* keys + i * KEY names the first i tokens; room for n + 1. */
void keys_begin(uint8_t *keys, const char *revision);
void keys_extend(uint8_t *keys, const int32_t *tokens, int64_t from, int64_t to);

/* Writes every row that closes in [from, to), and the window of hidden states. */
void cache_compute(struct cache *c, const struct held *h, const uint8_t *keys, int64_t from, int64_t to, int64_t prompt);
void cache_clear_slot(struct cache *c, const struct held *h);
/* What decode reads of n positions, and what its drafter reads; false if the
 * ranks of a partition hold different bytes. */
bool cache_digest(struct cache *c, const struct held *h, int64_t n, uint8_t out[DIGEST]);
bool cache_hidden(struct cache *c, const struct held *h, int64_t prompt, uint8_t out[DIGEST]);

int32_t first_token(const uint8_t digest[DIGEST]);

#endif

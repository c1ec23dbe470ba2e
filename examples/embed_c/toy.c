#include "toy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t rotate(uint32_t v, int n) { return v >> n | v << (32 - n); }

static const uint32_t K[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
	0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
	0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
	0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
	0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
	0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static void sha256_block(uint32_t h[8], const uint8_t *p)
{
	uint32_t w[64], s[8];

	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
	for (int i = 16; i < 64; i++) {
		uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
		uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;

		w[i] = w[i - 16] + a + w[i - 7] + b;
	}
	memcpy(s, h, sizeof s);
	for (int i = 0; i < 64; i++) {
		uint32_t a = rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25);
		uint32_t t = s[7] + a + ((s[4] & s[5]) ^ (~s[4] & s[6])) + K[i] + w[i];
		uint32_t b = rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22);
		uint32_t u = b + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));

		memmove(s + 1, s, 7 * sizeof *s);
		s[4] += t;
		s[0] = t + u;
	}
	for (int i = 0; i < 8; i++)
		h[i] += s[i];
}

void sha256(const void *data, size_t len, uint8_t out[DIGEST])
{
	uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
	const uint8_t *p = data;
	uint8_t tail[128] = {0};
	size_t rest = len % 64, size = rest < 56 ? 64 : 128;

	for (size_t i = 0; i + 64 <= len; i += 64)
		sha256_block(h, p + i);
	if (rest)
		memcpy(tail, p + len - rest, rest);
	tail[rest] = 0x80;
	for (int i = 0; i < 8; i++)
		tail[size - 1 - i] = (uint8_t)((uint64_t)len * 8 >> 8 * i);
	for (size_t i = 0; i < size; i += 64)
		sha256_block(h, tail + i);
	for (int i = 0; i < DIGEST; i++)
		out[i] = (uint8_t)(h[i / 4] >> (24 - i % 4 * 8));
}

void hex(const uint8_t *data, size_t len, char *out)
{
	for (size_t i = 0; i < len; i++)
		sprintf(out + 2 * i, "%02x", data[i]);
}

static uint32_t crc32c(uint32_t sum, const uint8_t *p, size_t len)
{
	sum = ~sum;
	while (len--) {
		sum ^= *p++;
		for (int i = 0; i < 8; i++)
			sum = sum >> 1 ^ (sum & 1 ? 0x82f63b78 : 0);
	}
	return ~sum;
}

static uint64_t little(const uint8_t *p, int bytes)
{
	uint64_t v = 0;

	for (int i = bytes; i-- > 0;)
		v = v << 8 | p[i];
	return v;
}

static void put32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

/* PCG-DXSM, 64 bits at a time. */
static void random_bytes(uint64_t seed1, uint64_t seed2, uint8_t *out, int size)
{
	unsigned __int128 state = (unsigned __int128)seed1 << 64 | seed2;
	const unsigned __int128 mul = (unsigned __int128)2549297995355413924u << 64 | 4865540595714422341u;
	const unsigned __int128 inc = (unsigned __int128)6364136223846793005u << 64 | 1442695040888963407u;

	for (int i = 0; i < size; i += 8) {
		state = state * mul + inc;
		uint64_t hi = (uint64_t)(state >> 64), lo = (uint64_t)state;

		hi ^= hi >> 32;
		hi *= 0xda942042e4dd58b5u;
		hi ^= hi >> 48;
		hi *= lo | 1;
		for (int j = 0; j < 8 && i + j < size; j++)
			out[i + j] = (uint8_t)(hi >> 8 * j);
	}
}

static void row(const uint8_t *keys, int64_t position, int component, int layer, uint8_t *out, int size)
{
	const uint8_t *k = keys + position * KEY;

	random_bytes(little(k, 8) ^ (uint64_t)component << 32 ^ (uint64_t)layer, little(k + 8, 8), out, size);
}

void keys_begin(uint8_t *keys, const char *revision)
{
	char text[128];
	uint8_t sum[DIGEST];
	int n = snprintf(text, sizeof text, "pypto-pd reference engine\n%s", revision);

	sha256(text, (size_t)n, sum);
	memcpy(keys, sum, KEY);
}

void keys_extend(uint8_t *keys, const int32_t *tokens, int64_t from, int64_t to)
{
	for (int64_t i = from; i < to; i++) {
		uint8_t text[KEY + 4], sum[DIGEST];

		memcpy(text, keys + i * KEY, KEY);
		put32(text + KEY, (uint32_t)tokens[i]);
		sha256(text, sizeof text, sum);
		memcpy(keys + (i + 1) * KEY, sum, KEY);
	}
}

static void *must(void *p)
{
	if (!p) {
		fputs("embed_c: out of memory\n", stderr);
		exit(1);
	}
	return p;
}

static void pool_open(struct pool *p, int size)
{
	*p = (struct pool){.id = must(calloc((size_t)size, sizeof *p->id)), .count = size, .size = size};
	for (int i = 0; i < size; i++)
		p->id[i] = i;
}

static int32_t pool_take(struct pool *p)
{
	int32_t id = p->id[p->first];

	p->first = (p->first + 1) % p->size;
	p->count--;
	return id;
}

static void pool_give(struct pool *p, int32_t id) { p->id[(p->first + p->count++) % p->size] = id; }

static void check(int32_t code, const char *what, const pypto_pd_text *why)
{
	if (code == 0)
		return;
	fprintf(stderr, "embed_c: %s: %.*s (%d)\n", what, (int)(why->len < why->cap ? why->len : why->cap), why->at, code);
	exit(1);
}

static const pypto_pd_region *of_group(const struct cache *c, int group)
{
	for (int i = 0; i < c->regions; i++)
		if (c->region[i].group == group)
			return &c->region[i];
	return NULL;
}

void cache_open(struct cache *c, pypto_pd_node node, int tp)
{
	char room[1024];
	pypto_pd_text why = {room, sizeof room, 0};

	memset(c, 0, sizeof *c);
	check(pypto_pd_node_shape(node, &c->ranks, &c->regions, &why), "shape", &why);
	c->tp = tp;
	c->partitions = c->ranks / tp;
	for (int i = 0; i < c->regions; i++) {
		check(pypto_pd_node_region(node, i, &c->region[i], &why), "region", &why);
		if (c->region[i].group >= c->groups)
			c->groups = c->region[i].group + 1;
	}
	c->arena = must(calloc((size_t)(c->ranks * c->regions), sizeof *c->arena));
	for (int r = 0; r < c->ranks; r++)
		for (int i = 0; i < c->regions; i++) {
			uint64_t bytes = c->region[i].bytes;
			uint8_t *at = must(aligned_alloc(64, (bytes + 63) / 64 * 64));

			memset(at, 0xff, bytes);
			c->arena[r * c->regions + i] = at;
			check(pypto_pd_node_memory(node, r, i, (uint64_t)(uintptr_t)at, bytes, &why), "memory", &why);
		}
	c->pool = must(calloc((size_t)(c->partitions * (c->groups + 1)), sizeof *c->pool));
	for (int p = 0; p < c->partitions; p++)
		for (int g = 0; g <= c->groups; g++)
			pool_open(&c->pool[p * (c->groups + 1) + g], g < c->groups ? of_group(c, g)->pool_pages : c->region[c->regions - 1].pool_pages);
}

void cache_close(struct cache *c)
{
	for (int i = 0; i < c->ranks * c->regions; i++)
		free(c->arena[i]);
	free(c->arena);
	for (int i = 0; i < c->partitions * (c->groups + 1); i++)
		free(c->pool[i].id);
	free(c->pool);
}

static int pages_of(const pypto_pd_region *r, int64_t tokens)
{
	int64_t n = (tokens + r->page_tokens - 1) / r->page_tokens;

	return (int)(r->ring_period && n > r->ring_period ? r->ring_period : n);
}

static bool fits(const struct cache *c, const struct pool *pool, int64_t tokens)
{
	for (int g = 0; g < c->groups; g++)
		if (pool[g].count < pages_of(of_group(c, g), tokens))
			return false;
	return pool[c->groups].count > 0;
}

bool cache_take(struct cache *c, int64_t tokens, struct held *out)
{
	for (int p = 0; p < c->partitions; p++) {
		struct pool *pool = &c->pool[p * (c->groups + 1)];

		if (!fits(c, pool, tokens))
			continue;
		memset(out, 0, sizeof *out);
		out->partition = p;
		for (int g = 0; g < c->groups; g++) {
			out->pages[g] = pages_of(of_group(c, g), tokens);
			out->tables[g] = must(calloc((size_t)out->pages[g] + 1, sizeof *out->tables[g]));
			for (int i = 0; i < out->pages[g]; i++)
				out->tables[g][i] = pool_take(&pool[g]);
		}
		out->slot = pool_take(&pool[c->groups]);
		return true;
	}
	return false;
}

void cache_give_back(struct cache *c, struct held *h)
{
	struct pool *pool = &c->pool[h->partition * (c->groups + 1)];

	for (int g = 0; g < c->groups; g++) {
		for (int i = 0; i < h->pages[g]; i++)
			pool_give(&pool[g], h->tables[g][i]);
		free(h->tables[g]);
	}
	pool_give(&pool[c->groups], h->slot);
}

pypto_pd_run *cache_runs(const struct cache *c, const struct held *h, uint64_t *count)
{
	size_t most = 1;
	pypto_pd_run *runs;

	for (int g = 0; g < c->groups; g++)
		most += (size_t)h->pages[g];
	runs = must(calloc(most, sizeof *runs));
	*count = 0;
	for (int g = 0; g < c->groups; g++)
		for (int i = 0; i < h->pages[g]; i++) {
			pypto_pd_run *last = i ? &runs[*count - 1] : NULL;

			if (last && last->first + last->count == h->tables[g][i])
				last->count++;
			else
				runs[(*count)++] = (pypto_pd_run){g, h->tables[g][i], 1};
		}
	return runs;
}

/* The model's number of a component's own layer: 2 is the CSA layer, 3 the HCA
 * layer of the tiny geometry's four. */
static int layer_of(const pypto_pd_region *r, int layer)
{
	if (!strcmp(r->component, "ori"))
		return layer;
	return strncmp(r->component, "hca", 3) ? 2 : 3;
}

static size_t place(const pypto_pd_region *r, const struct held *h, int layer, int64_t n)
{
	int64_t logical = n / r->rows_per_page;
	int32_t page = h->tables[r->group][r->ring_period ? logical % r->ring_period : logical];

	return ((size_t)layer * (size_t)r->pages_per_layer + (size_t)page) * (size_t)r->page_bytes + (size_t)(n % r->rows_per_page) * (size_t)r->row_bytes;
}

static uint8_t *arena_of(struct cache *c, const struct held *h, int replica, int region)
{
	return c->arena[(h->partition * c->tp + replica) * c->regions + region];
}

void cache_compute(struct cache *c, const struct held *h, const uint8_t *keys, int64_t from, int64_t to, int64_t prompt)
{
	const pypto_pd_region *b = &c->region[c->regions - 1];
	int64_t base = prompt > b->rows_per_page ? prompt - b->rows_per_page : 0;
	uint8_t *data = must(malloc(1 << 16));

	for (int i = 0; i < c->regions - 1; i++) {
		const pypto_pd_region *r = &c->region[i];

		for (int64_t n = from / r->row_tokens; n < to / r->row_tokens; n++)
			for (int l = 0; l < r->layers; l++) {
				row(keys, (n + 1) * r->row_tokens, i, layer_of(r, l), data, r->row_bytes);
				for (int t = 0; t < c->tp; t++)
					memcpy(arena_of(c, h, t, i) + place(r, h, l, n), data, (size_t)r->row_bytes);
			}
	}
	for (int64_t p = from > base ? from : base; p < to; p++) {
		row(keys, p + 1, c->regions - 1, 0, data, b->row_bytes);
		for (int t = 0; t < c->tp; t++)
			memcpy(arena_of(c, h, t, c->regions - 1) + (size_t)h->slot * (size_t)b->page_bytes + (size_t)(p - base) * (size_t)b->row_bytes,
			       data, (size_t)b->row_bytes);
	}
	free(data);
}

void cache_clear_slot(struct cache *c, const struct held *h)
{
	size_t size = (size_t)c->region[c->regions - 1].page_bytes;

	for (int t = 0; t < c->tp; t++)
		memset(arena_of(c, h, t, c->regions - 1) + (size_t)h->slot * size, 0, size);
}

bool cache_digest(struct cache *c, const struct held *h, int64_t n, uint8_t out[DIGEST])
{
	uint8_t sums[2][4 * 256];

	for (int t = 0; t < c->tp; t++) {
		uint8_t *at = sums[t > 0];

		for (int i = 0; i < c->regions - 1; i++) {
			const pypto_pd_region *r = &c->region[i];
			int64_t first = r->window_tokens && n > r->window_tokens ? (n - r->window_tokens) / r->row_tokens : 0;

			for (int l = 0; l < r->layers; l++, at += 4) {
				uint32_t sum = 0;

				for (int64_t k = first; k < n / r->row_tokens; k++)
					sum = crc32c(sum, arena_of(c, h, t, i) + place(r, h, l, k), (size_t)r->row_bytes);
				put32(at, sum);
			}
		}
		if (t == 0)
			sha256(sums[0], (size_t)(at - sums[0]), out);
		else if (memcmp(sums[0], sums[1], (size_t)(at - sums[1])))
			return false;
	}
	return true;
}

bool cache_hidden(struct cache *c, const struct held *h, int64_t prompt, uint8_t out[DIGEST])
{
	const pypto_pd_region *b = &c->region[c->regions - 1];
	size_t rows = (size_t)(prompt < b->rows_per_page ? prompt : b->rows_per_page);
	uint8_t sums[2][4];

	for (int t = 0; t < c->tp; t++) {
		put32(sums[t > 0], crc32c(0, arena_of(c, h, t, c->regions - 1) + (size_t)h->slot * (size_t)b->page_bytes, rows * (size_t)b->row_bytes));
		if (t > 0 && memcmp(sums[0], sums[1], 4))
			return false;
	}
	sha256(sums[0], 4, out);
	return true;
}

int32_t first_token(const uint8_t digest[DIGEST])
{
	const uint64_t words = 310; /* of the reference engine */
	uint8_t text[2 * DIGEST] = {0}, chain[DIGEST + 1] = {0}, sum[DIGEST];
	uint64_t v;

	memcpy(text + DIGEST, digest, DIGEST);
	sha256(text, sizeof text, chain);
	sha256(chain, sizeof chain, sum);
	v = little(sum, 8);
	return v % 211 == 0 ? 257 : (int32_t)(512 + v / 211 % words);
}

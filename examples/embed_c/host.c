/*
 * A model server in C that is one side of a prefill/decode pair, through
 * libpypto-pd. It serves POST /v1/completions of a pypto-pd-router on the port
 * of its pd.json entry. The model is a toy (toy.c); the cache manager, the HTTP
 * API and the threads are this server's own, everything between the two nodes is
 * the library's.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "http.h"
#include "toy.h"

enum { STEP = 128, MAX_REQUESTS = 256 };

/* One handoff on this side. It is there while its POST is open, its prompt is
 * being computed, or its memory is held. */
struct request {
	char handoff[40];
	bool used, posted, holds;
	struct held held;

	/* the POST */
	bool accepted, ended;
	int32_t code;
	char why[512], text[2 * DIGEST + 1];
	int64_t tokens;

	/* prefill */
	int32_t *prompt;
	uint8_t *keys;
	int64_t length, done;
	int32_t chunk;
	bool computing, resumed, pinned, stopped;
};

static pypto_pd_node node;
static struct cache cache;
static bool prefilling;
static char revision[2 * DIGEST + 1];
static const char *model;
static volatile sig_atomic_t stopping;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct request requests[MAX_REQUESTS]; /* guarded by lock, as all below */
static int connections;

struct reason {
	char room[512];
	pypto_pd_text text;
};

static pypto_pd_text *reason(struct reason *r)
{
	r->text = (pypto_pd_text){r->room, sizeof r->room - 1, 0};
	return &r->text;
}

static const char *said(struct reason *r)
{
	r->room[r->text.len < sizeof r->room - 1 ? r->text.len : sizeof r->room - 1] = 0;
	return r->room;
}

static void complain(int32_t code, const char *what, struct reason *why)
{
	if (code)
		fprintf(stderr, "embed_c: %s: %s (%d)\n", what, said(why), code);
}

static struct request *find(const char *handoff, bool make)
{
	struct request *empty = NULL;

	for (int i = 0; i < MAX_REQUESTS; i++) {
		if (requests[i].used && !strcmp(requests[i].handoff, handoff))
			return &requests[i];
		if (!requests[i].used && !empty)
			empty = &requests[i];
	}
	if (!make || !empty)
		return NULL;
	memset(empty, 0, sizeof *empty);
	empty->used = true;
	snprintf(empty->handoff, sizeof empty->handoff, "%s", handoff);
	return empty;
}

static void give_back(struct request *r)
{
	if (r->holds)
		cache_give_back(&cache, &r->held);
	r->holds = false;
}

/* Forgets a request that nobody needs any more. */
static void settle(struct request *r)
{
	if (r->posted || r->computing || r->holds)
		return;
	free(r->prompt);
	free(r->keys);
	r->used = false;
}

static void reserve(struct request *r, int64_t tokens)
{
	struct reason why;
	uint64_t count;
	pypto_pd_run *runs;
	pypto_pd_memory memory;
	int32_t code;

	if (!cache_take(&cache, tokens, &r->held)) {
		complain(pypto_pd_refuse(node, r->handoff, reason(&why)), "refuse", &why);
		return;
	}
	r->holds = true;
	runs = cache_runs(&cache, &r->held, &count);
	memory = (pypto_pd_memory){r->held.partition, r->held.slot, 0};
	code = pypto_pd_grant(node, r->handoff, &memory, runs, count, reason(&why));
	if (code != PYPTO_PD_UNKNOWN_KEY) /* withdrawn meanwhile: WITHDRAWN follows */
		complain(code, "grant", &why);
	free(runs);
}

/* Computes the next chunk once the one before it was taken and is read no more,
 * so that its pages stay as they are. */
static void compute(struct request *r)
{
	struct reason why;
	uint8_t digest[DIGEST];
	pypto_pd_chunk chunk = {.chunk = r->chunk, .partition = r->held.partition, .slot = r->held.slot, .start = r->done};
	pypto_pd_run *runs;
	uint64_t count;

	chunk.end = r->length - r->done > STEP ? r->done + STEP : r->length;
	keys_extend(r->keys, r->prompt, chunk.start, chunk.end);
	cache_compute(&cache, &r->held, r->keys, chunk.start, chunk.end, r->length);
	if ((chunk.final = chunk.end == r->length)) {
		cache_digest(&cache, &r->held, r->length, digest);
		chunk.first_token = first_token(digest);
	}
	r->done = chunk.end;
	r->chunk++;
	r->resumed = false;
	r->pinned = true;
	runs = cache_runs(&cache, &r->held, &count);
	complain(pypto_pd_chunk_ready(node, r->handoff, &chunk, runs, count, reason(&why)), "chunk", &why);
	free(runs);
}

static void begin_prompt(struct request *r, int64_t tokens)
{
	struct reason why;
	uint64_t n = 0;

	r->prompt = calloc((size_t)tokens, sizeof *r->prompt);
	r->keys = calloc((size_t)tokens + 1, KEY);
	if (!r->prompt || !r->keys || pypto_pd_prompt(node, r->handoff, r->prompt, (uint64_t)tokens, &n, reason(&why)) || !cache_take(&cache, tokens, &r->held)) {
		complain(pypto_pd_prefill_stopped(node, r->handoff, PYPTO_PD_CAPACITY_EXHAUSTED, reason(&why)), "stopped", &why);
		return;
	}
	r->holds = r->computing = r->resumed = true;
	r->length = tokens;
	cache_clear_slot(&cache, &r->held);
	keys_begin(r->keys, revision);
}

static void prefill(struct request *r, const pypto_pd_event *e)
{
	struct reason why;

	if (e->kind == PYPTO_PD_PREFILL)
		begin_prompt(r, e->tokens);
	if (!r->computing)
		return;
	if (e->kind == PYPTO_PD_RESUME)
		r->resumed = true;
	if (e->kind == PYPTO_PD_PAGES_FREE)
		r->pinned = false;
	if (e->kind == PYPTO_PD_STOP_PREFILL) {
		r->stopped = true;
		complain(pypto_pd_prefill_stopped(node, r->handoff, 0, reason(&why)), "stopped", &why);
	}
	if (r->stopped && !r->pinned) {
		r->computing = false;
		give_back(r);
	} else if (!r->stopped && r->resumed && !r->pinned && r->done < r->length) {
		compute(r);
	}
}

/* The toy's whole output is the fingerprint of what it was given. */
static void decode(struct request *r, const pypto_pd_event *e)
{
	struct reason why;
	uint8_t text[4 + 2 * DIGEST], print[DIGEST];
	bool whole;

	for (int i = 0; i < 4; i++)
		text[i] = (uint8_t)((uint32_t)e->first_token >> 8 * i);
	whole = cache_digest(&cache, &r->held, e->tokens, text + 4) && cache_hidden(&cache, &r->held, e->tokens, text + 4 + DIGEST);
	sha256(text, sizeof text, print);
	hex(print, DIGEST, r->text);
	r->tokens = e->tokens;
	complain(pypto_pd_decode_stopped(node, r->handoff, whole ? 0 : PYPTO_PD_INTEGRITY, reason(&why)), "stopped", &why);
}

static void take(const pypto_pd_event *e, struct reason *why)
{
	struct request *r = find(e->handoff, e->kind == PYPTO_PD_RESERVE);

	if (!r)
		return;
	switch (e->kind) {
	case PYPTO_PD_ACCEPTED:
		r->accepted = true;
		break;
	case PYPTO_PD_ENDED:
		r->ended = true;
		r->code = e->code;
		snprintf(r->why, sizeof r->why, "%s", said(why));
		break;
	case PYPTO_PD_RESERVE:
		reserve(r, e->tokens);
		break;
	case PYPTO_PD_WITHDRAWN:
	case PYPTO_PD_RELEASED:
		give_back(r);
		break;
	case PYPTO_PD_ADOPT:
		decode(r, e);
		break;
	case PYPTO_PD_PREFILL:
	case PYPTO_PD_RESUME:
	case PYPTO_PD_STOP_PREFILL:
	case PYPTO_PD_PAGES_FREE:
		prefill(r, e);
		break;
	default: /* STOP_DECODE: the output was made in one step; QUARANTINED: wait for RELEASED */
		break;
	}
	settle(r);
	pthread_cond_broadcast(&changed);
}

/* The one thread that polls. */
static void *poll_events(void *unused)
{
	(void)unused;
	while (!stopping) {
		pypto_pd_event e;
		struct reason why;

		if (pypto_pd_node_poll(node, 200, &e, reason(&why)))
			continue;
		pthread_mutex_lock(&lock);
		take(&e, &why);
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

static void refuse(struct http_request *http, int32_t code, const char *why)
{
	char *text = json_text(why), *body = NULL;
	bool fault = code == PYPTO_PD_INVALID_REQUEST || code == PYPTO_PD_UNSUPPORTED || code == PYPTO_PD_INVALID_LENGTH || code == PYPTO_PD_CONTEXT_LENGTH_EXCEEDED;

	if (asprintf(&body, "{\"object\":\"error\",\"message\":\"%s\",\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":\"%d\"}}",
		     text, text, fault ? "invalid_request_error" : "server_error", code) > 0)
		http_json(http, fault ? 400 : 503, body);
	free(body);
	free(text);
}

static pypto_pd_bytes bytes(const char *text) { return (pypto_pd_bytes){text, strlen(text)}; }

/* What the library needs of the body, as JSON; the caller frees. */
static char *work(const struct completion *c)
{
	char *out = NULL, *list = malloc((size_t)c->prompt * 12 + 1), *at = list;

	if (!prefilling) {
		free(list);
		return asprintf(&out, "{\"stream\":%s}", c->stream ? "true" : "false") > 0 ? out : NULL;
	}
	for (long i = 0; list && i < c->prompt; i++)
		at += sprintf(at, "%s%d", i ? "," : "", c->tokens[i]);
	if (list && asprintf(&out, "{\"prompt_tokens\":[%s],\"max_new_tokens\":%ld,\"temperature\":\"0\",\"top_p\":\"1\",\"stop\":[],%s\"stream\":%s}",
			     list, c->max_tokens, c->ignore_eos ? "" : "\"eos\":257,", c->stream ? "true" : "false") < 0)
		out = NULL;
	free(list);
	return out;
}

/* Waits for a POST's answer and gives it. */
static void follow(struct http_request *http, struct request *r, bool stream)
{
	bool begun = false, left = false;
	char body[1024], why[sizeof r->why];
	struct reason because;

	pthread_mutex_lock(&lock);
	while (!r->ended) {
		struct timespec until;

		if (stream && !prefilling && r->accepted && !begun) {
			http_begin(http);
			begun = true;
		}
		if (!left && http_left(http)) {
			left = true;
			pypto_pd_leave(node, r->handoff, reason(&because)); /* it may end at the same moment */
		}
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += 20000000;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&changed, &lock, &until);
	}
	int32_t code = r->code;

	memcpy(why, r->why, sizeof why);
	snprintf(body, sizeof body,
		 "{\"id\":\"%s\",\"object\":\"text_completion\",\"created\":0,\"model\":\"%s\",\"choices\":[{\"index\":0,\"text\":\"%s\",\"logprobs\":null,"
		 "\"finish_reason\":\"stop\"}]}",
		 http->route[1], model, r->text);
	if (!stream || prefilling)
		snprintf(body + strlen(body) - 1, sizeof body - strlen(body),
			 ",\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":1,\"total_tokens\":%lld}}", (long long)r->tokens, (long long)r->tokens + 1);
	pthread_mutex_unlock(&lock);
	if (code && !begun) {
		refuse(http, code, why);
	} else if (!stream || prefilling) {
		http_json(http, 200, body);
	} else {
		if (!begun)
			http_begin(http);
		if (code) {
			char *text = json_text(why);

			snprintf(body, sizeof body, "{\"error\":{\"message\":\"%s\",\"type\":\"server_error\",\"param\":null,\"code\":\"%d\"}}", text, code);
			free(text);
		}
		http_event(http, body);
		if (!code)
			http_event(http, "[DONE]");
		http_event(http, NULL);
	}
}

static void complete(struct http_request *http)
{
	struct completion c;
	struct reason why;
	struct request *r;
	int32_t code;
	pypto_pd_route route = {
		bytes(http->route[0]), bytes(http->route[1]), bytes(http->route[2]), bytes(http->route[3]), bytes(http->route[4]), bytes(http->route[5]),
	};

	if (!completion_read(http->body, http->length, &c)) {
		refuse(http, PYPTO_PD_INVALID_REQUEST, "the body is not a completion request");
		free(c.tokens);
		return;
	}
	char *text = work(&c);

	pthread_mutex_lock(&lock);
	r = find(http->route[2], true);
	if (r)
		r->posted = true;
	pthread_mutex_unlock(&lock);
	code = r && text ? pypto_pd_post(node, &route, bytes(text), reason(&why)) : PYPTO_PD_NODE_BUSY;
	free(text);
	free(c.tokens);
	if (code)
		refuse(http, code, r ? said(&why) : "too many requests");
	else
		follow(http, r, c.stream);
	pthread_mutex_lock(&lock);
	if (r) {
		r->posted = false;
		settle(r);
	}
	pthread_mutex_unlock(&lock);
}

static void *serve(void *fd)
{
	struct http_request http;

	if (http_read((int)(intptr_t)fd, &http)) {
		if (!strcmp(http.method, "POST") && !strcmp(http.path, "/v1/completions"))
			complete(&http);
		else
			http_json(&http, !strcmp(http.path, "/health") ? 200 : 404, "{\"status\":\"ok\"}");
	}
	http_end(&http);
	pthread_mutex_lock(&lock);
	connections--;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return NULL;
}

static void *accept_connections(void *listener)
{
	pthread_attr_t detached;

	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	for (;;) {
		pthread_t thread;
		int fd = accept4((int)(intptr_t)listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0)
			break;
		pthread_mutex_lock(&lock);
		connections++;
		pthread_mutex_unlock(&lock);
		if (pthread_create(&thread, &detached, serve, (void *)(intptr_t)fd)) {
			close(fd);
			pthread_mutex_lock(&lock);
			connections--;
			pthread_mutex_unlock(&lock);
		}
	}
	pthread_attr_destroy(&detached);
	return NULL;
}

static void must(int32_t code, const char *what, struct reason *why)
{
	complain(code, what, why);
	if (code)
		exit(1);
}

int main(int argc, char **argv)
{
	char config[2048];
	uint8_t sum[DIGEST];
	struct reason why;
	pthread_t poller, acceptor;
	sigset_t signals;
	int signal, listener;

	if (argc != 7 || strcmp(argv[4], "--port")) {
		fprintf(stderr, "usage: embed_c pd.json prefill|decode HOST --port PORT SERVED-MODEL\n");
		return 2;
	}
	prefilling = !strcmp(argv[2], "prefill");
	model = argv[6];
	sha256("reference", strlen("reference"), sum); /* as pypto-serving's default --model */
	hex(sum, DIGEST, revision);
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);

	if (pypto_pd_abi() != PYPTO_PD_ABI) {
		fprintf(stderr, "embed_c: the library has ABI %u, this program wants %u\n", pypto_pd_abi(), PYPTO_PD_ABI);
		return 1;
	}
	snprintf(config, sizeof config,
		 "{\"pd_config\":\"%s\",\"role\":\"%s\",\"node_id\":\"%s:%s\",\"served_model\":\"%s\",\"revision\":\"%s\",\"geometry\":\"tiny\",\"ranks\":2,\"tp\":1,"
		 "\"pool_tokens\":8192,\"step_tokens\":%d,\"sequences\":16,\"max_model_tokens\":16384}",
		 argv[1], argv[2], argv[3], argv[5], model, revision, STEP);
	must(pypto_pd_node_open(bytes(config), &node, reason(&why)), "open", &why);
	cache_open(&cache, node, 1);
	must(pypto_pd_node_start(node, 30000, reason(&why)), "start", &why);
	listener = http_listen(argv[3], argv[5]);
	pthread_create(&poller, NULL, poll_events, NULL);
	pthread_create(&acceptor, NULL, accept_connections, (void *)(intptr_t)listener);
	printf("embed_c ready: role=%s http=%s:%s\n", argv[2], argv[3], argv[5]);
	fflush(stdout);

	sigwait(&signals, &signal);
	must(pypto_pd_node_drain(node, 60000, reason(&why)), "drain", &why);
	shutdown(listener, SHUT_RDWR);
	pthread_join(acceptor, NULL);
	close(listener);
	pthread_mutex_lock(&lock);
	while (connections > 0)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	stopping = 1;
	pthread_join(poller, NULL);
	must(pypto_pd_node_close(node, 30000, reason(&why)), "close", &why);
	cache_close(&cache);
	return 0;
}

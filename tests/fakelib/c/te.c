/*
 * A Transfer Engine for tests: it has the C API of the real one, moves bytes
 * between processes over TCP, and is stricter. Whatever would be undefined in
 * the real one (a freed batch, an empty string, an unknown opcode) aborts.
 *
 * Every segment has one connection and one worker, which sends one task at a
 * time. A target writes into its memory in the thread of the connection.
 */
#define _GNU_SOURCE
#include "knobs.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifdef FAKE_ASCEND
int aclrtGetDevice(int32_t *device);
int fakelib_acl_owns(const void *p, size_t n);
#endif

enum { WAITING = 0, COMPLETED = 4, FAILED = 6 };
enum { OP_READ = 0, OP_WRITE = 1, OP_HELLO = 2 };
enum { FLAG_STALL = 1, FLAG_HALF = 2 };
enum { MAX_REGIONS = 256, MAX_SEGMENTS = 256, MAX_INBOUND = 1024 };

typedef struct {
	uint32_t magic, op, flags, pad;
	uint64_t address, length;
} header;
#define MAGIC 0x46414b45u

typedef struct {
	int opcode;
	void *source;
	int32_t target_id;
	uint64_t target_offset, length;
} request;
typedef struct {
	int status;
	uint64_t transferred_bytes;
} task_status;

typedef struct batch batch;
typedef struct segment segment;
typedef struct engine engine;

typedef struct task {
	request r;
	batch *batch;
	struct task *next;
	int status, asked, fails;
	uint64_t bytes;
} task;

struct batch {
	uint64_t id;
	engine *engine;
	size_t size, count, refs;
	int dropped;
	task *tasks;
	batch *next;
};

struct segment {
	engine *engine;
	char name[256];
	pthread_t thread;
	pthread_cond_t work;
	task *head, *tail;
	int fd;
};

typedef struct {
	engine *engine;
	pthread_t thread;
	int fd, ended;
} inbound;

struct engine {
	char host[192], name[256];
	int listener, port, closing, stalls;
	pthread_t acceptor;
	struct { char *base; size_t length; } regions[MAX_REGIONS];
	int region_count;
	segment *segments[MAX_SEGMENTS];
	int segment_count;
	inbound *inbounds[MAX_INBOUND];
	int inbound_count;
	engine *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static engine *engines;
static batch *batches;
static uint64_t last_batch = 0x1000;
static int last_port;

static void die(const char *call, const char *why) {
	fprintf(stderr, "fakelib: %s: %s\n", call, why);
	abort();
}

static void nap(int64_t millis) {
	if (millis <= 0) return;
	struct timespec t = {millis / 1000, millis % 1000 * 1000000};
	while (nanosleep(&t, &t) != 0) {}
}

static void held(int k) {
	while (knob(k)) nap(1);
}

static engine *find_engine(const char *call, void *p) {
	for (engine *e = engines; e != NULL; e = e->next)
		if (e == p) return e;
	die(call, "the engine does not exist or was destroyed");
	return NULL;
}

static batch *find_batch(const char *call, uint64_t id) {
	for (batch *b = batches; b != NULL; b = b->next)
		if (b->id == id) return b;
	die(call, "the batch does not exist or was freed");
	return NULL;
}

static void need_string(const char *call, const char *s) {
	if (s == NULL || *s == 0) die(call, "a string is NULL or empty");
}

static void need_context(const char *call) {
#ifdef FAKE_ASCEND
	int32_t device;
	if (aclrtGetDevice(&device) != 0) die(call, "the thread has no device context");
#else
	(void)call;
#endif
}

static void *spawned(void *(*body)(void *), pthread_t *thread, void *arg) {
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int failed = pthread_create(thread, NULL, body, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (failed) die("pthread_create", strerror(failed));
	count(C_THREADS, 1);
	return arg;
}

static void joined(pthread_t thread) {
	pthread_join(thread, NULL);
	count(C_THREADS, -1);
}

static int send_all(int fd, struct iovec *v, int n) {
	while (n > 0) {
		struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)n};
		ssize_t sent = sendmsg(fd, &m, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR) continue;
		if (sent <= 0) return -1;
		while (n > 0 && (size_t)sent >= v->iov_len) sent -= (ssize_t)(v++)->iov_len, n--;
		if (n > 0) v->iov_base = (char *)v->iov_base + sent, v->iov_len -= (size_t)sent;
	}
	return 0;
}

static int receive_all(int fd, void *p, size_t n) {
	while (n > 0) {
		ssize_t got = recv(fd, p, n, 0);
		if (got < 0 && errno == EINTR) continue;
		if (got <= 0) return -1;
		p = (char *)p + got, n -= (size_t)got;
	}
	return 0;
}

/* ---- target ---- */

static char *find_region(engine *e, uint64_t address, uint64_t length) {
	char *p = (char *)(uintptr_t)address;
	for (int i = 0; i < e->region_count; i++) {
		char *base = e->regions[i].base;
		if (p >= base && length <= e->regions[i].length && p <= base + e->regions[i].length - length) return p;
	}
	return NULL;
}

typedef struct {
	char *to, *bytes;
	size_t length;
} late_write;

static void *hidden_retry(void *arg) {
	late_write *w = arg;
	held(K_HOLD_RETRIES);
	memcpy(w->to, w->bytes, w->length);
	free(w->bytes);
	free(w);
	count(C_HIDDEN_RETRIES, 1);
	return NULL;
}

static void stall(int fd) {
	struct pollfd p = {fd, POLLRDHUP, 0};
	while (poll(&p, 1, -1) < 0 && errno == EINTR) {}
}

static void serve(engine *e, int fd) {
	header h;
	while (receive_all(fd, &h, sizeof h) == 0 && h.magic == MAGIC) {
		uint32_t answer = COMPLETED;
		if (h.op == OP_HELLO) {
			struct iovec v = {&answer, sizeof answer};
			if (send_all(fd, &v, 1) != 0) return;
			continue;
		}
		if (h.flags & FLAG_STALL) {
			stall(fd);
			return;
		}
		pthread_mutex_lock(&lock);
		char *p = find_region(e, h.address, h.length);
		pthread_mutex_unlock(&lock);
		if (p == NULL) answer = FAILED;
		if (h.op == OP_READ) {
			struct iovec v[2] = {{&answer, sizeof answer}, {p, h.length}};
			if (send_all(fd, v, answer == COMPLETED ? 2 : 1) != 0) return;
			continue;
		}
		if (answer == FAILED) {
			char sink[65536];
			for (uint64_t left = h.length; left > 0;) {
				size_t n = left < sizeof sink ? left : sizeof sink;
				if (receive_all(fd, sink, n) != 0) return;
				left -= n;
			}
		} else if (h.flags & FLAG_HALF) {
			receive_all(fd, p, h.length / 2);
			return;
		} else {
			if (receive_all(fd, p, h.length) != 0) return;
			count(C_APPLIED, 1);
			if (knob(K_HIDDEN_RETRY)) {
				late_write *w = malloc(sizeof *w);
				char *copy = malloc(h.length);
				if (w == NULL || copy == NULL) abort();
				memcpy(copy, p, h.length);
				*w = (late_write){p, copy, h.length};
				pthread_t thread;
				spawned(hidden_retry, &thread, w);
				pthread_detach(thread);
				count(C_THREADS, -1);
			}
		}
		nap(knob(K_ANSWER_MILLIS));
		struct iovec v = {&answer, sizeof answer};
		if (send_all(fd, &v, 1) != 0) return;
	}
}

static void *serve_thread(void *arg) {
	inbound *in = arg;
	serve(in->engine, in->fd);
	shutdown(in->fd, SHUT_RDWR);
	pthread_mutex_lock(&lock);
	in->ended = 1;
	pthread_mutex_unlock(&lock);
	return NULL;
}

static void drop_inbound(inbound *in) {
	joined(in->thread);
	close(in->fd);
	free(in);
}

static void *accept_thread(void *arg) {
	engine *e = arg;
	for (;;) {
		int fd = accept(e->listener, NULL, NULL);
		if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
		if (fd < 0) return NULL;
		int on = 1;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		inbound *gone[MAX_INBOUND];
		int n = 0;
		pthread_mutex_lock(&lock);
		for (int i = 0; i < e->inbound_count;) {
			if (e->inbounds[i]->ended) {
				gone[n++] = e->inbounds[i];
				e->inbounds[i] = e->inbounds[--e->inbound_count];
			} else {
				i++;
			}
		}
		if (e->closing || e->inbound_count == MAX_INBOUND) {
			close(fd);
		} else {
			inbound *in = calloc(1, sizeof *in);
			if (in == NULL) abort();
			in->engine = e, in->fd = fd;
			e->inbounds[e->inbound_count++] = in;
			spawned(serve_thread, &in->thread, in);
		}
		pthread_mutex_unlock(&lock);
		for (int i = 0; i < n; i++) drop_inbound(gone[i]);
	}
}

/* ---- source ---- */

static int dial(const char *name) {
	char host[256];
	snprintf(host, sizeof host, "%s", name);
	char *port = strrchr(host, ':');
	if (port == NULL) return -1;
	*port++ = 0;
	char *start = host;
	if (*start == '[' && port[-2] == ']') start++, port[-2] = 0;
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
	if (getaddrinfo(start, port, &hints, &list) != 0) return -1;
	int fd = -1;
	for (struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
		fd = socket(a->ai_family, a->ai_socktype, 0);
		struct timeval limit = {5, 0};
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
		if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) close(fd), fd = -1;
		limit.tv_sec = 0;
		if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	}
	freeaddrinfo(list);
	if (fd >= 0) {
		int on = 1;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	}
	return fd;
}

static int transfer(segment *s, int fd, task *t) {
	header h = {MAGIC, (uint32_t)t->r.opcode, 0, 0, t->r.target_offset, t->r.length};
	if (t->r.opcode == OP_WRITE && s->engine->stalls) h.flags |= FLAG_STALL;
	if (t->r.opcode == OP_WRITE && knob(K_HALF_THEN_FAIL)) h.flags |= FLAG_HALF;
	struct iovec v[2] = {{&h, sizeof h}, {t->r.source, t->r.length}};
	if (send_all(fd, v, t->r.opcode == OP_WRITE ? 2 : 1) != 0) return -1;
	uint32_t answer;
	if (receive_all(fd, &answer, sizeof answer) != 0) return -1;
	if (answer == COMPLETED && t->r.opcode == OP_READ && receive_all(fd, t->r.source, t->r.length) != 0) return -1;
	return answer == COMPLETED ? 1 : 0;
}

static void release(batch *b) {
	if (--b->refs > 0) return;
	for (batch **p = &batches; *p != NULL; p = &(*p)->next) {
		if (*p != b) continue;
		*p = b->next;
		break;
	}
	free(b->tasks);
	free(b);
}

static void *send_thread(void *arg) {
	segment *s = arg;
	engine *e = s->engine;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (s->head == NULL && !e->closing) pthread_cond_wait(&s->work, &lock);
		task *t = s->head;
		if (t == NULL) break;
		if ((s->head = t->next) == NULL) s->tail = NULL;
		int fd = s->fd, done = -1;
		if (!e->closing && !t->fails) {
			pthread_mutex_unlock(&lock);
			if (fd < 0) fd = dial(s->name);
			pthread_mutex_lock(&lock);
			s->fd = fd;
			if (e->closing && fd >= 0) shutdown(fd, SHUT_RDWR);
			pthread_mutex_unlock(&lock);
			if (fd >= 0) done = transfer(s, fd, t);
			pthread_mutex_lock(&lock);
			if (done < 0 && s->fd >= 0) close(s->fd), s->fd = -1;
		}
		t->status = done == 1 ? COMPLETED : FAILED;
		t->bytes = done == 1 ? t->r.length : 0;
		count(C_TASKS, -1);
		release(t->batch);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* ---- the C API ---- */

static void foreign_handler(int s) { (void)s; }

/* Throws a C++ exception, by the C++ ABI and without a C++ compiler. */
static void throw_int(void) {
	void *runtime = dlopen("libstdc++.so.6", RTLD_NOW | RTLD_LOCAL);
	if (runtime == NULL) die("createTransferEngine", dlerror());
	void *(*allocate)(size_t);
	void (*raise_it)(void *, void *, void (*)(void *));
	*(void **)&allocate = dlsym(runtime, "__cxa_allocate_exception");
	*(void **)&raise_it = dlsym(runtime, "__cxa_throw");
	void *int_type = dlsym(runtime, "_ZTIi");
	if (allocate == NULL || raise_it == NULL || int_type == NULL) die("createTransferEngine", "libstdc++ cannot throw");
	int *exception = allocate(sizeof *exception);
	*exception = 42;
	raise_it(exception, int_type, NULL);
}

static void disturb(void) {
	if (knob(K_CREATE_HANDLERS)) {
		int list[] = {SIGINT, SIGPIPE, SIGSEGV};
		for (int i = 0; i < 3; i++) {
			struct sigaction a = {.sa_handler = foreign_handler};
			sigaction(list[i], &a, NULL);
		}
	}
	if (knob(K_CREATE_PRINTS)) {
		printf("fakelib says hello\n");
		fflush(stdout);
	}
	if (turn(K_CREATE_THROWS)) throw_int();
}

static int env_int(const char *name, int otherwise) {
	const char *text = getenv(name);
	return text == NULL ? otherwise : atoi(text);
}

void *createTransferEngine(const char *metadata, const char *server, const char *host, uint64_t port, int discover) {
	need_string("createTransferEngine", metadata);
	need_string("createTransferEngine", server);
	need_string("createTransferEngine", host);
	(void)port, (void)discover;
	if (strcmp(metadata, "P2PHANDSHAKE") != 0) die("createTransferEngine", "metadata is not P2PHANDSHAKE");
	nap(knob(K_CREATE_MILLIS));
	disturb();
	if (turn(K_CREATE_FAILS)) return NULL;
#ifdef FAKE_ASCEND
	need_context("createTransferEngine");
#else
	if (getenv("MC_FORCE_TCP") == NULL) return NULL; /* no transport */
#endif
	__atomic_store_n(&fakelib_slots()[C_RETRY_CNT], env_int("MC_RETRY_CNT", 9), __ATOMIC_SEQ_CST);
	engine *e = calloc(1, sizeof *e);
	if (e == NULL) abort();
	snprintf(e->host, sizeof e->host, "%s", server);
	e->stalls = knob(K_STALL) != 0;
	int low = env_int("MC_MIN_RPC_PORT", 15000), high = env_int("MC_MAX_RPC_PORT", 17000);
	unsigned seed = (unsigned)getpid() ^ (unsigned)(uintptr_t)e ^ (unsigned)time(NULL) ^ (unsigned)knob(C_CREATED) * 2654435761u;
	int family = AF_INET6, on = 1, off = 0, bound = -1;
	if ((e->listener = socket(family, SOCK_STREAM, 0)) < 0) e->listener = socket(family = AF_INET, SOCK_STREAM, 0);
	if (family == AF_INET6) setsockopt(e->listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
	setsockopt(e->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	int wanted = knob(K_SAME_PORT) > 0 ? last_port : 0;
	turn(K_SAME_PORT);
	for (int i = 0; i < 500 && bound != 0; i++) {
		e->port = wanted ? wanted : low + (int)(rand_r(&seed) % (unsigned)(high - low + 1));
		struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)e->port), .sin6_addr = in6addr_any};
		struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)e->port)};
		bound = family == AF_INET6 ? bind(e->listener, (struct sockaddr *)&six, sizeof six)
		                           : bind(e->listener, (struct sockaddr *)&four, sizeof four);
	}
	if (bound != 0 || listen(e->listener, 512) != 0) {
		close(e->listener);
		free(e);
		return NULL;
	}
	last_port = e->port;
	snprintf(e->name, sizeof e->name, strchr(server, ':') ? "[%s]:%d" : "%s:%d", server, e->port + (int)knob(K_WRONG_PORT));
	spawned(accept_thread, &e->acceptor, e);
	pthread_mutex_lock(&lock);
	e->next = engines;
	engines = e;
	pthread_mutex_unlock(&lock);
	count(C_ENGINES, 1);
	count(C_CREATED, 1);
	return e;
}

void destroyTransferEngine(void *p) {
	need_context("destroyTransferEngine");
	nap(knob(K_DESTROY_MILLIS));
	held(K_HOLD_DESTROY);
	pthread_mutex_lock(&lock);
	engine *e = find_engine("destroyTransferEngine", p);
	e->closing = 1;
	shutdown(e->listener, SHUT_RDWR);
	for (int i = 0; i < e->inbound_count; i++) shutdown(e->inbounds[i]->fd, SHUT_RDWR);
	for (int i = 0; i < e->segment_count; i++) {
		if (e->segments[i]->fd >= 0) shutdown(e->segments[i]->fd, SHUT_RDWR);
		pthread_cond_broadcast(&e->segments[i]->work);
	}
	pthread_mutex_unlock(&lock);
	joined(e->acceptor);
	for (int i = 0; i < e->inbound_count; i++) drop_inbound(e->inbounds[i]);
	for (int i = 0; i < e->segment_count; i++) {
		segment *s = e->segments[i];
		joined(s->thread);
		if (s->fd >= 0) close(s->fd);
		pthread_cond_destroy(&s->work);
		free(s);
	}
	close(e->listener);
	pthread_mutex_lock(&lock);
	for (engine **q = &engines; *q != NULL; q = &(*q)->next) {
		if (*q != e) continue;
		*q = e->next;
		break;
	}
	pthread_mutex_unlock(&lock);
	count(C_SEGMENTS, -e->segment_count);
	count(C_REGIONS, -e->region_count);
	count(C_ENGINES, -1);
	free(e);
}

int getLocalIpAndPort(void *p, char *buffer, size_t size) {
	pthread_mutex_lock(&lock);
	engine *e = find_engine("getLocalIpAndPort", p);
	snprintf(buffer, size, "%s", e->name);
	pthread_mutex_unlock(&lock);
	return 0;
}

int32_t openSegmentNoCache(void *p, const char *name) {
	need_string("openSegmentNoCache", name);
	nap(knob(K_OPEN_MILLIS));
	held(K_HOLD_OPEN);
	pthread_mutex_lock(&lock);
	engine *e = find_engine("openSegmentNoCache", p);
	int id = 0;
	for (int i = 0; i < e->segment_count; i++)
		if (strcmp(e->segments[i]->name, name) == 0) id = i + 1;
	pthread_mutex_unlock(&lock);
	if (turn(K_OPEN_FAILS)) return -1;
	if (id > 0) return id; /* also when the peer is gone, as the real one */
	int fd = dial(name);
	header h = {.magic = MAGIC, .op = OP_HELLO};
	struct iovec v = {&h, sizeof h};
	uint32_t answer;
	if (fd < 0) return -1;
	if (send_all(fd, &v, 1) != 0 || receive_all(fd, &answer, sizeof answer) != 0) {
		close(fd);
		return -1;
	}
	pthread_mutex_lock(&lock);
	if (e->segment_count == MAX_SEGMENTS) die("openSegmentNoCache", "too many segments for a test");
	segment *s = calloc(1, sizeof *s);
	if (s == NULL) abort();
	s->engine = e, s->fd = fd;
	snprintf(s->name, sizeof s->name, "%s", name);
	pthread_cond_init(&s->work, NULL);
	e->segments[e->segment_count++] = s;
	id = e->segment_count;
	spawned(send_thread, &s->thread, s);
	pthread_mutex_unlock(&lock);
	count(C_SEGMENTS, 1);
	return id;
}

int registerLocalMemory(void *p, void *address, size_t length, const char *location, int remote) {
	need_context("registerLocalMemory");
	need_string("registerLocalMemory", location);
	(void)remote;
	if (turn(K_REGISTER_NTH)) return (int)knob(K_REGISTER_CODE);
	if (knob(K_PINS)) {
		struct rlimit limit;
		if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || length > limit.rlim_cur) return -302;
	}
	pthread_mutex_lock(&lock);
	engine *e = find_engine("registerLocalMemory", p);
	int code = length == 0 ? -1 : 0;
#ifdef FAKE_ASCEND
	if (strncmp(location, "npu:", 4) != 0) die("registerLocalMemory", "the location of device memory is not npu:N");
	if (!fakelib_acl_owns(address, length)) code = -1;
#endif
	for (int i = 0; i < e->region_count; i++) {
		char *base = e->regions[i].base;
		if ((char *)address < base + e->regions[i].length && base < (char *)address + length) code = -7;
	}
	if (code == 0 && e->region_count == MAX_REGIONS) code = -2;
	if (code == 0) {
		e->regions[e->region_count].base = address;
		e->regions[e->region_count++].length = length;
		count(C_REGIONS, 1);
	}
	pthread_mutex_unlock(&lock);
	return code;
}

int unregisterLocalMemory(void *p, void *address) {
	need_context("unregisterLocalMemory");
	if (knob(K_UNREGISTER_CODE)) return (int)knob(K_UNREGISTER_CODE);
	pthread_mutex_lock(&lock);
	engine *e = find_engine("unregisterLocalMemory", p);
	int code = -3;
	for (int i = 0; i < e->region_count; i++) {
		if (e->regions[i].base != (char *)address) continue;
		e->regions[i] = e->regions[--e->region_count];
		count(C_REGIONS, -1);
		code = 0;
		break;
	}
	pthread_mutex_unlock(&lock);
	return code;
}

uint64_t allocateBatchID(void *p, size_t size) {
	if (turn(K_ALLOCATE_FAILS)) return UINT64_MAX;
	pthread_mutex_lock(&lock);
	engine *e = find_engine("allocateBatchID", p);
	batch *b = calloc(1, sizeof *b);
	if (b == NULL || (b->tasks = calloc(size, sizeof *b->tasks)) == NULL) abort();
	b->id = last_batch += 16;
	b->engine = e, b->size = size, b->refs = 1;
	b->next = batches;
	batches = b;
	uint64_t id = b->id;
	pthread_mutex_unlock(&lock);
	count(C_BATCHES, 1);
	return id;
}

int submitTransfer(void *p, uint64_t id, request *list, size_t n) {
	nap(knob(K_SUBMIT_MILLIS));
	if (turn(K_SUBMIT_SEGV)) *(volatile int *)(uintptr_t)8 = 1;
	int code = (int)knob(K_SUBMIT_CODE);
	if (code != 0 && !knob(K_SUBMIT_BEGINS)) return code;
	pthread_mutex_lock(&lock);
	engine *e = find_engine("submitTransfer", p);
	batch *b = find_batch("submitTransfer", id);
	if (b->engine != e) die("submitTransfer", "the batch belongs to another engine");
	if (b->count + n > b->size) code = 2;
	for (size_t i = 0; i < n && code == 0; i++) {
		if (list[i].opcode != OP_READ && list[i].opcode != OP_WRITE) die("submitTransfer", "unknown opcode");
		if (list[i].length == 0) die("submitTransfer", "zero length");
		if (list[i].target_id < 1 || list[i].target_id > e->segment_count) code = 1;
	}
	size_t begins = code == 0 ? n : code > 2 ? n / 2 : 0;
	for (size_t i = 0; i < begins; i++) {
		task *t = &b->tasks[b->count++];
		t->r = list[i], t->batch = b, t->status = WAITING;
		t->fails = turn(K_FAIL_NTH_TASK);
		b->refs++;
		segment *s = e->segments[t->r.target_id - 1];
		if (s->tail != NULL) s->tail->next = t;
		else s->head = t;
		s->tail = t;
		pthread_cond_signal(&s->work);
		count(C_TASKS, 1);
		count(C_REQUESTS, 1);
	}
	pthread_mutex_unlock(&lock);
	count(C_SUBMITTED, 1);
	return code;
}

int getTransferStatus(void *p, uint64_t id, size_t n, task_status *out) {
	count(C_STATUS_CALLS, 1);
	pthread_mutex_lock(&lock);
	find_engine("getTransferStatus", p);
	batch *b = find_batch("getTransferStatus", id);
	if (b->dropped) die("getTransferStatus", "the batch was freed");
	int code = n < b->count ? 0 : 1;
	if (code == 0) {
		task *t = &b->tasks[n];
		int write = t->r.opcode == OP_WRITE;
		out->status = t->status;
		out->transferred_bytes = t->bytes;
		int ended = t->status == COMPLETED || t->status == FAILED;
		/* A forced status is given instead of the true one, for writes only. */
		if (write && knob(K_STATUS)) {
			out->status = (int)knob(K_STATUS) - 1;
			ended = ended && (out->status == COMPLETED || out->status == FAILED);
		}
		if (write && knob(K_STATUS_CODE)) code = (int)knob(K_STATUS_CODE);
		if (write && knob(K_SHORT) && out->status == COMPLETED) out->transferred_bytes -= (uint64_t)knob(K_SHORT);
		if (ended && code == 0) t->asked = 1;
	}
	pthread_mutex_unlock(&lock);
	return code;
}

int freeBatchID(void *p, uint64_t id) {
	if (knob(K_FREE_CODE)) return (int)knob(K_FREE_CODE);
	pthread_mutex_lock(&lock);
	find_engine("freeBatchID", p);
	batch *b = find_batch("freeBatchID", id);
	if (b->dropped) die("freeBatchID", "the batch was freed before");
	for (size_t i = 0; i < b->count; i++) {
		if (!b->tasks[i].asked) {
			pthread_mutex_unlock(&lock);
			return 4;
		}
	}
	b->dropped = 1;
	release(b);
	pthread_mutex_unlock(&lock);
	count(C_BATCHES, -1);
	count(C_FREED, 1);
	return 0;
}

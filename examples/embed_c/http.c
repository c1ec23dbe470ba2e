#define _GNU_SOURCE
#include "http.h"

#include <ctype.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_HEAD = 1 << 16, MAX_BODY = 32 << 20 };

static const char *const route_names[ROUTE_HEADERS] = {
	"X-PD-Version", "X-PD-Request-Id", "X-PD-Handoff-Id", "X-PD-Run-Id", "X-PD-Self", "X-PD-Peer",
};

int http_listen(const char *host, const char *port)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
	int fd, one = 1, code = getaddrinfo(host, port, &hints, &found);

	if (code) {
		fprintf(stderr, "embed_c: %s: %s\n", host, gai_strerror(code));
		exit(1);
	}
	fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, 128)) {
		perror("embed_c: listen");
		exit(1);
	}
	freeaddrinfo(found);
	return fd;
}

/* Cuts the head into lines and finds what matters. */
static bool read_head(struct http_request *r, char *head)
{
	char *save, *line = strtok_r(head, "\r\n", &save), *word;

	if (!line)
		return false;
	r->method = strtok_r(line, " ", &word);
	r->path = strtok_r(NULL, " ", &word);
	for (int i = 0; i < ROUTE_HEADERS; i++)
		r->route[i] = "";
	while ((line = strtok_r(NULL, "\r\n", &save))) {
		char *value = strchr(line, ':');

		if (!value)
			return false;
		*value++ = 0;
		value += strspn(value, " \t");
		if (!strcasecmp(line, "Content-Length"))
			r->length = strtol(value, NULL, 10);
		for (int i = 0; i < ROUTE_HEADERS; i++)
			if (!strcasecmp(line, route_names[i]))
				r->route[i] = value;
	}
	return r->method && r->path && r->length >= 0 && r->length <= MAX_BODY;
}

bool http_read(int fd, struct http_request *r)
{
	long have = 0, head = 0;

	memset(r, 0, sizeof *r);
	r->fd = fd;
	r->text = calloc(1, MAX_HEAD + 1);
	while (r->text && !head && have < MAX_HEAD) {
		ssize_t n = recv(fd, r->text + have, (size_t)(MAX_HEAD - have), 0);
		char *end;

		if (n <= 0)
			return false;
		have += n;
		r->text[have] = 0;
		if ((end = strstr(r->text, "\r\n\r\n")))
			head = end - r->text + 4;
	}
	if (!head)
		return false;
	r->text[head - 1] = 0; /* the last line's end */
	have -= head;
	if (!read_head(r, r->text) || have > r->length || !(r->body = calloc(1, (size_t)r->length + 1)))
		return false;
	memcpy(r->body, r->text + head, (size_t)have);
	while (have < r->length) {
		ssize_t n = recv(fd, r->body + have, (size_t)(r->length - have), 0);

		if (n <= 0)
			return false;
		have += n;
	}
	return true;
}

void http_end(struct http_request *r)
{
	free(r->text);
	free(r->body);
	close(r->fd);
}

bool http_left(const struct http_request *r)
{
	struct pollfd p = {.fd = r->fd, .events = POLLRDHUP};

	return poll(&p, 1, 0) > 0;
}

static void put(int fd, const char *text, size_t len)
{
	while (len > 0) {
		ssize_t n = send(fd, text, len, MSG_NOSIGNAL);

		if (n <= 0)
			return; /* the client has left; its end is noticed elsewhere */
		text += n;
		len -= (size_t)n;
	}
}

static void print(int fd, const char *format, ...)
{
	char *text = NULL;
	va_list args;
	int n;

	va_start(args, format);
	n = vasprintf(&text, format, args);
	va_end(args);
	if (n > 0)
		put(fd, text, (size_t)n);
	if (n >= 0)
		free(text);
}

void http_json(struct http_request *r, int status, const char *json)
{
	print(r->fd, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
	      status, status == 200 ? "OK" : "Refused", strlen(json), json);
}

void http_begin(struct http_request *r)
{
	print(r->fd, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
}

void http_event(struct http_request *r, const char *data)
{
	if (!data)
		print(r->fd, "0\r\n\r\n");
	else
		print(r->fd, "%zx\r\ndata: %s\n\n\r\n", strlen(data) + 8, data);
}

struct reader {
	const char *at, *end;
};

static void skip_space(struct reader *j)
{
	while (j->at < j->end && isspace((unsigned char)*j->at))
		j->at++;
}

static bool take(struct reader *j, char c)
{
	skip_space(j);
	if (j->at >= j->end || *j->at != c)
		return false;
	j->at++;
	return true;
}

/* Reads four hex digits. */
static bool unit(struct reader *j, unsigned *out)
{
	char digits[5] = {0}, *stop;

	if (j->end - j->at < 4)
		return false;
	memcpy(digits, j->at, 4);
	*out = (unsigned)strtoul(digits, &stop, 16);
	j->at += 4;
	return *stop == 0;
}

/* Reads a string into UTF-8; out may be NULL. Returns its bytes, -1 if none. */
static long string(struct reader *j, char *out)
{
	long n = 0;

	if (!take(j, '"'))
		return -1;
	while (j->at < j->end && *j->at != '"') {
		unsigned v = (unsigned char)*j->at++, low;
		char utf[4];
		int size = 1;

		if (v != '\\') {
			utf[0] = (char)v;
		} else if (j->at >= j->end) {
			return -1;
		} else if (*j->at != 'u') {
			static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
			const char *simple = strchr(from, *j->at);

			utf[0] = simple && *simple ? to[simple - from] : *j->at;
			j->at++;
		} else {
			j->at++;
			if (!unit(j, &v))
				return -1;
			if (v >= 0xd800 && v < 0xdc00 && j->end - j->at >= 6 && j->at[0] == '\\' && j->at[1] == 'u') {
				j->at += 2;
				if (!unit(j, &low))
					return -1;
				v = 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
			}
			size = v < 0x80 ? 1 : v < 0x800 ? 2 : v < 0x10000 ? 3 : 4;
			for (int i = size; i-- > 1; v >>= 6)
				utf[i] = (char)(0x80 | (v & 0x3f));
			utf[0] = (char)(size == 1 ? v : (0xf00u >> size & 0xf0) | v);
		}
		if (out)
			memcpy(out + n, utf, (size_t)size);
		n += size;
	}
	return take(j, '"') ? n : -1;
}

static bool skip_value(struct reader *j)
{
	int depth = 0;

	do {
		skip_space(j);
		if (j->at >= j->end)
			return false;
		if (*j->at == '"') {
			if (string(j, NULL) < 0)
				return false;
			continue;
		}
		if (strchr("[{", *j->at))
			depth++;
		else if (strchr("]}", *j->at) && --depth < 0)
			return false;
		if (strchr("[{]},:", *j->at)) {
			j->at++;
			continue;
		}
		while (j->at < j->end && !strchr(",]} \t\r\n", *j->at))
			j->at++;
	} while (depth > 0);
	return true;
}

static bool word(struct reader *j, const char *want)
{
	skip_space(j);
	return (size_t)(j->end - j->at) >= strlen(want) && !memcmp(j->at, want, strlen(want));
}

bool completion_read(const char *body, long length, struct completion *out)
{
	struct reader j = {body, body + length};

	*out = (struct completion){.max_tokens = 16};
	if (!take(&j, '{'))
		return false;
	do {
		char key[64];
		struct reader probe = j;
		long n = string(&probe, NULL);

		if (n < 0 || n >= (long)sizeof key)
			return false;
		string(&j, key);
		key[n] = 0;
		if (!take(&j, ':'))
			return false;
		probe = j;
		if (!strcmp(key, "prompt")) {
			char *text = malloc((size_t)length);
			long bytes = text ? string(&probe, text) : -1;

			if (bytes < 1 || !(out->tokens = calloc((size_t)bytes, sizeof *out->tokens))) {
				free(text);
				return false;
			}
			for (long i = 0; i < bytes; i++)
				out->tokens[i] = (unsigned char)text[i];
			out->prompt = bytes;
			free(text);
		} else if (!strcmp(key, "max_tokens")) {
			skip_space(&probe);
			out->max_tokens = strtol(probe.at, NULL, 10);
		} else if (!strcmp(key, "stream")) {
			out->stream = word(&probe, "true");
		} else if (!strcmp(key, "ignore_eos")) {
			out->ignore_eos = word(&probe, "true");
		}
		if (!skip_value(&j))
			return false;
	} while (take(&j, ','));
	return take(&j, '}') && out->tokens && out->max_tokens > 0;
}

char *json_text(const char *text)
{
	char *out = calloc(6, strlen(text) + 1), *at = out;

	for (; out && *text; text++) {
		if (*text == '"' || *text == '\\')
			at += sprintf(at, "\\%c", *text);
		else if ((unsigned char)*text < 0x20)
			at += sprintf(at, "\\u%04x", *text);
		else
			*at++ = *text;
	}
	return out;
}

/* As much of HTTP/1.1 and JSON as a toy server behind a router needs. */
#ifndef HTTP_H
#define HTTP_H

#include <stdbool.h>
#include <stdint.h>

enum { ROUTE_HEADERS = 6 };

struct http_request {
	int fd;
	char *text; /* the head; method, path and route point into it */
	const char *method, *path;
	char *body;
	long length;
	const char *route[ROUTE_HEADERS]; /* X-PD-*, "" where absent */
};

/* Listens on host:port; exits on failure. */
int http_listen(const char *host, const char *port);
/* Reads one request; false if the client sent none. The caller ends it. */
bool http_read(int fd, struct http_request *r);
void http_end(struct http_request *r);
/* Says that the client has left. */
bool http_left(const struct http_request *r);

void http_json(struct http_request *r, int status, const char *json);
/* One server-sent event; begin first, NULL ends the stream. */
void http_begin(struct http_request *r);
void http_event(struct http_request *r, const char *data);

/* What of a completion's body the toy looks at. */
struct completion {
	int32_t *tokens; /* the prompt, one token a byte; the caller frees */
	long prompt, max_tokens;
	bool stream, ignore_eos;
};

/* Reads a body; false if it is none. */
bool completion_read(const char *body, long length, struct completion *out);
/* Text as a JSON string without quotes; the caller frees. */
char *json_text(const char *text);

#endif

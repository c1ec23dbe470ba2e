/* What a host must not do: every call is refused with a reason, and nothing
 * ends the process. Prints one line per case: name, code. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pypto/pd.h"

static char room[512];
static pypto_pd_text why;

static pypto_pd_text *reason(void)
{
	memset(room, 0, sizeof room);
	why = (pypto_pd_text){room, sizeof room - 1, 0};
	return &why;
}

static void show(const char *name, int32_t code)
{
	printf("%s %d %s\n", name, code, why.len > 0 ? "with a reason" : "");
}

static pypto_pd_bytes bytes(const char *s) { return (pypto_pd_bytes){s, strlen(s)}; }

static void of_no_node(pypto_pd_node n)
{
	int32_t a, b;
	pypto_pd_event e;
	pypto_pd_region r;
	pypto_pd_route route = {0};
	pypto_pd_chunk chunk = {0};
	pypto_pd_memory memory = {0};
	uint64_t len;

	show("shape", pypto_pd_node_shape(n, &a, &b, reason()));
	show("region", pypto_pd_node_region(n, 0, &r, reason()));
	show("memory", pypto_pd_node_memory(n, 0, 0, 64, 64, reason()));
	show("start", pypto_pd_node_start(n, 1, reason()));
	show("self", pypto_pd_node_self(n, NULL, reason()));
	show("poll", pypto_pd_node_poll(n, 0, &e, NULL));
	show("status", pypto_pd_node_status(n, NULL, reason()));
	show("drain", pypto_pd_node_drain(n, 0, reason()));
	show("post", pypto_pd_post(n, &route, bytes("{}"), reason()));
	show("leave", pypto_pd_leave(n, "x", reason()));
	show("prompt", pypto_pd_prompt(n, "x", NULL, 0, &len, reason()));
	show("continuation", pypto_pd_continuation(n, "x", NULL, reason()));
	show("chunk", pypto_pd_chunk_ready(n, "x", &chunk, NULL, 0, reason()));
	show("grant", pypto_pd_grant(n, "x", &memory, NULL, 0, reason()));
	show("refuse", pypto_pd_refuse(n, "x", reason()));
	show("stopped", pypto_pd_prefill_stopped(n, "x", 0, reason()));
	show("stopped", pypto_pd_decode_stopped(n, "x", 0, reason()));
	show("close", pypto_pd_node_close(n, 0, reason()));
}

int main(int argc, char **argv)
{
	pypto_pd_node node = 0, again = 0;
	pypto_pd_owner owner = 0;
	pypto_pd_text tiny = {room, 3, 0};
	int status;
	pid_t child;

	if (argc != 2)
		return 2;
	puts("no handle");
	of_no_node(0);
	of_no_node(UINT64_MAX);
	puts("nonsense");
	show("open NULL", pypto_pd_node_open(bytes(argv[1]), NULL, reason()));
	show("open empty", pypto_pd_node_open((pypto_pd_bytes){NULL, 0}, &node, reason()));
	show("open nonsense", pypto_pd_node_open(bytes("{\"role\":1}"), &node, reason()));
	show("open huge", pypto_pd_node_open((pypto_pd_bytes){argv[1], UINT64_MAX}, &node, reason()));
	show("owner nonsense", pypto_pd_owner_open(bytes("[]"), &owner, reason()));
	printf("short reason %d of %llu\n", pypto_pd_node_open(bytes("{}"), &node, &tiny), (unsigned long long)tiny.cap);
	show("open without a reason", pypto_pd_node_open(bytes("{}"), &node, NULL));

	puts("a node that is not started");
	show("open", pypto_pd_node_open(bytes(argv[1]), &node, reason()));
	show("region -1", pypto_pd_node_region(node, -1, NULL, reason()));
	show("memory of rank -1", pypto_pd_node_memory(node, -1, 0, 64, 64, reason()));
	show("memory of size 0", pypto_pd_node_memory(node, 0, 0, 64, 0, reason()));
	show("start without memory", pypto_pd_node_start(node, 1000, reason()));
	show("post", pypto_pd_post(node, NULL, bytes("{}"), reason()));
	show("NULL handoff", pypto_pd_grant(node, NULL, NULL, NULL, 0, reason()));
	show("grant of nothing", pypto_pd_grant(node, "x", NULL, NULL, UINT64_MAX, reason()));
	show("close", pypto_pd_node_close(node, 1000, reason()));
	show("closed twice", pypto_pd_node_close(node, 1000, reason()));
	show("open again", pypto_pd_node_open(bytes(argv[1]), &again, reason()));
	printf("a handle comes again: %s\n", again == node ? "yes" : "no");
	show("old handle", pypto_pd_node_close(node, 1000, reason()));
	show("close", pypto_pd_node_close(again, 1000, reason()));

	puts("an owner");
	show("open", pypto_pd_owner_open(bytes("{}"), &owner, reason()));
	show("serve too early", pypto_pd_owner_serve(owner, "/nowhere", reason()));
	show("freeze too early", pypto_pd_owner_freeze(owner, reason()));
	show("odd address", pypto_pd_owner_memory(owner, "ori", 65, 64, reason()));
	show("no name", pypto_pd_owner_memory(owner, NULL, 64, 64, reason()));
	show("close", pypto_pd_owner_close(owner, 1000, reason()));

	puts("a fork");
	fflush(stdout);
	child = fork();
	if (child == 0) {
		alarm(10); /* a call that entered Go would hang */
		show("in the child", pypto_pd_node_open(bytes(argv[1]), &node, reason()));
		printf("%s\n", room);
		fflush(stdout);
		_exit(0);
	}
	waitpid(child, &status, 0);
	printf("the child ended with %d\n", status);
	show("in the parent", pypto_pd_node_open(bytes(argv[1]), &node, reason()));
	show("close", pypto_pd_node_close(node, 1000, reason()));
	return 0;
}

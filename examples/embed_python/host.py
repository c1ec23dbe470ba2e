#!/usr/bin/env python3
"""A model server in Python that is one side of a prefill/decode pair, through libpypto-pd.

It serves POST /v1/completions of a pypto-pd-router on the port of its pd.json entry. The model is a toy (toy.py); the
cache manager, the HTTP API and the threads are this server's own, everything between the two nodes is the library's."""

import argparse
import hashlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pypto_pd as pd
import toy

STEP = 128  # prompt tokens that are computed at once


class Request:
    """One request on this side; its events come from the library's queue."""

    def __init__(self):
        self.events = queue.Queue()


class Server:
    def __init__(self, node, cache, role, revision):
        self.node, self.cache, self.role, self.revision = node, cache, role, revision
        self.lock, self.requests, self.stopping = threading.Lock(), {}, False
        self.prompts = {}  # prefill: what is being computed

    def dispatch(self):
        """The one thread that polls. Memory is answered here, the rest goes to the request's own thread."""
        while not self.stopping:
            e, why = self.node.poll(0.5)
            if e is None:
                continue
            h = e.handoff.decode()
            with self.lock:
                if e.kind == pd.RESERVE:
                    self.reserve(h, e.tokens)
                elif e.kind in (pd.WITHDRAWN, pd.RELEASED):
                    self.cache.give_back(h)
                elif e.kind in (pd.PREFILL, pd.RESUME, pd.PAGES_FREE, pd.STOP_PREFILL):
                    self.prefill(h, e)
                elif e.kind == pd.ADOPT:
                    self.decode(h, e)
                elif e.kind == pd.STOP_DECODE:
                    self.stop_decode(h)
                if h in self.requests and e.kind in (pd.ACCEPTED, pd.ENDED):
                    self.requests[h].events.put((e, why))

    def reserve(self, h, tokens):
        held = self.cache.take(h, tokens)
        try:
            if held is None:
                self.node.refuse(h)
            else:
                self.node.grant(h, held[0], held[1], held[2])
        except pd.Failure as failure:
            if failure.code != pd.UNKNOWN_KEY:  # withdrawn meanwhile: WITHDRAWN follows
                raise

    # Prefill: a chunk is computed when the one before it was taken and is read no more, so that its pages stay as they
    # are; a server that overlaps the two gives the next chunk pages that are not pinned.

    def prefill(self, h, e):
        if e.kind == pd.PREFILL:
            tokens = self.node.prompt(h)
            held = self.cache.take(h, len(tokens))
            if held is None:
                self.node.prefill_stopped(h, 21)  # CAPACITY_EXHAUSTED
                return
            self.cache.clear_slot(held)
            self.prompts[h] = {"tokens": tokens, "held": held, "keys": toy.Keys(self.revision), "done": 0, "chunk": 0,
                               "resumed": True, "pinned": False, "stopped": False}
        p = self.prompts.get(h)
        if p is None:
            return
        if e.kind == pd.RESUME:
            p["resumed"] = True
        elif e.kind == pd.PAGES_FREE:
            p["pinned"] = False
        elif e.kind == pd.STOP_PREFILL:
            p["stopped"] = True
            self.node.prefill_stopped(h)
        if p["stopped"]:
            if not p["pinned"]:
                del self.prompts[h]
                self.cache.give_back(h)
        elif p["resumed"] and not p["pinned"] and p["done"] < len(p["tokens"]):
            self.compute(h, p)

    def compute(self, h, p):
        start, n = p["done"], len(p["tokens"])
        end = min(start + STEP, n)
        p["keys"].extend(p["tokens"][start:end])
        self.cache.compute(p["held"], p["keys"], start, end, n)
        first = toy.first_token(self.cache.digest(p["held"], n)) if end == n else 0
        partition, slot, tables = p["held"]
        chunk = pd.Chunk(p["chunk"], partition, int(end == n), slot, first, 0, start, end, 0)
        p["done"], p["chunk"], p["resumed"], p["pinned"] = end, p["chunk"] + 1, False, True
        self.node.chunk_ready(h, chunk, tables)

    def decode(self, h, e):
        held = self.cache.held[h]
        try:
            text = toy.answer(e.first_token, self.cache.digest(held, e.tokens), self.cache.hidden(held, e.tokens))
            self.node.decode_stopped(h)
        except ValueError as error:
            text = str(error)
            self.node.decode_stopped(h, 33)  # INTEGRITY
        if h in self.requests:
            self.requests[h].text, self.requests[h].tokens = text, e.tokens

    def stop_decode(self, h):
        pass  # the toy's whole output was made in one step, and decode_stopped said so

    def post(self, route, body):
        h, r = route[2], Request()
        r.text, r.tokens = "", 0
        stream = bool(body.get("stream", False))
        work = {"stream": stream}
        if self.role == "prefill":
            prompt = body["prompt"]
            tokens = prompt if isinstance(prompt, list) else list(prompt.encode())
            work.update(prompt_tokens=tokens, max_new_tokens=int(body.get("max_tokens", 16)), temperature="0", top_p="1", stop=[])
            if not body.get("ignore_eos", False):
                work["eos"] = 257
        with self.lock:
            self.requests[h] = r
        try:
            self.node.post(route, work)
        except pd.Failure:
            with self.lock:
                self.requests.pop(h, None)
            raise
        return h, r, stream


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, code, why):
        kind, status = ("invalid_request_error", 400) if code in (2, 3, 19, 41) else ("server_error", 503)
        error = {"message": why, "type": kind, "param": None, "code": str(code)}
        self.answer(status, {"object": "error", "message": why, "error": error})

    def do_GET(self):
        self.answer(200, {"status": "ok"}) if self.path == "/health" else self.answer(404, {"error": {"message": "no such path"}})

    def do_POST(self):
        server = self.server.host
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        route = [self.headers.get(name, "") for name in
                 ("X-PD-Version", "X-PD-Request-Id", "X-PD-Handoff-Id", "X-PD-Run-Id", "X-PD-Self", "X-PD-Peer")]
        try:
            h, r, stream = server.post(route, json.loads(raw))
        except (ValueError, KeyError, TypeError) as error:
            return self.refuse(2, "the body is not a completion request: %r" % error)
        except pd.Failure as failure:
            return self.refuse(failure.code, str(failure))
        try:
            self.follow(server, h, r, stream)
        finally:
            with server.lock:
                server.requests.pop(h, None)

    def follow(self, server, h, r, stream):
        begun = False
        while True:
            try:
                e, why = r.events.get(timeout=0.1)
            except queue.Empty:
                if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, 2):  # MSG_PEEK: a FIN
                    server.node.leave(h)
                continue
            if e.kind == pd.ACCEPTED:
                if stream and not begun:
                    self.begin()
                    begun = True
                continue
            break  # ENDED
        identity = {"id": route_id(self.headers), "object": "text_completion", "created": 0, "model": server.model}
        usage = {"prompt_tokens": r.tokens, "completion_tokens": 1, "total_tokens": r.tokens + 1}
        choice = {"index": 0, "text": r.text, "logprobs": None, "finish_reason": "stop"}
        if e.code and not begun:
            return self.refuse(e.code, why)
        if not stream or server.role == "prefill":
            return self.answer(200, {**identity, "choices": [choice], "usage": usage})
        if not begun:
            self.begin()
        if e.code:
            self.event({"error": {"message": why, "type": "server_error", "param": None, "code": str(e.code)}})
        else:
            self.event({**identity, "choices": [choice]})
            self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def begin(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, value):
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def route_id(headers):
    return headers.get("X-PD-Request-Id", "")


def start_owners(args, node):
    """One process per rank. A child that only becomes another program may be started at any time."""
    owners, files = [], []
    for rank in range(node.ranks):
        path = os.path.join(args.owners, "rank%d" % rank)
        files.append(open(path + ".memory", "w+b"))
        files[rank].truncate(toy.size_of(node.regions))
        owners.append(subprocess.Popen([
            sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "owner.py"), "--library", args.library,
            "--socket", path + ".sock", "--memory", path + ".memory", "--regions", json.dumps(toy.layout(node.regions)),
        ], stdout=subprocess.PIPE))
    for owner in owners:
        owner.stdout.readline()  # ready
    return owners, files


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--library", required=True, help="path of libpypto-pd.so")
    a.add_argument("--pd-config", required=True, help="path of pd.json")
    a.add_argument("--pd-role", required=True, choices=["prefill", "decode"])
    a.add_argument("--host", default="127.0.0.1")
    a.add_argument("--port", type=int, required=True, help="HTTP port, as in pd.json")
    a.add_argument("--model", default="reference", help="name that the weights' revision is the hash of")
    a.add_argument("--served-model-name", default="reference")
    a.add_argument("--tp", type=int, default=1)
    a.add_argument("--ep", type=int, default=2, help="number of ranks")
    a.add_argument("--owners", metavar="FOLDER", help="keep the memory in one process per rank; sockets and memory files go there")
    a.add_argument("--control-secret-file", help="file with the secret that routers and all nodes have")
    args = a.parse_args()
    revision = hashlib.sha256(args.model.encode()).hexdigest()
    config = {
        "pd_config": args.pd_config, "role": args.pd_role, "node_id": "%s:%d" % (args.host, args.port),
        "served_model": args.served_model_name, "revision": revision, "geometry": "tiny", "ranks": args.ep, "tp": args.tp,
        "pool_tokens": 8192, "step_tokens": STEP, "sequences": 16, "max_model_tokens": 16384,
    }
    if args.owners:
        config["owners"] = [os.path.join(args.owners, "rank%d.sock" % rank) for rank in range(args.ep)]
    if args.control_secret_file:
        config["control_secret_file"] = args.control_secret_file
    node = pd.Node(args.library, config)
    owners, files = start_owners(args, node) if args.owners else ([], None)
    server = Server(node, toy.Cache(node, args.tp, files), args.pd_role, revision)
    server.model = args.served_model_name
    node.start(30)
    http = ThreadingHTTPServer((args.host, args.port), Handler)
    http.daemon_threads, http.host = True, server
    poller = threading.Thread(target=server.dispatch)
    poller.start()
    threading.Thread(target=http.serve_forever, daemon=True).start()
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    print("embed_python ready: role=%s http=%s:%d" % (args.pd_role, args.host, args.port), flush=True)
    done.wait()
    node.drain(60)
    server.stopping = True
    poller.join()
    node.close(30)
    http.shutdown()
    for owner in owners:
        owner.terminate()
        owner.wait()
    sys.stdout.flush()
    os._exit(0)  # the library's threads have nothing left to do


if __name__ == "__main__":
    main()

"""The functions of libpypto-pd (include/pypto/pd.h) for Python, with ctypes only."""

import ctypes
import json
from ctypes import POINTER, byref, c_char, c_char_p, c_int32, c_int64, c_uint32, c_uint64

ABI = 1
DEADLINE, UNKNOWN_KEY = 29, 15  # pd_codes.h

ACCEPTED, ENDED, PREFILL, RESUME, STOP_PREFILL, PAGES_FREE = 1, 2, 3, 4, 5, 6
RESERVE, WITHDRAWN, ADOPT, STOP_DECODE, RELEASED, QUARANTINED = 7, 8, 9, 10, 11, 12


class Bytes(ctypes.Structure):
    _fields_ = [("at", c_char_p), ("len", c_uint64)]

    def __init__(self, text):
        raw = text.encode()
        super().__init__(raw, len(raw))


class Text(ctypes.Structure):
    _fields_ = [("at", POINTER(c_char)), ("cap", c_uint64), ("len", c_uint64)]

    def __init__(self, cap=4096):
        self.room = ctypes.create_string_buffer(cap)
        super().__init__(ctypes.cast(self.room, POINTER(c_char)), cap, 0)

    def __str__(self):
        return self.room.raw[: min(self.len, self.cap)].decode(errors="replace")


class Region(ctypes.Structure):
    _fields_ = [("component", c_char * 64), ("bytes", c_uint64)] + [
        (name, c_int32)
        for name in (
            "group layers pages_per_layer pool_pages page_bytes row_bytes rows_per_page row_tokens"
            " page_tokens ring_period window_tokens reserved"
        ).split()
    ]

    @property
    def name(self):
        return self.component.decode()

    def pages(self, tokens):
        """How many pages the group's table has for so many positions."""
        n = -(-tokens // self.page_tokens)
        return min(n, self.ring_period) if self.ring_period else n


class Run(ctypes.Structure):
    _fields_ = [("group", c_int32), ("first", c_int32), ("count", c_int32)]


class Route(ctypes.Structure):
    _fields_ = [(name, Bytes) for name in "version request handoff run self peer".split()]


class Event(ctypes.Structure):
    _fields_ = (
        [("kind", c_int32), ("code", c_int32), ("handoff", c_char * 40), ("request", c_char * 264)]
        + [(name, c_int32) for name in "chunk partition slot first_token".split()]
        + [(name, c_int64) for name in "tokens max_new_tokens hit_tokens cached_tokens".split()]
    )


class Chunk(ctypes.Structure):
    _fields_ = [(name, c_int32) for name in "chunk partition final slot first_token reserved".split()] + [
        (name, c_int64) for name in "start end hit_tokens".split()
    ]


class Memory(ctypes.Structure):
    _fields_ = [("partition", c_int32), ("slot", c_int32), ("hit_tokens", c_int64)]


class Failure(Exception):
    def __init__(self, code, why):
        super().__init__(why)
        self.code = code


def runs_of(tables):
    """Page tables by group as an array of runs."""
    runs = []
    for group, table in sorted(tables.items()):
        for page in table:
            if runs and runs[-1][0] == group and runs[-1][1] + runs[-1][2] == page:
                runs[-1][2] += 1
            else:
                runs.append([group, page, 1])
    return (Run * len(runs))(*[Run(*r) for r in runs]), len(runs)


class Handle:
    """An object of the library. Methods raise Failure with a code of pd_codes.h."""

    def __init__(self, library, opening, config):
        self.c = ctypes.CDLL(library)
        self.c.pypto_pd_abi.restype = c_uint32
        if self.c.pypto_pd_abi() != ABI:
            raise Failure(-1, "%s has another ABI" % library)
        self.handle = c_uint64(0)
        self.invoke(opening, Bytes(json.dumps(config)), byref(self.handle))

    def invoke(self, name, *args):
        why = Text()
        code = getattr(self.c, "pypto_pd_" + name)(*args, byref(why))
        if code != 0:
            raise Failure(code, str(why))
        return str(why)

    def call(self, name, *args):
        return self.invoke(name, self.handle, *args)


class Owner(Handle):
    """The memory of one rank."""

    def __init__(self, library):
        super().__init__(library, "owner_open", {})

    def memory(self, component, address, size):
        self.call("owner_memory", c_char_p(component.encode()), c_uint64(address), c_uint64(size))

    def freeze(self):
        self.call("owner_freeze")

    def serve(self, path):
        self.call("owner_serve", c_char_p(path.encode()))

    def close(self, seconds):
        self.call("owner_close", c_int64(int(seconds * 1000)))


class Node(Handle):
    """One side of a pair."""

    def __init__(self, library, config):
        super().__init__(library, "node_open", config)
        ranks, regions = c_int32(0), c_int32(0)
        self.call("node_shape", byref(ranks), byref(regions))
        self.ranks, self.regions = ranks.value, []
        for i in range(regions.value):
            r = Region()
            self.call("node_region", c_int32(i), byref(r))
            self.regions.append(r)

    def memory(self, rank, index, address, size):
        self.call("node_memory", c_int32(rank), c_int32(index), c_uint64(address), c_uint64(size))

    def start(self, seconds):
        self.call("node_start", c_int64(int(seconds * 1000)))

    def poll(self, seconds):
        """The next event and, with ENDED, why; None if none came in time."""
        e = Event()
        try:
            return e, self.call("node_poll", c_int64(int(seconds * 1000)), byref(e))
        except Failure as failure:
            if failure.code == DEADLINE:
                return None, ""
            raise

    def drain(self, seconds):
        self.call("node_drain", c_int64(int(seconds * 1000)))

    def close(self, seconds):
        self.call("node_close", c_int64(int(seconds * 1000)))

    def status(self):
        out = Text(1 << 16)
        self.call("node_status", byref(out))
        return json.loads(str(out))

    def post(self, route, continuation):
        words = [Bytes(v) for v in route]  # the structure does not keep them
        self.call("post", byref(Route(*words)), Bytes(json.dumps(continuation)))

    def leave(self, handoff):
        try:
            self.call("leave", c_char_p(handoff.encode()))
        except Failure as failure:
            if failure.code != UNKNOWN_KEY:  # it ended at the same moment
                raise

    def prompt(self, handoff):
        n = c_uint64(0)
        self.call("prompt", c_char_p(handoff.encode()), None, c_uint64(0), byref(n))
        tokens = (c_int32 * n.value)()
        self.call("prompt", c_char_p(handoff.encode()), tokens, n, byref(n))
        return list(tokens)

    def chunk_ready(self, handoff, chunk, tables):
        self.call("chunk_ready", c_char_p(handoff.encode()), byref(chunk), *with_count(tables))

    def prefill_stopped(self, handoff, code=0):
        self.call("prefill_stopped", c_char_p(handoff.encode()), c_int32(code))

    def grant(self, handoff, partition, slot, tables):
        self.call("grant", c_char_p(handoff.encode()), byref(Memory(partition, slot, 0)), *with_count(tables))

    def refuse(self, handoff):
        self.call("refuse", c_char_p(handoff.encode()))

    def decode_stopped(self, handoff, code=0):
        self.call("decode_stopped", c_char_p(handoff.encode()), c_int32(code))


def with_count(tables):
    runs, n = runs_of(tables)
    return runs, c_uint64(n)

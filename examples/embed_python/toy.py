"""A toy model with the tiny cache of DeepSeek V4 DSpark: the bytes of a cache row are a function of the tokens before
it, and an answer is the fingerprint of the bytes that decode finds in its own pages. It is the function that
`pypto-serving --backend sim` computes, so the two can be paired."""

import hashlib
import mmap
import struct
import ctypes

WORD = (1 << 64) - 1
HCA_LAYER, CSA_LAYER = 3, 2  # of the tiny geometry's layers 0..3

CRC = []
for n in range(256):
    for _ in range(8):
        n = (n >> 1) ^ (0x82F63B78 if n & 1 else 0)
    CRC.append(n)


def crc32c(data):
    c = 0xFFFFFFFF
    for b in data:
        c = CRC[(c ^ b) & 0xFF] ^ (c >> 8)
    return c ^ 0xFFFFFFFF


def random_bytes(seed1, seed2, size):
    """PCG-DXSM, 64 bits at a time."""
    state, out = seed1 << 64 | seed2, bytearray()
    while len(out) < size:
        state = (state * (2549297995355413924 << 64 | 4865540595714422341) + (6364136223846793005 << 64 | 1442695040888963407)) & (1 << 128) - 1
        hi, lo = state >> 64, state & WORD
        hi ^= hi >> 32
        hi = hi * 0xDA942042E4DD58B5 & WORD
        hi ^= hi >> 48
        out += struct.pack("<Q", hi * (lo | 1) & WORD)
    return bytes(out[:size])


class Keys:
    """keys[i] names the first i tokens of a prompt."""

    def __init__(self, revision):
        self.keys = [hashlib.sha256(b"pypto-pd reference engine\n" + revision.encode()).digest()[:16]]

    def extend(self, tokens):
        for t in tokens:
            self.keys.append(hashlib.sha256(self.keys[-1] + struct.pack("<I", t)).digest()[:16])

    def row(self, position, component, layer, size):
        k = self.keys[position]
        a, b = struct.unpack("<QQ", k)
        return random_bytes(a ^ component << 32 ^ layer, b, size)


def layer_id(region, layer):
    """The model's number of a component's own layer."""
    if region.name == "ori":
        return layer
    return HCA_LAYER if region.name.startswith("hca") else CSA_LAYER


def layout(regions):
    """Where each region lies in the memory of a rank: [component, offset, bytes]."""
    out, offset = [], 0
    for r in regions:
        out.append([r.name, offset, r.bytes])
        offset += -(-r.bytes // 4096) * 4096
    return out


def size_of(regions):
    _, offset, size = layout(regions)[-1]
    return offset + size


class Cache:
    """The arenas of every rank, and who has which pages."""

    def __init__(self, node, tp, files=None):
        """files, if given, are the memory of each rank, which an owner's process registers; see layout."""
        self.regions, self.tp = node.regions, tp
        self.partitions = node.ranks // tp
        self.bootstrap = node.regions[-1]
        self.arenas = []
        for rank in range(node.ranks):
            memory = mmap.mmap(files[rank].fileno() if files else -1, size_of(node.regions))
            base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            view = memoryview(memory)
            self.arenas.append([])
            for i, (_, offset, size) in enumerate(layout(node.regions)):
                self.arenas[rank].append(view[offset : offset + size])
                if not files:
                    node.memory(rank, i, base + offset, size)
        self.groups = {r.group: r for r in node.regions if r.group >= 0}
        self.free = [{g: list(range(r.pool_pages)) for g, r in self.groups.items()} for _ in range(self.partitions)]
        self.slots = [list(range(self.bootstrap.pool_pages)) for _ in range(self.partitions)]
        self.held = {}

    def take(self, handoff, tokens):
        """Pages and a slot for so many positions, or None."""
        p = max(range(self.partitions), key=lambda p: len(self.slots[p]))
        need = {g: r.pages(tokens) for g, r in self.groups.items()}
        if not self.slots[p] or any(len(self.free[p][g]) < n for g, n in need.items()):
            return None
        tables = {g: [self.free[p][g].pop(0) for _ in range(n)] for g, n in need.items()}
        self.held[handoff] = (p, self.slots[p].pop(0), tables)
        return self.held[handoff]

    def give_back(self, handoff):
        if handoff not in self.held:
            return
        p, slot, tables = self.held.pop(handoff)
        self.slots[p].append(slot)
        for g, table in tables.items():
            self.free[p][g] += table

    def ranks(self, partition):
        return range(partition * self.tp, (partition + 1) * self.tp)

    def at(self, r, layer, tables, row):
        logical = row // r.rows_per_page
        page = tables[r.group][logical % r.ring_period if r.ring_period else logical]
        return (layer * r.pages_per_layer + page) * r.page_bytes + row % r.rows_per_page * r.row_bytes

    def compute(self, held, keys, start, end, prompt):
        """Writes every row that closes in [start, end), and the window of hidden states."""
        partition, slot, tables = held
        for i, r in enumerate(self.regions[:-1]):
            for row in range(start // r.row_tokens, end // r.row_tokens):
                for layer in range(r.layers):
                    data = keys.row((row + 1) * r.row_tokens, i, layer_id(r, layer), r.row_bytes)
                    at = self.at(r, layer, tables, row)
                    for rank in self.ranks(partition):
                        self.arenas[rank][i][at : at + r.row_bytes] = data
        b, last = self.bootstrap, len(self.regions) - 1
        base = max(0, prompt - b.rows_per_page)
        for position in range(max(start, base), end):
            data = keys.row(position + 1, last, 0, b.row_bytes)
            at = slot * b.page_bytes + (position - base) * b.row_bytes
            for rank in self.ranks(partition):
                self.arenas[rank][last][at : at + b.row_bytes] = data

    def clear_slot(self, held):
        partition, slot, _ = held
        size = self.bootstrap.page_bytes
        for rank in self.ranks(partition):
            self.arenas[rank][-1][slot * size : (slot + 1) * size] = bytes(size)

    def agree(self, partition, read):
        """What every replica of a partition holds; they must not differ."""
        sums = {read(self.arenas[rank]) for rank in self.ranks(partition)}
        if len(sums) != 1:
            raise ValueError("the ranks of partition %d hold different bytes" % partition)
        return hashlib.sha256(sums.pop()).digest()

    def digest(self, held, n):
        """What decode reads of n positions: whole histories, and windows."""
        partition, _, tables = held

        def read(arenas):
            out = b""
            for i, r in enumerate(self.regions[:-1]):
                first = max(0, n - r.window_tokens) // r.row_tokens if r.window_tokens else 0
                for layer in range(r.layers):
                    data = bytearray()
                    for row in range(first, n // r.row_tokens):
                        at = self.at(r, layer, tables, row)
                        data += arenas[i][at : at + r.row_bytes]
                    out += struct.pack("<I", crc32c(data))
            return out

        return self.agree(partition, read)

    def hidden(self, held, prompt):
        """What the drafter reads at admission."""
        partition, slot, _ = held
        b = self.bootstrap
        at, size = slot * b.page_bytes, min(prompt, b.rows_per_page) * b.row_bytes
        return self.agree(partition, lambda arenas: struct.pack("<I", crc32c(arenas[-1][at : at + size])))


def first_token(digest):
    """What prefill samples from its own pages."""
    chain = hashlib.sha256(bytes(32) + digest).digest()
    v = struct.unpack("<Q", hashlib.sha256(chain + b"\0").digest()[:8])[0]
    return 257 if v % 211 == 0 else 512 + v // 211 % WORDS


WORDS = 310  # how many words the reference engine knows


def answer(first, digest, hidden):
    """The toy's whole output: the fingerprint of what it was given."""
    return hashlib.sha256(struct.pack("<I", first) + digest + hidden).hexdigest()

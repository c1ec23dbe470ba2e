#!/usr/bin/env python3
"""The memory of one rank in a process of its own, through libpypto-pd: registration and writes run here, the model
server (host.py --owners) computes in the same pages. A real server has such a process per card."""

import argparse
import ctypes
import json
import mmap
import signal
import threading

import pypto_pd as pd


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--library", required=True)
    a.add_argument("--socket", required=True, help="where the node finds this owner")
    a.add_argument("--memory", required=True, help="file that is the memory")
    a.add_argument("--regions", required=True, help="JSON list of [component, offset, bytes]")
    args = a.parse_args()
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    with open(args.memory, "r+b") as f:
        memory = mmap.mmap(f.fileno(), 0)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    owner = pd.Owner(args.library)
    for component, offset, size in json.loads(args.regions):
        owner.memory(component, base + offset, size)
    owner.freeze()
    owner.serve(args.socket)
    print("owner ready: socket=%s" % args.socket, flush=True)
    done.wait()
    owner.close(30)


if __name__ == "__main__":
    main()

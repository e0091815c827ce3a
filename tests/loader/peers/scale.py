"""Counts what 1,296 ranks on 162 hosts ask of one real TCPStore, as clients without models.

    PYTHONPATH=.venv/typing .venv/bin/python -P -m tests.loader.peers.scale

Each rank posts the costs of its 64 samples of a step, at a random moment of the step's first part,
and the counts of a step (holes, labels); it gathers both. Ranks of a host share memory, and a host
has one connection, as in a job. The last line is a JSON object.
"""

import argparse
import json
import multiprocessing
import random
import resource
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch.distributed as dist

from counterpoise.loader.peers.exchange import Peers
from counterpoise.loader.peers.joining import join
from counterpoise.loader.peers.store import KeyStore, MeetingPoint

# Its stub has no bytes.
tcp_store: Any = dist.TCPStore  # type: ignore[attr-defined]
SAMPLES, RESOURCES = 64, 2
COUNTS = struct.Struct("<qq")
# Ranks measure their share in this part of a step.
SPREAD = 0.4
LIMITS = {"readers_per_value": 162, "requests_per_s": 5_000, "mb_per_s": 50}


class CountingStore:
    """A store that counts requests, their bytes, and who reads which value."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self.requests: Counter[str] = Counter()
        self.n_bytes = 0
        self.reads: Counter[str] = Counter()

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter."""
        self._count("add", key, b"8 bytes.")
        return self._store.add(key, amount)

    def set(self, key: str, value: bytes, /) -> None:
        """Set a key."""
        self._count("set", key, value)
        self._store.set(key, value)

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Return values that are there."""
        values = self._store.multi_get(keys)
        self._count("multi_get", *keys, *values)
        self.reads.update(keys)
        return values

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys have a value."""
        self._count("check", *keys)
        return self._store.check(keys)

    def delete_key(self, key: str, /) -> bool:
        """Delete a key."""
        self._count("delete_key", key)
        return self._store.delete_key(key)

    def _count(self, request: str, *texts: str | bytes) -> None:
        self.requests[request] += 1
        # A byte for the request, the prefix of a process group, and 8 bytes for each length.
        self.n_bytes += 1 + sum(len(text) + 8 + 16 * isinstance(text, str) for text in texts)


def connected(port: int) -> CountingStore:
    """Return a client of the store."""
    return CountingStore(tcp_store("127.0.0.1", port, is_master=False, wait_for_workers=False))


class Rank:
    """A client: joins, then posts and gathers two keys a step."""

    def __init__(self, rank: int, ranks: int, host: int, store: CountingStore) -> None:
        point = MeetingPoint(store, "scale", rank, tuple(range(ranks)))
        facts = {"configuration": json.dumps({"samples_per_step": ranks * SAMPLES}), "data": "x"}
        self.way: Iterator[float] = join(point, "train", facts, 300.0, f"host {host}")
        self.peers: Peers | None = None
        self.draws = random.Random(rank)
        self.at = 0.0
        self.waits: list[str] = []
        self._posted = False
        self._next = 0.0

    def has_met(self) -> bool:
        """Go on with joining; return whether that is done."""
        if self.peers is None and time.monotonic() >= self.at:
            try:
                self.at = time.monotonic() + next(self.way)
            except StopIteration as end:
                self.peers = end.value
        return self.peers is not None

    def start(self, step: int, at: float, step_s: float) -> None:
        """Plan when to post."""
        self.at = at + self.draws.random() * SPREAD * step_s
        self.waits = [f"costs/{step}", f"counts/{step}"]
        self._posted = False
        self._next = self.at

    def turn(self, now: float) -> bool:
        """Do what is due; return whether this step's values are all there."""
        assert self.peers is not None
        if not self._posted and now >= self.at:
            self._posted = True
            costs = np.array([[self.draws.randrange(4000), 576] for _ in range(SAMPLES)])
            self.peers.post(self.waits[0], costs.astype(np.uint16).tobytes())
            self.peers.post(self.waits[1], COUNTS.pack(0, int(costs.sum())))
        elif now >= self._next:
            if self._posted:
                self.waits = [key for key in self.waits if not self._gathered(key)]
            else:
                self.peers.poll()
            # Followers ask their leader's memory only; in a job each has a core for it.
            pause_s = self.peers.pause_s() if self.peers.is_planner else 0.2
            self._next = now + pause_s
        return self._posted and not self.waits

    def _gathered(self, key: str) -> bool:
        assert self.peers is not None
        values = self.peers.gather(key)
        if values is None:
            return False
        assert len(values) == self.peers.ranks
        if key.startswith("costs") and self.peers.is_planner:
            rows = np.frombuffer(values[self.draws.randrange(len(values))], np.uint16)
            assert len(rows) == SAMPLES * RESOURCES
        return True


def run_hosts(given: argparse.Namespace, hosts: range, link: Connection) -> None:
    """Run the ranks of some hosts, and tell what they asked."""
    port = link.recv()
    stores = [connected(port) for _ in hosts]
    ranks = [
        Rank(host * given.per_host + each, given.hosts * given.per_host, host, store)
        for host, store in zip(hosts, stores, strict=True)
        for each in range(given.per_host)
    ]
    while sum(rank.has_met() for rank in ranks) < len(ranks):
        time.sleep(0.001)
    link.send("met")
    begin = link.recv()
    met = [sum(store.requests.values()) for store in stores]
    for store in stores:
        store.requests.clear()
        store.n_bytes = 0
    cpu_s = time.process_time()
    for step in range(given.steps):
        at = begin + step * given.step_s
        waiting = ranks
        for rank in ranks:
            rank.start(step, at, given.step_s)
        while waiting:
            waiting = [rank for rank in waiting if not rank.turn(time.monotonic())]
            time.sleep(0.001)
        link.send(time.monotonic() - at)
        time.sleep(max(0.0, at + given.step_s - time.monotonic()))
    reads, requests = Counter[str](), Counter[str]()
    for store in stores:
        reads.update(store.reads)
        requests.update(store.requests)
    told = {"requests": requests, "n_bytes": sum(store.n_bytes for store in stores)}
    told |= {"reads": reads, "met_requests": sum(met), "cpu_s": time.process_time() - cpu_s}
    link.send(told)
    link.recv()
    for rank in ranks:
        assert rank.peers is not None
        rank.peers.close()
    link.send("closed")


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a run."""
    links = []
    for number in range(given.processes):
        here, there = multiprocessing.Pipe()
        hosts = range(number, given.hosts, given.processes)
        multiprocessing.get_context("fork").Process(
            target=run_hosts, args=(given, hosts, there), daemon=True
        ).start()
        links.append(here)
    store = tcp_store("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    since = time.monotonic()
    for link in links:
        link.send(store.port)
    for link in links:
        link.recv()
    met_s = time.monotonic() - since
    cpu_s = time.process_time()
    begin = time.monotonic() + 0.1
    for link in links:
        link.send(begin)
    took_s, keys = [], []
    for step in range(given.steps):
        took_s.append(max(link.recv() for link in links) - SPREAD * given.step_s)
        keys.append(store.num_keys())
        sys.stderr.write(f"step {step}: {took_s[-1]:.2f} s after the last post, {keys[-1]} keys\n")
    told = [link.recv() for link in links]
    elapsed_s = time.monotonic() - begin
    for link in links:
        link.send("close")
    for link in links:
        link.recv()
    requests, reads = Counter[str](), Counter[str]()
    for each in told:
        requests.update(each["requests"])
        reads.update(each["reads"])
    return {
        "ranks": given.hosts * given.per_host,
        "hosts": given.hosts,
        "steps": given.steps,
        "step_s": given.step_s,
        "readers_per_value": max(reads.values()),
        "requests_per_s": round(sum(requests.values()) / elapsed_s),
        "requests": dict(requests),
        "mb_per_s": round(sum(each["n_bytes"] for each in told) / elapsed_s / 1e6, 1),
        # Of clients, and of the thread that serves: a launcher's, or that of rank 0.
        "cores_per_host": round(sum(each["cpu_s"] for each in told) / elapsed_s / given.hosts, 4),
        "cores_of_store": round((time.process_time() - cpu_s) / elapsed_s, 3),
        "keys": keys,
        "keys_after_close": store.num_keys(),
        "gathered_after_s": [round(each, 2) for each in took_s],
        "meeting_s": round(met_s, 1),
        "meeting_requests": sum(each["met_requests"] for each in told),
    }


def main() -> int:
    """Print the figures; return 1 if one is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=162)
    parser.add_argument("--per-host", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--step-s", type=float, default=5.0)
    parser.add_argument("--processes", type=int, default=3)
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found = measure(given)
    above = [name for name, limit in LIMITS.items() if found[name] > limit]
    is_level = len(set(found["keys"][1:])) <= 1
    sys.stdout.write(json.dumps(found | {"above": above, "is_level": is_level}) + "\n")
    return 1 if above or not is_level else 0


if __name__ == "__main__":
    sys.exit(main())

"""`make bench NAME=coordinator ARGS='--tcp'`: CPU time of a balancer's process, by payloads' way.

A balancer in a process of its own, over tcp on the loopback, with workers that answer at once and
ranks that take at once, all in this process. Payloads go inline, or stay with workers, as
those that ranks pull: these nobody pulls here, since that is nothing to the balancer. Counted is
all CPU time of its process, planning and ZeroMQ's threads too, from a quarter of the epoch on.
"""

import functools
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from rich.table import Table

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.protocol.messages import Message
from counterpoise.balancer.server.loop import new_credentials, serve
from counterpoise.balancer.transport.keys import (
    KeyPair,
    PeerKeys,
    ServerKeys,
    new_pair,
    write_public,
)
from counterpoise.balancer.transport.sockets import connect, receive, send
from counterpoise.tools.console.reporting import spread
from counterpoise.workers.codec.fields import why_bad_layout
from counterpoise.workers.codec.frames import encode_packed

from .stand_ins import StandIns, heartbeat

MICROBATCH = 32
# A balancer that brings no sample for this long is not going on.
STALL_S = 60.0
# Workers report, and ranks repeat what they ask for, this often.
REPORT_S = 1.0
# The first part of the epoch is not counted: kernels are loaded, and buffers grow.
WARMING = 4


@dataclass(frozen=True, slots=True)
class PayloadWay:
    """The transport of payloads, and whether peers have keys."""

    is_direct: bool
    has_keys: bool

    def __str__(self) -> str:
        way = "direct" if self.is_direct else "inline"
        return f"{way}, keys" if self.has_keys else way


WAYS = tuple(PayloadWay(direct, keys) for keys in (False, True) for direct in (False, True))


@dataclass(frozen=True, slots=True)
class ServedSize:
    """The size of a run: ranks, workers, steps, samples of a step, bytes of a payload."""

    ranks: int
    workers: int
    steps: int
    samples_per_step: int
    payload_bytes: int


class Served(StandIns):
    """Peers that are connected to a balancer over tcp."""

    def connect(
        self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, keys: dict[str, PeerKeys]
    ) -> None:
        """Connect all peers."""
        self._poller = zmq.Poller()
        self._sockets: dict[bytes, zmq.Socket[bytes]] = {}
        self._reported = 0.0
        for role, names in (("worker", self.worker_names), ("trainer", [*self.rank_stand_ins])):
            for name in names:
                socket = connect(context, address, name, keys.get(role))
                self._sockets[name] = socket
                self._poller.register(socket, zmq.POLLIN)

    def post(self, peer: bytes, message: Message, *payloads: bytes | bytearray) -> None:
        """Send a peer's message to the balancer."""
        send(self._sockets[peer], message, payloads)

    def work_until(self, delivered: int) -> None:
        """Run the peers until this number was delivered; RuntimeError if no sample comes."""
        had, since = self.delivered, time.monotonic()
        while self.delivered < delivered:
            self._turn()
            if self.delivered > had:
                had, since = self.delivered, time.monotonic()
            elif time.monotonic() > since + STALL_S:
                raise RuntimeError(f"no sample for {STALL_S:.0f} s, after {had}")

    def wait_until_ready(self) -> None:
        """Answer until all workers have the source open."""
        until = time.monotonic() + STALL_S
        while len(self.ready) < self.workers:
            self._turn()
            if time.monotonic() > until:
                raise RuntimeError(f"{len(self.ready)} of {self.workers} workers became ready")

    def close(self) -> None:
        """Close all connections."""
        for socket in self._sockets.values():
            socket.close(linger=0)

    def _turn(self) -> None:
        self._poller.poll(int(1000 * REPORT_S))
        if time.monotonic() > self._reported + REPORT_S:
            self._reported = time.monotonic()
            for nth, peer in enumerate(self.worker_names):
                self.post(peer, heartbeat(peer, int(self._reported) + nth))
            for peer, rank in self.rank_stand_ins.items():
                for request in rank.open_requests():
                    self.post(peer, request)
        for peer, socket in self._sockets.items():
            while (received := receive(socket)) is not None:
                self.answer(peer, received[0])


def measure(size: ServedSize, rounds: int) -> Iterator[tuple[PayloadWay, float]]:
    """Yield (way, CPU microseconds of the balancer a sample), ways in turns."""
    for number in range(rounds):
        for way in WAYS if number % 2 == 0 else reversed(WAYS):
            yield way, _one_epoch(size, way)


def report(size: ServedSize, found: dict[PayloadWay, list[float]]) -> dict[str, Any]:
    """Return the figures of every way."""
    return {
        "ranks": size.ranks,
        "workers": size.workers,
        "microbatch": MICROBATCH,
        "payload_bytes": size.payload_bytes,
        "ways": {
            str(way): {
                "us_per_sample": spread(each),
                "samples_per_cpu_s": 1e6 / statistics.median(each),
            }
            for way, each in found.items()
        },
        "load_average": os.getloadavg()[0],
    }


def table(found: dict[str, Any]) -> Table:
    """Return the report as a table, one row for each way."""
    made = Table(title="CPU time of a balancer's process over tcp, medians (range)")
    for heading in ("payloads", "us a sample", "samples a CPU second"):
        made.add_column(heading, justify="right")
    for way, figures in found["ways"].items():
        each = figures["us_per_sample"]
        shown = f"{each['median']:.0f} ({each['low']:.0f} to {each['high']:.0f})"
        made.add_row(way, shown, f"{figures['samples_per_cpu_s']:,.0f}")
    return made


def _one_epoch(size: ServedSize, way: PayloadWay) -> float:
    """Run an epoch; return the balancer's CPU microseconds for each sample that was counted."""
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        own, keys = _keys(Path(folder)) if way.has_keys else (None, {})
        header, buffers = encode_packed({"pixels": np.zeros(size.payload_bytes, np.uint8)})
        peers = Served(
            size.ranks, size.workers, size.steps, size.samples_per_step, MICROBATCH,
            bytearray().join(buffers), header, way.is_direct,
            new_pair("worker").public if way.has_keys else b"",
        )  # fmt: skip
        pipe, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(theirs, own, folder)
        )
        process.start()
        try:
            peers.connect(context, pipe.recv(), keys)
            return _drive(peers, process.pid or 0)
        finally:
            peers.close()
            process.terminate()
            process.join()


def _drive(peers: Served, pid: int) -> float:
    peers.greet()
    peers.wait_until_ready()
    peers.start()
    peers.ask()
    peers.work_until(peers.count // WARMING)
    before, had = _cpu_s(pid), peers.delivered
    peers.work_until(peers.count)
    return 1e6 * (_cpu_s(pid) - before) / (peers.delivered - had)


def _serve(pipe: "Connection[Any, Any]", own: KeyPair | None, folder: str) -> None:
    """Serve until this process is terminated."""
    coordinator = Coordinator(
        check_layout=why_bad_layout,
        make_credentials=functools.partial(new_credentials, has_keys=own is not None),
    )
    keys = ServerKeys(own, Path(folder)) if own is not None else None
    serve(coordinator, "tcp://127.0.0.1:0", ready=pipe.send, keys=keys)


def _keys(folder: Path) -> tuple[KeyPair, dict[str, PeerKeys]]:
    """Return the balancer's key pair, and those of its peers by role, which it allows."""
    own = new_pair("balancer")
    pairs: Sequence[KeyPair] = [new_pair(role) for role in ("worker", "trainer")]
    for pair in pairs:
        write_public(folder / f"{pair.role}.pub", pair)
    return own, {pair.role: PeerKeys(pair, own.public) for pair in pairs}


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used, all its threads, in nanoseconds' steps."""
    return time.clock_gettime(~pid << 3 | 2)  # Linux' number of the CPU clock of a process

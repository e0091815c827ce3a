"""`make bench NAME=transport`: measures the CPU cost of encrypting or sealing payloads.

One process sends decoded samples to another over tcp on the loopback, by the project's own sockets
and messages: in the clear, under CURVE, sealed as over a clear channel (sealing.py), and in
the clear with other keyed digests of the payload, made by the sender and checked by the receiver.
Ways take turns; each figure is the CPU time of a side per megabyte (its own and ZeroMQ's threads),
which other work on the machine disturbs less than it does the rate.
"""

import hashlib
import hmac
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import click
import zmq
from rich.progress import Progress
from rich.table import Table

from counterpoise.balancer.protocol.messages import DecodedItem, DecodeDone, Revoke
from counterpoise.balancer.protocol.wire import decode, encode
from counterpoise.balancer.transport.authentication import open_authenticator
from counterpoise.balancer.transport.keys import PeerKeys, ServerKeys, new_pair, write_public
from counterpoise.balancer.transport.sealing import FROM_BALANCER, FROM_PEER, AeadSeal, is_available
from counterpoise.balancer.transport.sockets import (
    connect,
    listen,
    receive,
    receive_frames,
    send,
    send_frames,
)
from counterpoise.tools.console.reporting import emit, progress_console
from counterpoise.tools.console.spread import spread

# Payloads sent ahead of their acknowledgements, as many as credits allow.
IN_FLIGHT = 16
TIMEOUT_MS = 30_000
SECRET = bytes(range(32))


@dataclass(frozen=True, slots=True)
class Way:
    """A protection of payloads: by CURVE, by a seal, by another digest, or none."""

    keyed: bool = False
    sealed: bool = False
    digest: Callable[[Any], bytes] = lambda _: b""


WAYS = {
    "plain": Way(),
    "curve": Way(keyed=True),
    "sealed": Way(sealed=True),
    "blake2b": Way(digest=lambda data: hashlib.blake2b(data, key=SECRET, digest_size=16).digest()),
    "hmac-sha256": Way(digest=lambda data: hmac.digest(SECRET, data, "sha256")),
}


@dataclass(frozen=True, slots=True)
class TransportPass:
    """One pass: megabytes per second, CPU milliseconds per megabyte of either side."""

    rate: float
    send_ms: float
    receive_ms: float


@click.command("transport")
@click.option("--pairs", type=click.IntRange(1), default=10, show_default=True)
@click.option("--frames", type=click.IntRange(1), default=500, show_default=True)
@click.option("--frame-bytes", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(pairs: int, frames: int, frame_bytes: int, as_json: bool) -> None:
    """Measure payloads over tcp: in the clear, encrypted, with keyed digests.

    \b
    Example:
      make bench NAME=transport ARGS='--pairs 10 --json'
    """  # noqa: D301
    ways = [name for name, way in WAYS.items() if is_available() or not way.sealed]
    if "sealed" not in ways:
        click.echo(
            "sealed payloads are not measured: they need pip install "
            "'counterpoise[plain-payloads]'",
            err=True,
        )
    passes: dict[str, list[TransportPass]] = {name: [] for name in ways}
    with Progress(console=progress_console, transient=True) as progress:
        task = progress.add_task("passes", total=len(ways) * pairs)
        for pair in range(pairs):
            for name in ways if pair % 2 == 0 else reversed(ways):
                passes[name].append(_measure(name, frames, frame_bytes))
                progress.advance(task)
    report = {
        "frames": frames,
        "frame_bytes": frame_bytes,
        "ways": {name: _summary(each, passes["plain"]) for name, each in passes.items()},
        "load_average": os.getloadavg()[0],
    }
    emit(report, as_json, _table(report))


def _measure(name: str, frames: int, frame_bytes: int) -> TransportPass:
    """Run one pass: this process receives, a new one sends."""
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        server, peer = _keys(Path(folder)) if WAYS[name].keyed else (None, None)
        with (
            open_authenticator(context, server, lambda _: None) as authenticator,
            listen(context, "tcp://127.0.0.1:0", server) as socket,
        ):
            poller = zmq.Poller()
            authenticator.watch(socket, poller)
            authenticator.wake(poller, is_open=True)
            poller.register(socket, zmq.POLLIN)
            address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
            pipe, theirs = multiprocessing.Pipe(duplex=False)
            arguments = theirs, address, peer, name, frames, frame_bytes
            process = multiprocessing.get_context("spawn").Process(target=_send, args=arguments)
            process.start()
            theirs.close()
            try:
                answer = authenticator.answer_requests
                seconds, cpu_s = _receive(socket, poller, answer, name, frames)
                send_s: float = pipe.recv()
            finally:
                process.terminate()
                process.join()
    megabytes = frames * frame_bytes / 1e6
    return TransportPass(megabytes / seconds, 1e3 * send_s / megabytes, 1e3 * cpu_s / megabytes)


def _keys(folder: Path) -> tuple[ServerKeys, PeerKeys]:
    own, worker = new_pair("balancer"), new_pair("worker")
    write_public(folder / "worker.pub", worker)
    return ServerKeys(own, folder), PeerKeys(worker, own.public)


def _receive(
    socket: "zmq.Socket[bytes]",
    poller: zmq.Poller,
    attend: Callable[[], Any],
    name: str,
    count: int,
) -> tuple[float, float]:
    """Receive the payloads; return seconds and CPU seconds since the first of them."""
    started = cpu = 0.0
    taken = -1  # the first is not counted, since it includes connecting
    seal = AeadSeal(SECRET, FROM_BALANCER) if WAYS[name].sealed else None
    while taken < count:
        if not poller.poll(TIMEOUT_MS):
            raise RuntimeError(f"no payload arrived within {TIMEOUT_MS // 1000} s")
        attend()
        while (received := _next(socket, seal)) is not None:
            peer, message, payload = received
            if not hmac.compare_digest(WAYS[name].digest(payload), message.items[0].header):
                raise RuntimeError("a payload arrived with another digest than it was sent with")
            if taken < 0:
                started, cpu = time.perf_counter(), time.process_time()
            taken += 1
            send(socket, Revoke(taken), to=peer)
    return time.perf_counter() - started, time.process_time() - cpu


def _next(
    socket: "zmq.Socket[bytes]", seal: AeadSeal | None
) -> tuple[bytes, DecodeDone, memoryview] | None:
    """Return (sender, message, payload) of the next message, None if none has arrived."""
    frames = receive_frames(socket)
    if frames is None:
        return None
    peer, front, payload = frames[0].bytes, frames[1].buffer, frames[2].buffer
    message = decode(front, 1) if seal is None else seal.open(front, (payload,))
    if not isinstance(message, DecodeDone):
        raise RuntimeError(f"received {type(message).__name__}, expected DecodeDone")
    return peer, message, payload


def _send(
    pipe: "Pipe[Any, Any]",
    address: str,
    keys: PeerKeys | None,
    name: str,
    count: int,
    frame_bytes: int,
) -> None:
    """Send payloads, some ahead of acknowledgements; report the CPU seconds since the first."""
    payload = os.urandom(frame_bytes)
    seal = AeadSeal(SECRET, FROM_PEER) if WAYS[name].sealed else None
    with zmq.Context() as context, connect(context, address, b"sender", keys) as socket:
        cpu, sent, acknowledged = 0.0, 0, 0
        while acknowledged <= count:
            ahead = IN_FLIGHT if acknowledged else 1
            while sent <= count and sent < acknowledged + ahead:
                item = DecodedItem(sent, str(sent), (), WAYS[name].digest(payload))
                message = DecodeDone(1, (item,))
                front = encode(message) if seal is None else seal.close(message, (payload,))
                send_frames(socket, [front], (payload,))
                sent += 1
            socket.poll()
            while receive(socket) is not None:
                acknowledged += 1
                if acknowledged == 1:
                    cpu = time.process_time()
        pipe.send(time.process_time() - cpu)


def _summary(passes: list[TransportPass], plain: list[TransportPass]) -> dict[str, Any]:
    ratios = [
        (one.send_ms + one.receive_ms) / (other.send_ms + other.receive_ms)
        for one, other in zip(passes, plain, strict=True)
    ]
    return {
        "mb_per_s": statistics.median(one.rate for one in passes),
        "send_ms_per_mb": statistics.median(one.send_ms for one in passes),
        "receive_ms_per_mb": statistics.median(one.receive_ms for one in passes),
        "cpu_ratio": spread(ratios),
    }


def _table(report: dict[str, Any]) -> Table:
    table = Table(title="payloads over tcp: CPU per MB, and over plain's (ratio of each pair)")
    for column in ("way", "MB/s", "send ms/MB", "receive ms/MB", "CPU ratio", "range"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for name, figures in report["ways"].items():
        ratio = figures["cpu_ratio"]
        table.add_row(
            name,
            f"{figures['mb_per_s']:.0f}",
            f"{figures['send_ms_per_mb']:.2f}",
            f"{figures['receive_ms_per_mb']:.2f}",
            f"{ratio['median']:.2f}",
            f"{ratio['low']:.2f} to {ratio['high']:.2f}",
        )
    return table

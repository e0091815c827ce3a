"""Sends a worker's heartbeats, over a connection of their own and in a thread of its own."""

import os
import socket as sockets
import threading
import time
from dataclasses import dataclass

import zmq

from ...balancer.protocol.messages import UnknownPeer, WorkerHeartbeat
from ...balancer.protocol.parts import ELSEWHERE, IDLE, WorkInProgress
from ...balancer.protocol.status_messages import MICROSECONDS
from ...balancer.protocol.worker_session import HEARTBEAT_S
from ...balancer.transport.keys import PeerKeys
from ...balancer.transport.sockets import connect, receive, send


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a worker: `name` is its slot on its host, `incarnation` grows.

    peer: its name as a peer of a job, see transport/naming.py; by default of the only one.
    """

    name: str
    slot: int
    incarnation: int
    peer: bytes = b""

    @property
    def routing_id(self) -> bytes:
        """A socket identity that no other process has."""
        return self.peer or f"{self.name}.{self.incarnation}.{os.getpid()}".encode()


def local_name(pool: str, slot: int) -> str:
    """Return the name of the worker that a pool on this host has in a slot."""
    return f"{sockets.gethostname()}/{pool}/{slot}"


class WorkerActivity:
    """Seconds spent probing and decoding; `forgotten`: the balancer lost the worker.

    `leaving`: the worker is to end, and takes no other leases.

    One thread works, another sends heartbeats. They share one tuple, which is replaced as a whole.

    >>> activity = WorkerActivity()
    >>> activity.begin("decode", (1, 7), now=1.0)
    >>> activity.end(now=3.0)
    >>> activity.begin("probe", (2, 9), now=5.0)
    >>> sent = activity.heartbeat("w", 0, now=5.5, wall=0.0)
    >>> sent.probe_ms, sent.lease, sent.ordinal, activity.work_ms(now=6.0)
    (500, 2, 9, (1000, 2000))
    """

    def __init__(self) -> None:
        self.forgotten = threading.Event()
        self.leaving = False
        # Seconds of finished probing and decoding; kind, start and sample of what is in progress.
        self._work: tuple[float, float, str, float, WorkInProgress] = (0.0, 0.0, "", 0.0, IDLE)

    def begin(self, kind: str, hand: WorkInProgress, now: float) -> None:
        """Note that work of a kind ("probe" or "decode") on a lease's sample begins.

        What began before is over: between samples of a lease there is nothing but work.
        """
        probe_s, decode_s, last, since, _ = self._work
        if last == "decode":
            decode_s += now - since
        elif last:
            probe_s += now - since
        self._work = probe_s, decode_s, kind, now, hand

    def end(self, now: float) -> None:
        """Note that the work that began last is over."""
        self._work = (*self._seconds(now), "", 0.0, IDLE)

    def wait(self, is_wanted: bool) -> None:
        """Note that another job has its turn, while there is work here or not."""
        self._work = (*self._work[:4], ELSEWHERE if is_wanted else IDLE)

    def work_ms(self, now: float) -> tuple[int, int]:
        """Return the milliseconds spent so far, probing and decoding."""
        probe_s, decode_s = self._seconds(now)
        return int(1000 * probe_s), int(1000 * decode_s)

    def heartbeat(self, name: str, incarnation: int, now: float, wall: float) -> WorkerHeartbeat:
        """Return the next heartbeat; `wall` is this machine's wall clock."""
        cpu_ms = round(1000 * time.process_time())
        clock_us = round(wall * MICROSECONDS)
        work, hand = self.work_ms(now), self._work[-1]
        return WorkerHeartbeat(name, incarnation, *work, clock_us, *hand, self.leaving, cpu_ms)

    def _seconds(self, now: float) -> tuple[float, float]:
        probe_s, decode_s, kind, since, _ = self._work
        spent = now - since if kind else 0.0
        return probe_s + spent * (kind == "probe"), decode_s + spent * (kind == "decode")


def send_heartbeats(
    context: "zmq.Context[zmq.Socket[bytes]]",
    endpoint: str,
    identity: Identity,
    activity: WorkerActivity,
    keys: PeerKeys | None,
    ended: threading.Event,
) -> None:
    """Send heartbeats until the context ends; note when the balancer does not know the worker."""
    # Of the same job, whose name comes first.
    job, separator, rest = identity.routing_id.rpartition(b"|")
    name = job + separator + b"heartbeat." + rest
    # Not connected before the first is due: a worker that starts needs its core for other things.
    if ended.wait(HEARTBEAT_S):
        return
    try:
        with connect(context, endpoint, name, keys) as socket:
            while True:
                now, wall = time.monotonic(), time.time()
                send(socket, activity.heartbeat(identity.name, identity.incarnation, now, wall))
                _hear_answers(socket, activity, now + HEARTBEAT_S)
    except zmq.ZMQError:
        if not ended.is_set():
            raise


def _hear_answers(socket: "zmq.Socket[bytes]", activity: WorkerActivity, until: float) -> None:
    """Read what the balancer answers to heartbeats, until a time."""
    while socket.poll(max(0, int(1000 * (until - time.monotonic())))):
        received = receive(socket)
        if received is not None and isinstance(received[0], UnknownPeer):
            activity.forgotten.set()

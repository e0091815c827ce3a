"""Sends a worker's heartbeats, from a thread and a socket of their own: a decode can take long."""

import threading
import time

import zmq

from ...balancer.protocol.messages import HeartbeatAck, UnknownPeer
from ...balancer.protocol.worker_session import HEARTBEAT_S
from ...balancer.transport.keys import PeerKeys
from ...balancer.transport.sockets import connect, receive, send
from .activity import WorkerActivity


def send_heartbeats(
    context: "zmq.Context[zmq.Socket[bytes]]",
    endpoint: str,
    who: tuple[str, int, bytes],
    activity: WorkerActivity,
    keys: PeerKeys | None,
    ended: threading.Event,
) -> None:
    """Send heartbeats until the context ends; note when the balancer does not know the worker.

    who: the worker's name, incarnation and address; heartbeats come from another.
    """
    own_name, incarnation, address = who
    name = b"heartbeat." + address
    # Not connected before the first is due: a worker that starts needs its core for other things.
    if ended.wait(HEARTBEAT_S):
        return
    try:
        with connect(context, endpoint, name, keys) as socket:
            while True:
                now, wall = time.monotonic(), time.time()
                send(socket, activity.heartbeat(own_name, incarnation, now, wall))
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
        elif received is not None and isinstance(received[0], HeartbeatAck):
            activity.acknowledged(received[0], time.monotonic())

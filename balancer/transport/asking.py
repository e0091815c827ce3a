"""Asks a balancer, as a peer that takes no part in its jobs."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TypeVar

import zmq

from ..protocol.messages import Message, PeerRejected
from .finding import checked_address, find_address
from .keys import PeerKeys
from .naming import peer_name
from .sockets import Handshakes, connect, receive, send
from .wire import WireError

T = TypeVar("T")

# Waiting for an answer is interrupted this often, to check for a refused handshake.
POLL_MS = 200


class Observer:
    """A connection to a balancer for questions; see `observe`."""

    def __init__(self, socket: "zmq.Socket[bytes]", handshakes: Handshakes) -> None:
        self._socket, self._handshakes = socket, handshakes

    def ask(self, question: Message, kind: type[T], timeout_s: float) -> T | str:
        """Return the answer, which is of a kind, or the reason why there is none."""
        until = time.monotonic() + timeout_s
        try:
            while self._socket.poll(0):
                receive(self._socket)  # answers that came too late
            send(self._socket, question)
            while (left := until - time.monotonic()) > 0:
                if self._socket.poll(max(1, min(POLL_MS, int(1000 * left)))):
                    received = receive(self._socket)
                    answer = received[0] if received else None
                    if isinstance(answer, kind):
                        return answer
                    if isinstance(answer, PeerRejected):
                        return f"it refuses the request: {answer.reason}"
                elif refusal := self._handshakes.rejection_reason():
                    return refusal
        except WireError as error:
            return f"it does not speak this protocol: {error}"
        return "no answer in time"


@contextmanager
def observe(address: str, keys: PeerKeys | None, job: str = "") -> Iterator[Observer]:
    """Give a peer that asks the balancer at an address, over one connection.

    job: whose, "" for that of its keys or any. Raises ValueError if the address is malformed.
    """
    address = find_address(checked_address(address)) or address
    name = peer_name(job or (keys.job if keys else ""), "doctor")
    with (
        zmq.Context() as context,
        connect(context, address, name, keys, monitored=Handshakes.EVENTS) as socket,
        closing(Handshakes(socket, keyed=keys is not None)) as handshakes,
    ):
        yield Observer(socket, handshakes)

"""Chooses how a worker's payloads travel: in its memory, where ranks get them, or with messages."""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from ...balancer.protocol.messages import FreeSlots, PayloadHandle, ServePayloads, StopServing
from ..codec.frames import payload_of
from ..lending.lender import Lender
from ..serving.server import PullServer
from ..sources.allocation import Allocate, new_bytes

logger = logging.getLogger(__name__)

ARENA = "arena"
ELSEWHERE = "the loader was given a balancer's address"


class Carrier(Protocol):
    """Keeps payloads, which are announced by handles, until the balancer frees them."""

    def lend(self, buffers: Sequence[Any], joins: bool = False) -> PayloadHandle | None:
        """Keep a payload, given as buffers, and return its handle; None where there is no room.

        joins: it may be in one run with the one before, and then has the same serial.
        """

    def free(self, message: FreeSlots) -> None:
        """Free payloads that the balancer does not need any more."""

    def free_all(self) -> None:
        """Free all payloads: the balancer has forgotten this worker, or its job is over."""

    def trim(self) -> None:
        """Give back the memory that nothing is in: there is no work."""

    def close(self) -> None:
        """Keep nothing any more."""


class Payloads:
    """The payloads of one worker process; inline unless it keeps them for ranks.

    way: how they travel, and why, as text. address, key: as in WorkerHello.
    """

    def __init__(
        self,
        carrier: Carrier | None = None,
        why_inline: str = ELSEWHERE,
        way: str = ARENA,
        address: str = "",
    ) -> None:
        """`way` is for payloads that a carrier keeps, `why_inline` where there is none.

        address: that of a PullServer, as ranks are told it.
        """
        self._carrier = carrier
        self.way = f"inline: {why_inline}" if carrier is None else way
        server = carrier if isinstance(carrier, PullServer) else None
        self._server = server
        self.address, self.key = address, b"" if server is None else server.key

    def begin(self) -> None:
        """Open the door to ranks that read in this process' memory; others pull from another."""
        if isinstance(self._carrier, Lender):
            self._carrier.begin()

    def put(self, buffers: Sequence[Any], joins: bool = False) -> PayloadHandle | bytearray:
        """Return a payload's handle; its bytes in one buffer, where it is to travel inline.

        joins: it may be in one run with the one before, as both will be announced in one message.
        """
        handle = self.lend(buffers, joins)
        return payload_of(buffers) if handle is None else handle

    @property
    def lends(self) -> bool:
        """Return whether ranks read payloads in this process' memory."""
        return isinstance(self._carrier, Lender)

    def lend(self, buffers: Sequence[Any], joins: bool = False) -> PayloadHandle | None:
        """Return the handle of a payload, None where it would have to travel inline."""
        return None if self._carrier is None else self._carrier.lend(buffers, joins)

    def carry(self, way: ServePayloads | StopServing) -> None:
        """Keep payloads for ranks to pull, or send them inline from now on."""
        if self._server is None:
            return
        if isinstance(way, ServePayloads):
            self._server.begin(way)
        elif self._server.end():
            logger.warning(
                "decoded samples travel through the balancer from now on: %s", way.reason
            )

    def allocator(self) -> Allocate:
        """Return what gives the next sample memory, where its payload is going to lie if possible.

        `put` is then to be given that sample, by the thread that called this.
        """
        return self._carrier.allocator() if isinstance(self._carrier, Lender) else new_bytes

    def free(self, message: FreeSlots) -> None:
        """Free payloads that the balancer does not need any more."""
        if self._carrier is not None:
            self._carrier.free(message)

    def free_all(self) -> None:
        """Free all payloads: the balancer has forgotten this worker, or its job is over."""
        if self._carrier is not None:
            self._carrier.free_all()

    def trim(self) -> None:
        """Give back the memory that nothing is in: there is no work."""
        if self._carrier is not None:
            self._carrier.trim()

    def close(self) -> None:
        """Keep nothing any more."""
        if self._carrier is not None:
            self._carrier.close()


def lent_in(directory: str, most_bytes: int) -> Payloads:
    """Return payloads that ranks of this machine read in memory lent by this process.

    The directory is for its socket, `most_bytes` bounds the memory. They travel inline where there
    can be no socket.
    """
    try:
        return Payloads(Lender(directory, most_bytes))
    except OSError as error:
        return Payloads(None, f"no socket in {directory}: {error}")


def served_by(server: PullServer, address: str) -> Payloads:
    """Return payloads that ranks pull from this process, at this address."""
    return Payloads(server, way=f"direct: ranks pull from {address}", address=address)

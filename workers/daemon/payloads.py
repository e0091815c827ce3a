"""Chooses how a worker's payloads travel: in memory that ranks can read, or with messages."""

from collections.abc import Sequence
from typing import Any

from ...balancer.protocol.messages import FreeSlots, PayloadHandle
from ..codec.frames import payload_of
from ..lending.lender import Lender

ARENA = "arena"
ELSEWHERE = "the loader was given a balancer's address"


class Payloads:
    """The payloads of one worker process; inline unless it lends its memory.

    way: which of the two, and why, as text.
    """

    def __init__(self, lender: Lender | None = None, why_inline: str = ELSEWHERE) -> None:
        self._lender = lender
        self.way = ARENA if lender is not None else f"inline: {why_inline}"

    def put(self, buffers: Sequence[Any]) -> PayloadHandle | bytearray:
        """Return a payload's handle; its bytes in one buffer, where it is to travel inline."""
        handle = None if self._lender is None else self._lender.lend(buffers)
        return payload_of(buffers) if handle is None else handle

    def free(self, message: FreeSlots) -> None:
        """Free payloads that the balancer does not need any more."""
        if self._lender is not None:
            self._lender.free(message)

    def free_all(self) -> None:
        """Free all payloads: the balancer has forgotten this worker, or its job is over."""
        if self._lender is not None:
            self._lender.free_all()

    def trim(self) -> None:
        """Give back the memory that nothing is in: there is no work."""
        if self._lender is not None:
            self._lender.trim()

    def close(self) -> None:
        """Lend nothing any more."""
        if self._lender is not None:
            self._lender.close()


def lent_in(directory: str, most_bytes: int) -> Payloads:
    """Return payloads that ranks of this machine read in memory lent by this process.

    The directory is for its socket, `most_bytes` bounds the memory. They travel inline where there
    can be no socket.
    """
    try:
        return Payloads(Lender(directory, most_bytes))
    except OSError as error:
        return Payloads(None, f"no socket in {directory}: {error}")

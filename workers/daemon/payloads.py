"""A worker's payloads: kept where ranks pull them, or sent with messages where they cannot."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...balancer.protocol.payload_messages import ServePayloads, StopServing
from ..codec.frames import payload_of
from ..serving.server import PullServer

logger = logging.getLogger(__name__)

ELSEWHERE = "the loader was given a balancer's address"


class PlacedPayload(NamedTuple):
    """A payload that ranks pull, by its serial; or with serial 0 its bytes, to be sent inline."""

    serial: int
    nbytes: int
    frame: bytearray | None = None


class Payloads:
    """The payloads of one worker process; inline unless it keeps them for ranks.

    way: how they travel, and why, as text. address, key: as in WorkerHello.
    """

    def __init__(
        self, server: PullServer | None = None, why_inline: str = ELSEWHERE, address: str = ""
    ) -> None:
        """`address`: the server's, as ranks are told it; `why_inline`: why there is no server."""
        self._server = server
        direct = f"direct: ranks pull from {address}"
        self.way = f"inline: {why_inline}" if server is None else direct
        self.address, self.key = address, b"" if server is None else server.key

    def place(self, buffers: Sequence[Any]) -> PlacedPayload:
        """Keep a payload, given as buffers, for ranks; or return it, if it is to travel inline."""
        payload = payload_of(buffers)
        serial = 0 if self._server is None else self._server.keep(payload)
        if serial:
            return PlacedPayload(serial, len(payload))
        return PlacedPayload(0, len(payload), payload)

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

    def limit(self, limit_bytes: int) -> None:
        """Keep no more than this from now on."""
        if self._server is not None:
            self._server.limit(limit_bytes)

    def free(self, serials: Sequence[int]) -> None:
        """Forget payloads that the balancer does not need any more."""
        if self._server is not None:
            self._server.free(serials)

    def free_all(self) -> None:
        """Forget all payloads: the balancer has forgotten this worker, or its job is over."""
        if self._server is not None:
            self._server.free_all()

    def close(self) -> None:
        """Keep nothing any more."""
        if self._server is not None:
            self._server.close()


def served_by(server: PullServer, address: str) -> Payloads:
    """Return payloads that ranks pull from this process, at this address."""
    return Payloads(server, address=address)

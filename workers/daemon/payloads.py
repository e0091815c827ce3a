"""A worker's payloads: kept where ranks pull them, or sent with messages where they cannot."""

import logging
from collections.abc import Sequence
from typing import Any

from ...balancer.protocol.payload_messages import ServePayloads, StopServing
from ..codec.frames import payload_of
from ..serving.server import PayloadStore, PullServer

logger = logging.getLogger(__name__)

ELSEWHERE = "the loader was given a balancer's address"


class Payloads:
    """The payloads of one worker process; inline unless it keeps them for ranks.

    store: those that are kept. way: how they travel, and why, as text. address, key: as in
    WorkerHello.
    """

    def __init__(
        self, server: PullServer | None = None, why_inline: str = ELSEWHERE, address: str = ""
    ) -> None:
        """`address`: the server's, as ranks are told it; `why_inline`: why there is no server."""
        self.server = server
        # Without a server there is no room for any.
        self.store = PayloadStore(0) if server is None else server.store
        direct = f"direct: ranks pull from {address}"
        self.way = f"inline: {why_inline}" if server is None else direct
        self.address, self.key = address, b"" if server is None else server.key

    def place(self, buffers: Sequence[Any]) -> tuple[int, bytearray]:
        """Keep a payload, given as buffers; return its serial (0: send it inline) and its bytes."""
        payload = payload_of(buffers)
        return self.store.keep(payload), payload

    def carry(self, way: ServePayloads | StopServing) -> None:
        """Keep payloads for ranks to pull, or send them inline from now on."""
        if self.server is None:
            return
        if isinstance(way, ServePayloads):
            self.server.begin(way)
        elif self.server.end():
            logger.warning(
                "decoded samples travel through the balancer from now on: %s", way.reason
            )

    def close(self) -> None:
        """Keep nothing any more."""
        if self.server is not None:
            self.server.close()

"""Reads payloads that lie in the memory of workers on this machine."""

from dataclasses import replace

from ...balancer.protocol.rank_session import Arrival, RankSession
from ...balancer.server.embedded import directory_of
from ...workers.lending.borrower import Borrower
from ..step.errors import LoaderError


class SharedPayloadReader:
    """Puts payloads in the place of handles.

    The tensors that are made of them lie in the worker's memory, and may be written to.
    """

    def __init__(self, endpoint: str, name: bytes, copies: bool) -> None:
        """`endpoint` is the balancer's, `name` ours there.

        `copies`: other processes read the same payloads, and must not see what is written here;
        needless where batches are copied out of them in any case.
        """
        self._endpoint = endpoint
        self._copies = copies
        is_local = endpoint.startswith("ipc://")
        self._borrower = Borrower(directory_of(endpoint), name) if is_local else None

    def with_payloads(self, arrival: Arrival) -> Arrival | None:
        """Return a microbatch with a payload for each item; None if some cannot be had any more."""
        handles = arrival.batch.handles
        if not handles:
            return arrival
        if self._borrower is None:
            raise LoaderError(
                f"the balancer at {self._endpoint} has sent handles of memory on its own machine: "
                "please report this bug of counterpoise"
            )
        found = self._borrower.views(handles)
        if found is None:
            return None
        frames = iter(arrival.payloads)
        payloads = (next(frames) if each is None else self._own(each) for each in found)
        return replace(arrival, payloads=tuple(payloads))

    def turn(self, session: RankSession) -> None:
        """Answer the workers that ask what is read here."""
        if self._borrower is not None:
            self._borrower.turn(session.handles())

    def close(self) -> None:
        """Give back all memory that no tensor refers to."""
        if self._borrower is not None:
            self._borrower.close()

    def _own(self, payload: memoryview) -> memoryview | bytearray:
        return bytearray(payload) if self._copies else payload

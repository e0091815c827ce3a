"""Puts payloads in the place of handles: they lie in workers' memory, here or on other hosts."""

from collections.abc import Sequence

from ...balancer.protocol.messages import Handles, PayloadHandle, PullFailed
from ...balancer.protocol.rank_session import Arrival, RankSession
from ...balancer.server.embedded import directory_of
from ...workers.codec.sample_layout import why_bad_layout
from ...workers.lending.borrower import Borrower
from ...workers.lending.placed_payloads import PlacedPayloads
from ..step.errors import LoaderError
from .pull_book import PullBook
from .puller import Puller
from .rank_sockets import RankSockets


class SharedPayloadReader:
    """Reads payloads in the memory of workers on this machine, and pulls them from others.

    The tensors that are made of what is read lie in the worker's memory, and may be written to.
    """

    def __init__(self, endpoint: str, sockets: RankSockets, copies: bool) -> None:
        """`endpoint` is the balancer's, `sockets` are those of this rank.

        `copies`: other processes read the same payloads, and must not see what is written here;
        needless where batches are copied out of them in any case.
        """
        self._endpoint = endpoint
        self._copies = copies
        is_local = endpoint.startswith("ipc://")
        self._borrower = Borrower(directory_of(endpoint), sockets.name) if is_local else None
        self._pulls = PullBook(why_bad_layout)
        self._puller = Puller(sockets, self._pulls)

    def is_settled(self, arrival: Arrival) -> bool:
        """Return whether nothing of a microbatch is on its way here any more."""
        return self._pulls.is_settled(arrival.batch)

    def with_payloads(self, arrival: Arrival) -> Arrival | None:
        """Return a microbatch with a payload for each item; None if some cannot be had any more.

        Of a microbatch that is settled.
        """
        handles = arrival.batch.handles
        if not handles.runs:
            return arrival
        tokens = {server.token for server in arrival.batch.servers}
        lent = self._views([None if run.token in tokens else run for run in handles.runs])
        if lent is None:
            return None
        # Most often all lie here, and those that are side by side are copied into a batch at once.
        if not (self._copies or tokens or arrival.payloads):
            here = [run for run in lent if run is not None]
            return Arrival(arrival.batch, PlacedPayloads(here, handles))
        # Others came with the message, or were pulled from workers elsewhere.
        frames = iter(arrival.payloads)
        payloads = [
            next(frames) if place[0] < 0 else self._payload(handles, lent, place)
            for place in handles.places()
        ]
        if any(each is None for each in payloads):
            return None
        return Arrival(arrival.batch, tuple(payloads))

    def _payload(
        self,
        handles: Handles,
        lent: Sequence[memoryview | None],
        place: tuple[int, int, int],
    ) -> object | None:
        """Return the payload at a place in a run, None if it could not be pulled."""
        number, offset, nbytes = place
        run = lent[number]
        if run is None:
            return self._pulls.payload(handles.runs[number])
        payload = run[offset : offset + nbytes]
        return bytearray(payload) if self._copies else payload

    def pull(self, session: RankSession) -> list[PullFailed]:
        """Ask for what has been announced, and take in what has come; return what cannot be had."""
        arrived = session.batches()
        if self._puller.is_idle and not any(batch.servers for batch in arrived):
            return []
        return self._puller.turn(arrived)

    def knock(self) -> None:
        """Connect to the workers of this machine that lend memory; their payloads come later."""
        if self._borrower is not None:
            self._borrower.knock()

    def turn(self, session: RankSession) -> None:
        """Answer the workers that ask what is read here."""
        if self._borrower is not None:
            self._borrower.turn(session.handles())

    def rest(self) -> None:
        """Read nothing for some time, in which workers that ask get no answer."""
        if self._borrower is not None:
            self._borrower.rest()

    def waits_for(self) -> str:
        """Return in a few words what is on its way here, "" if nothing is."""
        return f"answers of workers to {self._pulls.waiting} pulls" if self._pulls.waiting else ""

    def close(self) -> None:
        """Give back all memory that no tensor refers to."""
        if self._borrower is not None:
            self._borrower.close()

    def _views(self, handles: Sequence[PayloadHandle | None]) -> Sequence[memoryview | None] | None:
        """Return what lies in memory of this machine; None if some cannot be read any more."""
        if handles.count(None) == len(handles):
            return handles  # type: ignore[return-value]
        if self._borrower is None:
            raise LoaderError(
                f"the balancer at {self._endpoint} has sent handles of memory on its own machine: "
                "please report this bug of counterpoise"
            )
        return self._borrower.views(handles)

"""The microbatches that ranks have asked for and not been sent."""

from dataclasses import dataclass

from ...protocol.messages import RequestBatch

# Requests that one rank may have open. The trainer's prefetch is far below, and it asks again.
MAX_REQUESTS = 1024

# (run, step, microbatch, rank, peer): sorts by need. Several peers may share a rank.
Key = tuple[int, int, int, int, bytes]


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """The peer that asked for a microbatch, and the time of its first request."""

    peer: bytes
    since: float


class PendingRequests:
    """The open requests of all ranks, of one run or of several."""

    def __init__(self) -> None:
        self._requests: dict[Key, PendingRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, peer: bytes, request: RequestBatch, now: float) -> None:
        """Record a request, unless the peer has too many; a repeated one keeps its time."""
        key = _key(request, peer)
        if key in self._requests:
            return
        if sum(pending.peer == peer for pending in self._requests.values()) < MAX_REQUESTS:
            self._requests[key] = PendingRequest(peer, now)

    def nearest_of_peers(self, run: int) -> dict[bytes, tuple[RequestBatch, float]]:
        """Return each peer's nearest request in a run, and since when it is open."""
        nearest: dict[bytes, tuple[RequestBatch, float]] = {}
        for (number, step, microbatch, rank, _), pending in self._in_order():
            if number == run:
                request = RequestBatch(run, rank, step, microbatch)
                nearest.setdefault(pending.peer, (request, pending.since))
        return nearest

    def nearest_of(self, peer: bytes, run: int) -> RequestBatch | None:
        """Return a peer's nearest request in a run, None if it has none."""
        own = [key for key in self._requests if key[0] == run and key[4] == peer]
        if not own:
            return None
        _, step, microbatch, rank, _ = min(own)
        return RequestBatch(run, rank, step, microbatch)

    def of_run(self, run: int) -> list[tuple[RequestBatch, bytes]]:
        """Return a run's requests, nearest first, and forget those of the runs before."""
        if not self._requests:
            return []
        self._requests = {key: each for key, each in self._requests.items() if key[0] >= run}
        return [
            (RequestBatch(run, rank, step, microbatch), pending.peer)
            for (number, step, microbatch, rank, _), pending in self._in_order()
            if number == run
        ]

    def remove(self, request: RequestBatch, peer: bytes) -> None:
        """Forget a request that was answered."""
        del self._requests[_key(request, peer)]

    def remove_peer(self, peer: bytes) -> None:
        """Forget all that a peer has asked for."""
        self._requests = {key: each for key, each in self._requests.items() if each.peer != peer}

    def _in_order(self) -> list[tuple[Key, PendingRequest]]:
        return sorted(self._requests.items(), key=lambda item: item[0])


def _key(request: RequestBatch, peer: bytes) -> Key:
    return request.run, request.step, request.microbatch, request.rank, peer

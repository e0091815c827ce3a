"""The microbatches that ranks have asked for and not been sent, and the label tokens they count.

A request is *looked at* when it has come and when something has changed that may make it ready:
those who change that say so by `look_at_...`. So no message has to walk all open requests.

What label tokens a process has counted goes when the process does: after a restart of trainer or
balancer nothing is left of a former launch, and a process that comes back sends its counts again. A
step's total stays as long as one of the processes does that were here when it was known: those that
have counted may leave before others, which share a rank with them, come to the step.
"""

from collections.abc import Iterable

import msgspec

from ...protocol.messages import LabelCount, LabelTotal
from ...protocol.parts import COUNTED_STEPS
from ...protocol.payload_messages import RequestBatch

# Requests that one rank may have open. The trainer's prefetch is far below, and it asks again.
MAX_REQUESTS = 1024

# (run, step, microbatch, rank, peer): sorts by need. Several peers may share a rank.
Key = tuple[int, int, int, int, bytes]


class PendingRequests:
    """The open requests of all ranks, of one run or of several."""

    def __init__(self) -> None:
        # The time of each first request, in total, by peer, and by (step, microbatch, rank).
        self._since: dict[Key, float] = {}
        self._of_peer: dict[bytes, dict[Key, None]] = {}
        self._of_place: dict[tuple[int, int, int], dict[Key, None]] = {}
        self._to_look_at: dict[Key, None] = {}
        self._run = -1

    def add(self, peer: bytes, request: RequestBatch, now: float) -> None:
        """Record a request, as far as the peer may have more; a repeated one keeps its time."""
        own = self._of_peer.setdefault(peer, {})
        key = _key(request, peer)
        if key not in self._since:
            if len(own) >= MAX_REQUESTS:
                return
            self._since[key] = now
            own[key] = None
            self._of_place.setdefault(key[1:4], {})[key] = None
        self._to_look_at[key] = None

    # --- what has changed

    def look_at(self, step: int, microbatch: int, rank: int) -> None:
        """Look at the requests for a microbatch."""
        self._to_look_at.update(self._of_place.get((step, microbatch, rank), {}))

    def look_at_peers(self, peers: Iterable[bytes]) -> None:
        """Look at the requests of some peers."""
        for peer in peers:
            self._to_look_at.update(self._of_peer.get(peer, {}))

    def look_at_all(self) -> None:
        """Look at all requests."""
        self._to_look_at.update(dict.fromkeys(self._since))

    def take(self, run: int) -> list[tuple[RequestBatch, bytes]]:
        """Return, once, a run's requests to look at, nearest first; forget those of former runs."""
        if run != self._run:
            self._run = run
            for key in [key for key in self._since if key[0] < run]:
                self._forget(key)
            self.look_at_all()
        if not self._to_look_at:
            return []
        found = sorted(key for key in self._to_look_at if key[0] == run)
        self._to_look_at.clear()
        return [(_request(key), key[4]) for key in found]

    def remove(self, request: RequestBatch, peer: bytes) -> None:
        """Forget a request that was answered."""
        self._forget(_key(request, peer))

    def remove_before(self, peer: bytes, run: float) -> None:
        """Forget what a peer has asked for of runs before this one: it has left them.

        Of all runs, if `run` is infinity.
        """
        for key in [key for key in self._of_peer.get(peer, ()) if key[0] < run]:
            self._forget(key)

    # --- questions

    def nearest_of_peers(self, run: int) -> dict[bytes, tuple[RequestBatch, float]]:
        """Return each peer's nearest request in a run, and since when it is open."""
        nearest: dict[bytes, tuple[RequestBatch, float]] = {}
        for peer in self._of_peer:
            request = self.nearest_of(peer, run)
            if request is not None:
                nearest[peer] = (request, self._since[_key(request, peer)])
        return nearest

    def nearest_of(self, peer: bytes, run: int) -> RequestBatch | None:
        """Return a peer's nearest request in a run, None if it has none."""
        own = [key for key in self._of_peer.get(peer, ()) if key[0] == run]
        return _request(min(own)) if own else None

    def _forget(self, key: Key) -> None:
        del self._since[key]
        self._to_look_at.pop(key, None)
        peer, place = key[4], key[1:4]
        del self._of_peer[peer][key], self._of_place[place][key]
        if not self._of_peer[peer]:
            del self._of_peer[peer]
        if not self._of_place[place]:
            del self._of_place[place]


def _key(request: RequestBatch, peer: bytes) -> Key:
    return request.run, request.step, request.microbatch, request.rank, peer


def _request(key: Key) -> RequestBatch:
    run, step, microbatch, rank, _ = key
    return RequestBatch(run, rank, step, microbatch)


# (run, step).
StepOfRun = tuple[int, int]


class CountedStep(msgspec.Struct):
    """The label tokens of a step, by rank and process; the total, and who was here when it came."""

    counts: dict[int, dict[bytes, int]] = msgspec.field(default_factory=dict)
    total: int | None = None
    owners: set[bytes] = msgspec.field(default_factory=set)


class LabelTotals:
    """The label tokens of the last steps, as the trainer's processes count them."""

    def __init__(self) -> None:
        self._steps: dict[StepOfRun, CountedStep] = {}

    def add(self, peer: bytes, message: LabelCount) -> int | None:
        """Store a count; return what another process has for its rank, if it differs."""
        step = self._steps.setdefault((message.run, message.step), CountedStep())
        own = step.counts.setdefault(message.rank, {})
        own[peer] = message.tokens
        while len(self._steps) > COUNTED_STEPS:
            del self._steps[min(self._steps)]
        return next((other for other in own.values() if other != message.tokens), None)

    def settle(
        self, peer: bytes, message: LabelCount, ranks: int, peers: Iterable[bytes]
    ) -> tuple[LabelTotal, list[bytes]] | None:
        """Return the total of a step, of which `peer` has sent a count, and whom to tell it.

        None while not all of the ranks' counts are there; `peers` are the processes that are here.
        """
        step = self._steps.get((message.run, message.step))
        if step is None or (step.total is None and len(step.counts) < ranks):
            return None
        told = [peer]
        if step.total is None:
            step.total = sum(next(iter(each.values())) for each in step.counts.values())
            step.owners = set(peers)
            told = sorted({peer for each in step.counts.values() for peer in each})
        return LabelTotal(message.run, message.step, step.total), told

    def waits_for(self, peer: bytes, run: int, ranks: int) -> tuple[int, list[int]] | None:
        """Return the step of which a process waits for the total, and the ranks that lack in it."""
        own = [
            at
            for at, step in self._steps.items()
            if at[0] == run and any(peer in each for each in step.counts.values())
        ]
        step = self._steps[max(own)] if own else CountedStep(total=0)
        if step.total is not None:
            return None
        return max(own)[1], [rank for rank in range(ranks) if rank not in step.counts]

    def remove(self, peer: bytes) -> None:
        """Forget what a process has counted, and totals that only concerned it."""
        for at, step in list(self._steps.items()):
            step.owners.discard(peer)
            for rank, each in list(step.counts.items()):
                each.pop(peer, None)
                if not each:
                    del step.counts[rank]
            if not step.counts and not step.owners:
                del self._steps[at]

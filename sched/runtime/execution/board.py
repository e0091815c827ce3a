"""A board on which every rank notes where it stands, so that errors can say who waits for whom.

A thread writes this rank's standing to a key-value store twice a second and reads the others', so
what was known last is here when the store's host is gone. The thread never holds up the passes; a
store that does not answer holds up the thread alone.
"""

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

import msgspec
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ..compiled.waiting import Standing
from .walk import Waits

_PERIOD_S = 0.5
# For others' last words, once this rank has failed.
_LISTEN_S = 1.5
_LOST = 70


@dataclass(slots=True)
class _Place:
    """Where the rank was when it was last looked at, and since when."""

    key: tuple[int, int, str] = (0, 0, "")
    since: float = 0.0


class Board:
    """The standings of all ranks of a pipeline, as one of them knows them.

    `prefix`: of the keys in the store. `waits`: what the executor changes as it goes on.
    `deadline_s`: how long after others have given up a rank that does not go on is ended.
    """

    def __init__(
        self, store: TCPStore, prefix: str, rank: int, ranks: int, deadline_s: float
    ) -> None:
        self.waits = Waits()
        self.step = 0
        self.standings: dict[int, Standing] = {}
        self._store, self._rank = store, rank
        self._keys = [f"{prefix}/{other}" for other in range(ranks)]
        self._deadline_s = deadline_s
        self._place = _Place(since=monotonic())
        self._read_at = monotonic()
        self._running = False
        self._failed = ""
        self._stop = threading.Event()
        # All ranks meet after this, so that no key is missing when the thread reads them.
        store.set(self._keys[rank], msgspec.json.encode(Standing(0, 0)).decode())

    def start(self) -> None:
        """Start to publish; all ranks have made their boards."""
        threading.Thread(target=self._publish_often, name="standing", daemon=True).start()

    def begin_step(self, step: int) -> Waits:
        """Note that a step starts, and return what the executor notes its place in."""
        self.step, self.waits, self._running = step, Waits(), True
        return self.waits

    def end_step(self) -> None:
        """Note that no step runs: whatever takes time now is the training loop's."""
        self._running = False

    def close(self) -> None:
        """Stop to publish."""
        self._stop.set()

    def give_up(self, error: str) -> dict[int, Standing]:
        """Publish that this rank has failed, and return all standings as of now.

        Takes at most two seconds, also where the store is gone.
        """
        self._failed = error or "failed"
        self._running = False
        last = threading.Thread(target=self._exchange, daemon=True)
        last.start()
        last.join(_LISTEN_S)
        age = monotonic() - self._read_at
        found = {r: replace(s, since_s=s.since_s + age) for r, s in self.standings.items()}
        return found | {self._rank: self._own()}

    def _own(self) -> Standing:
        value = self.waits.value
        key = (self.step, self.waits.at, "" if value is None else str(value))
        if key != self._place.key:
            self._place = _Place(key, monotonic())
        return Standing(*key, since_s=monotonic() - self._place.since, failed=self._failed)

    def _exchange(self) -> None:
        """Write this rank's standing and read the others'."""
        try:
            self._store.set(self._keys[self._rank], msgspec.json.encode(self._own()).decode())
            texts = self._store.multi_get(self._keys)
        except RuntimeError:
            # The host of the store is gone; what was read before stays.
            self._stop.set()
            return
        self._read_at = monotonic()
        self.standings = {
            rank: msgspec.json.decode(text, type=Standing)
            for rank, text in enumerate(texts)
            if rank != self._rank
        }

    def _publish_often(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            self._exchange()
            self._end_if_left_alone(os._exit)

    def _end_if_left_alone(self, leave: Callable[[int], None]) -> None:
        """End the process if the others have given up and this rank's own pass does not end."""
        own = self._own()
        others = {r: s.failed for r, s in self.standings.items() if s.failed}
        if self._running and others and not own.waiting and own.since_s > self._deadline_s:
            rank, error = next(iter(others.items()))
            print(  # noqa: T201
                f"rank {self._rank} is in one pass since {own.since_s:.0f} s, and rank {rank} has "
                f"given up: {error}",
                file=sys.stderr,
                flush=True,
            )
            leave(_LOST)

"""What the processes of a job have begun, and which run is the next."""

import math
from collections import Counter

from .messages import BeginRun
from .seats import RunKey, Seats, TrainerPeer

# Processes that have begun different runs may be of two launches, until the former is known dead.
APART_S = 35.0
# A run that was begun at another balancer goes on without those who stay away for this long: they
# may have had all of it. Those who are to begin the next may come back for so long.
HELD_UP_S, MISSING_S = 30.0, 120.0
# On one host who shares a rank is waited for so long: some share it, and open no loader.
SHARERS_S = 2.0


class RunStarts:
    """What the processes at a job's seats have begun; on_host: as in Parties.

    current: what is played, if anything is. run_begun: the last number that all have begun.
    """

    def __init__(self, seats: Seats, on_host: bool) -> None:
        self._seats, self._on_host = seats, on_host
        self.current: RunKey | None = None
        self.run_begun = -1
        self._begun: Counter[RunKey] = Counter()  # processes, by what they have begun
        self._since: dict[str, float] = {}
        self._waited_for = (-math.inf, "")

    def __contains__(self, key: RunKey) -> bool:
        """Return whether a process is in a run."""
        return key in self._begun

    def put(self, trainer: TrainerPeer, message: BeginRun | None) -> None:
        """Say what a process has begun, None for nothing, in place of what it had before."""
        if (before := trainer.key) is not None:
            self._begun[before] -= 1
            if not self._begun[before]:
                del self._begun[before]
        trainer.begun = message
        if (key := trainer.key) is not None:
            self._begun[key] += 1

    def find_next(self, is_ready: bool, now: float) -> RunKey | None:
        """Return the run that is to be played now; ValueError where it will never be."""
        is_apart = self._is_apart()
        if self._has_lasted("apart", is_apart, APART_S, now):
            raise ValueError(self._describe_positions())
        # On one host a run counts as begun before the data are open: its workers come only then.
        is_waiting = is_apart or self.current is not None or not (is_ready or self._on_host)
        if is_waiting or not 0 < sum(self._begun.values()) == len(self._seats.peers):
            self._since.pop("missing", None)
        elif self._seats.is_full or self._may_do_without(now):
            self._since.clear()
            key = min(self._begun, key=lambda key: key.run)
            self.run_begun = max(self.run_begun, key.run)
            return key if is_ready else None
        return None

    def _may_do_without(self, now: float) -> bool:
        """Return whether a run begins although some stay away; ValueError where that lasts."""
        seats = self._seats
        if self._on_host:  # a process that shares a rank may never open a loader
            is_late = self.run_begun < 0 and not self._has_lasted("missing", True, SHARERS_S, now)
            return len(seats.ranks_here) == seats.ranks and not is_late
        begun = (trainer.begun for trainer in seats.peers.values())
        if any(message is not None and (message.had or message.served) for message in begun):
            return self._has_lasted("missing", True, HELD_UP_S, now)
        if self._has_lasted("missing", True, MISSING_S, now) and seats.gone:
            raise ValueError(
                f"{seats.missing()}, and the others have waited {MISSING_S:.0f} s for them "
                "to begin the next epoch: let all ranks run the same epochs, or restart all ranks"
            )
        return False

    def _has_lasted(self, condition: str, is_so: bool, limit_s: float, now: float) -> bool:
        if not is_so:
            self._since.pop(condition, None)
            return False
        return now - self._since.setdefault(condition, now) > limit_s

    def describe_wait(self, now: float) -> str:
        """Return which processes are waited for; found out once a second, however many ask."""
        if now > self._waited_for[0] + 1:
            # Who plays is in a run before it.
            late = [t.name for t in self._seats.peers.values() if t.key in (None, self.current)]
            waiting = f"{', '.join(late[:4])}, to begin the run"
            if self._is_apart():
                waiting = self._describe_positions()
            elif not self._seats.is_full:
                waiting = f"{self._seats.missing()}: not here"
            self._waited_for = now, waiting
        return self._waited_for[1]

    def _is_apart(self) -> bool:
        """Return whether processes cannot be in one run: some may be one ahead of the others."""
        if len(self._begun) < 2:
            return False
        first, second, *later = sorted(self._begun, key=lambda key: key.run)
        return bool(later) or self.current not in (None, first) or second.run != first.run + 1

    def _describe_positions(self) -> str:
        peers = self._seats.peers.values()
        names = {trainer.key: trainer.name for trainer in peers if trainer.key is not None}
        listed = "; ".join(
            f"{name} begins run {key.run} at epoch {key.epoch}, step {key.at.step}"
            + f", with costs {key.costs:.40}" * bool(key.costs)
            for key, name in [*names.items()][:4]
        )
        return f"the ranks are not at one position: {listed}: resume all of them from one ledger"

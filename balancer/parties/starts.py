"""What the processes of a job have begun: whether it is one run, and where that is to be played."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from ..protocol.parts import EpochPosition
from ..run.arrivals import RunStart
from .messages import BeginRun


class RunKey(NamedTuple):
    """What must be the same of all processes in a run."""

    run: int
    epoch: int
    at: EpochPosition
    costs: str


class RunAttempt(NamedTuple):
    """A run to be played from a position on; known: steps whose holes among those of start are all.

    An attempt is another object than the one before, also at the same run.
    """

    key: RunKey
    start: RunStart
    known: tuple[int, ...]


def key_of(begun: BeginRun) -> RunKey:
    """Return what a process has begun."""
    return RunKey(begun.run, begun.epoch, begun.at, begun.costs)


def is_apart(keys: Collection[RunKey], current: RunKey | None) -> bool:
    """Return whether processes cannot be in one run: some may be one ahead of the others.

    >>> at = EpochPosition(0, 0, 0, 0, "")
    >>> keys = [RunKey(run, 0, at, "") for run in (1, 2, 4)]
    >>> is_apart(keys[:1], None), is_apart(keys[:2], None), is_apart(keys[1:], None)
    (False, False, True)
    """
    if len(keys) < 2:
        return False
    first, *others = sorted(keys, key=lambda key: key.run)
    return current not in (None, first) or len(others) > 1 or others[0].run != first.run + 1


def why_apart(names: Iterable[tuple[RunKey, str]]) -> str:
    """Return why processes that have begun different runs cannot go on, as text."""
    listed = "; ".join(
        f"{name} begins run {key.run} at epoch {key.epoch}, step {key.at.step}"
        + f", with costs {key.costs:.40}" * bool(key.costs)
        for key, name in [*dict(names).items()][:4]
    )
    return f"the ranks are not at one position: {listed}: resume all of them from one ledger"


def join_starts(begun: Collection[BeginRun]) -> RunStart:
    """Return where a run is to be played: from the process that is farthest behind.

    Raises ValueError if they need different data.
    """
    samples = {message.samples for message in begun if message.samples >= 0}
    if len(samples) > 1:
        numbers = " and ".join(map(str, sorted(samples)))
        raise ValueError(
            f"the ranks go on in data of {numbers} samples: resume all of them from one ledger"
        )
    least = min(begun, key=lambda message: message.had)
    holes = sorted({ordinal for message in begun for ordinal in message.holes})
    return RunStart(least.epoch, least.here, tuple(holes), 0, least.costs, max(samples, default=-1))

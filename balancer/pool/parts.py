"""Parts of tasks: which samples are made together, and what a task is once its parts are made."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn

from ..run.tasks import TASK_HEAD, Failed, FailedSample, Made, Measured
from .messages import BATCH, FailedPlace, PartMade, PartMeasured
from .tickets import KeptPiece, Ticket

# A part takes a worker about this long.
PART_S = 0.1


@dataclass(slots=True, eq=False)
class PoolTask:
    """A task of the run: its parts, what came of them, and its ticket once it is done.

    open: parts that are not made. is_told: its result was handed over. is_over: nothing of it is
    wanted any more.
    """

    number: int
    task: list[int]
    is_load: bool
    parts: "list[Part]" = field(default_factory=list)
    open: int = 0
    ticket: Ticket | None = None
    is_told: bool = False
    is_over: bool = False


@dataclass(slots=True, eq=False)
class Part:
    """Some samples of a task, by their places in it. holders: the workers that were given it.

    home: the worker that has its samples loaded already. answer, piece: what a worker has made of
    it. alone: its one sample may kill workers, and is worked on while nothing else is.
    """

    number: int
    of: PoolTask
    form: str
    places: tuple[int, ...]
    home: bytes | None = None
    alone: bool = False
    holders: dict[bytes, float] = field(default_factory=dict)
    answer: PartMade | PartMeasured | None = None
    piece: KeptPiece | None = None
    is_queued: bool = False

    @property
    def is_wanted(self) -> bool:
        """True if it is not made, and its task is not over."""
        return self.answer is None and not self.of.is_over

    @property
    def indexes(self) -> list[int]:
        """Where in the source its samples are."""
        task = self.of.task
        return [task[TASK_HEAD + place] for place in self.places]

    @property
    def packed(self) -> tuple[int, ...]:
        """The task that a worker does."""
        return (*self.of.task[:TASK_HEAD], *self.indexes)


class PartFailed(Failed):
    """What collating a part raised, as its worker tells it."""

    def __init__(self, text: str) -> None:
        super().__init__(None)
        self.text = text

    def reraise(self) -> NoReturn:
        """Raise it."""
        raise RuntimeError(self.text)


def spread_places(count: int, parts: int) -> list[tuple[int, ...]]:
    """Return the places of samples in so many parts of equal counts.

    >>> spread_places(5, 2)
    [(0, 1), (2, 3, 4)]
    """
    ends = [count * n // parts for n in range(parts + 1)]
    return [tuple(range(a, b)) for a, b in pairwise(ends) if a < b]


def divide(
    indexes: Sequence[int], homes: Mapping[int, bytes], workers: int, each_s: float
) -> list[tuple[tuple[int, ...], bytes | None]]:
    """Return the places of a microbatch's samples in parts, and who has these loaded already.

    each_s: how long a sample takes, 0 if that is not known: then all workers load.
    """
    count = len(indexes)
    if homes and any(index in homes for index in indexes):
        groups = group_places([homes.get(index) for index in indexes])
        return [(tuple(places), home) for home, places in groups.items()]
    parts = min(count, math.ceil(each_s * count / PART_S)) if each_s else min(count, workers)
    return [(places, None) for places in spread_places(count, parts if workers > 1 else 1)]


def group_places(homes: Sequence[bytes | None]) -> dict[bytes | None, list[int]]:
    """Return the places of samples by the worker that has them loaded already, None for none.

    >>> group_places([b"a", None, b"a"])
    {b'a': [0, 2], None: [1]}
    """
    found: dict[bytes | None, list[int]] = {}
    for place, home in enumerate(homes):
        found.setdefault(home, []).append(place)
    return found


def joined_made(task: PoolTask) -> Made:
    """Return what a task is whose parts are all made; its ticket says where."""
    answers = [part.answer for part in task.parts if isinstance(part.answer, PartMade)]
    pairs = list(zip(task.parts, answers, strict=True))
    failed: dict[int, FailedSample] = {}
    names: dict[int, str] = {}
    costs: dict[int, tuple[int, ...]] = {}
    is_lost = False
    for part, answer in pairs:
        here = _failed_of(part, answer.failed)
        failed |= here
        good = [place for place in part.places if place not in here]
        is_lost |= not answer.serial and bool(good)
        names.update(zip(good, answer.names, strict=False))
        costs.update(zip(good, answer.costs, strict=False))
    labels = [answer.labels for answer in answers if answer.labels]
    is_batch = bool(pairs) and pairs[0][0].form == BATCH
    if is_lost or (is_batch and not answers[0].serial):
        return Made(None, failed=tuple(sorted(failed.items())))
    pieces = tuple(part.piece for part in task.parts if part.piece is not None)
    task.ticket = Ticket(task.number, is_batch, pieces)
    sizes = [answer.sample_bytes for answer in answers]
    return Made(
        task.ticket,
        tuple(names[place] for place in sorted(names)),
        tuple(sorted(failed.items())),
        tuple(costs[place] for place in sorted(costs)),
        (sum(a for a, _ in labels), sum(b for _, b in labels)) if labels else None,
        answers[0].label_tokens if is_batch and answers[0].label_tokens >= 0 else None,
        sum(sizes) if sizes and min(sizes) >= 0 else None,
    )


def joined_measured(task: PoolTask) -> Measured:
    """Return what the samples of a task cost whose parts are all measured."""
    costs: dict[int, tuple[int, ...] | FailedSample] = {}
    seconds, differs = 0.0, False
    for part in task.parts:
        if isinstance(part.answer, PartMeasured):
            costs.update(zip(part.places, part.answer.costs, strict=False))
            costs.update(_failed_of(part, part.answer.failed))
            seconds += part.answer.took_us / 1e6
            differs |= part.answer.differs
    return Measured(tuple(costs[place] for place in sorted(costs)), seconds, differs)


def _failed_of(part: Part, failed: Sequence[FailedPlace]) -> dict[int, FailedSample]:
    """Return the samples of a part that cannot be used, by their place in the task."""
    return {
        part.places[each.place]: FailedSample(each.key, each.reason, each.is_io, each.source)
        for each in failed
        if each.place < len(part.places)
    }

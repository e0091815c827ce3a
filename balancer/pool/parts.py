"""How a task becomes parts for several workers, and their results one: pure.

A microbatch is cut where one worker would need more than PART_S for it, into runs of samples of
about that long, and into as many parts as there are workers while no time is known. Samples that a
worker has loaded to measure them are parts of their own there.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from ..run.tasks import FailedSample, LoadedBatch, Measured
from .messages import BATCH, COSTS, ERROR_CHARACTERS, SAMPLES, FailedPlace, PartMade
from .tickets import KeptPiece, Ticket
from .workers import PoolPart, PoolTask, PoolWorker

PART_S = 0.1


def cut(
    task: PoolTask,
    workers: int,
    sample_s: float,
    collates: bool,
    keepers: Mapping[tuple[int, int], PoolWorker],
) -> list[PoolPart]:
    """Return the parts of a task for a number of workers: none of one without samples.

    sample_s: how long a worker takes to load a sample, 0 if that is not known. collates: whether
    workers make batches. keepers: who has a sample loaded, by its epoch and index.
    """
    places = range(len(task.indexes))
    if not places:
        return []
    if not task.is_load:
        return [PoolPart(task, COSTS, places)]
    whole = BATCH if collates else SAMPLES
    if task.is_spare or workers < 2:
        return [PoolPart(task, whole, places)]
    by_keeper: dict[PoolWorker, list[int]] = {}
    unloaded: Sequence[int] = places
    if keepers:
        unloaded = []
        for place, index in enumerate(task.indexes):
            keeper = keepers.get((task.words[1], index))
            (unloaded if keeper is None else by_keeper.setdefault(keeper, [])).append(place)
    count = ceil(len(unloaded) * sample_s / PART_S) if sample_s else workers
    runs = [*_cut_evenly(unloaded, count)]
    if len(runs) + len(by_keeper) > 1:  # a batch of a part is none: the trainer collates
        whole = SAMPLES
    parts = [PoolPart(task, whole, loaded, keeper=keeper) for keeper, loaded in by_keeper.items()]
    return parts + [PoolPart(task, whole, run) for run in runs]


def _cut_evenly(places: Sequence[int], count: int) -> Iterator[Sequence[int]]:
    """Yield at most so many runs of places, of which none is empty.

    >>> [*_cut_evenly([1, 2, 3, 5, 7], 2)]
    [[1, 2], [3, 5, 7]]
    """
    count = min(count, len(places))
    for number in range(count):
        yield places[len(places) * number // count : len(places) * (number + 1) // count]


def cut_singly(part: PoolPart) -> list[PoolPart]:
    """Return what a part becomes of which a worker has died: each sample is tried by itself.

    Of spare samples the first is tried, and then the others until one can be loaded.
    """
    form = SAMPLES if part.form == BATCH and not part.task.is_spare else part.form
    places = part.places[:1] if part.task.is_spare else part.places
    known = None if part.failed is None else {*part.failed}
    return [
        PoolPart(
            part.task, form, (place,), is_alone=True,
            failed=None if known is None else tuple({place} & known),
        )
        for place in places
    ]  # fmt: skip


def failed_places(part: PoolPart, failed: Sequence[FailedPlace]) -> tuple[int, ...]:
    """Return the places in the task of samples that failed in a part."""
    return tuple(part.places[failure.place] for failure in failed)


def join(task: PoolTask, skips: bool) -> Any:
    """Return the result of a task from the answers of all its parts.

    Its ticket has a piece of each part that keeps something. There is none where a sample ends the
    run (without `skips`, or an error of the disk), and where no spare sample can be used. That of a
    microbatch without samples has no piece: trainers make what there is of none.
    """
    answers = [part.answer for part in task.parts]
    failed = {
        part.places[failure.place]: FailedSample(
            failure.key, failure.reason[:ERROR_CHARACTERS], failure.is_io, failure.source
        )
        for part in task.parts
        for failure in part.answer.failed
    }
    costs = _in_order(task, "costs", failed)
    if not task.is_load:
        rows = tuple(failed.get(place, cost) for place, cost in enumerate(costs))
        seconds = sum(answer.took_us for answer in answers) / 1e6
        return Measured(rows, seconds, any(answer.differs for answer in answers))
    pieces = [part.piece for part in task.parts if part.piece is not None]
    ends = failed and (not skips or any(failure.is_io for failure in failed.values()))
    if (pieces or not task.is_spare) and not ends:  # else there is nothing to hand out
        first = task.indexes[0] if task.indexes else -1
        task.ticket = Ticket(task.number, is_whole(task), pieces, first)
    labels = [answer.labels for answer in answers if answer.labels]
    return LoadedBatch(
        task.ticket,
        _in_order(task, "names", failed),
        tuple(sorted(failed.items())),
        costs,
        (sum(pair[0] for pair in labels), sum(pair[1] for pair in labels)) if labels else None,
        _sum_told([answer.label_tokens for answer in answers]),
        _sum_told([answer.sample_bytes for answer in answers]),
    )


def is_whole(task: PoolTask) -> bool:
    """Return whether a microbatch is kept as a batch."""
    has_pieces = any(part.piece is not None for part in task.parts)
    return has_pieces and all(part.form == BATCH for part in task.parts)


def _in_order(task: PoolTask, name: str, failed: Container[int]) -> tuple[Any, ...]:
    """Return what was told of each sample, in the task's order; of a load of those used."""
    by_place: dict[int, Any] = {}
    for part in task.parts:
        places = [place for place in part.places if not (task.is_load and place in failed)]
        by_place.update(zip(places, getattr(part.answer, name), strict=False))
    return tuple(by_place[place] for place in sorted(by_place))


def _sum_told(counts: Sequence[int]) -> int | None:
    return None if min(counts, default=0) < 0 else sum(counts)


def make_piece(part: PoolPart, worker: bytes, answer: PartMade) -> KeptPiece | None:
    """Return what a worker keeps of a part, None for nothing."""
    if not answer.serial:
        return None
    bad = failed_places(part, answer.failed)
    places = (0,) if part.task.is_spare else tuple(p for p in part.places if p not in bad)
    return KeptPiece(places, worker, answer.serial, answer.nbytes, answer.frames)

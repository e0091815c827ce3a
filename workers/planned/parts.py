"""Does the parts of tasks that a pool's balancer gives its workers: balancer/pool/messages.py."""

import time
import traceback
from collections.abc import Callable, Iterable

from ...balancer.pool.messages import (
    BATCH,
    COSTS,
    ERROR_CHARACTERS,
    SAMPLES,
    DoPart,
    FailedPlace,
    PartBroken,
    PartMade,
    PartMeasured,
)
from ...balancer.run.tasks import LOAD, MEASURE, TASK_HEAD, FailedSample, LoadedBatch, Measured
from ..codec.batches import encode_batch
from ..codec.contents import Buffer
from .reader import PlannedReader

Encode = Callable[[object], list[Buffer]]
PartDone = PartMade | PartMeasured | PartBroken
_TASKS = {BATCH: LOAD, SAMPLES: LOAD, COSTS: MEASURE}


def do_part(
    reader: PlannedReader, part: DoPart, serial: int, encode: Encode = encode_batch
) -> tuple[PartDone, list[Buffer]]:
    """Return what comes of a part, and the frames of what is to be kept under `serial`.

    Where nothing is to be kept there are no frames, and the serial is 0. An error of a sample is
    told with its place; one of collating, or of a batch or a sample that `encode` refuses, by a
    TypeError or a ValueError, as PartBroken.
    """
    since = time.perf_counter()
    try:
        if len(part.task) < TASK_HEAD or _TASKS.get(part.form) != part.task[0]:
            raise ValueError(f"no worker can make {part.form!r:.40} of task {part.task[:4]}")
        done = reader.do([*part.task], collates=part.form == BATCH)
        if part.form == COSTS:
            return _answer_costs(reader, part, done), []
        loaded = done if type(done) is LoadedBatch else LoadedBatch(done)
        try:
            frames = [] if loaded.batch is None else encode(loaded.batch)
        except (TypeError, ValueError) as error:
            prefix = _find_refused(reader, part, loaded, encode)
            text = f"{prefix}{error}"[:ERROR_CHARACTERS]
            return PartBroken(part.number, text, _took_us(since)), []
    except Exception as error:
        # Its end says most.
        text = "".join(traceback.format_exception(error))[-ERROR_CHARACTERS:]
        return PartBroken(part.number, text, _took_us(since)), []
    return _answer(part, loaded, serial if frames else 0, frames, _took_us(since)), frames


def _find_refused(reader: PlannedReader, part: DoPart, loaded: LoadedBatch, encode: Encode) -> str:
    """Return the name of the sample that `encode` refuses, to begin an error; "" of a batch."""
    bad = {place for place, _ in loaded.failed}
    good = [index for place, index in enumerate(part.task[TASK_HEAD:]) if place not in bad]
    if part.form != SAMPLES or len(good) != len(
        loaded.batch
    ):  # of a spare one it is not known which
        return ""
    for index, sample in zip(good, loaded.batch, strict=True):
        try:
            encode(sample)
        except (TypeError, ValueError):
            return f"sample {reader.key(index)!r}: "
    return ""


def _answer_costs(reader: PlannedReader, part: DoPart, done: Measured) -> PartMeasured:
    failed = [(p, cost) for p, cost in enumerate(done.costs) if isinstance(cost, FailedSample)]
    costs = tuple(() if isinstance(cost, FailedSample) else cost for cost in done.costs)
    return PartMeasured(
        part.number, costs, _failed_places(failed), round(done.seconds * 1e6), done.differs,
        reader.find_kept(part.task[TASK_HEAD:]),
    )  # fmt: skip


def _answer(
    part: DoPart, load: LoadedBatch, serial: int, frames: list[Buffer], took_us: int
) -> PartMade:
    sizes = tuple(map(len, frames))
    tokens, nbytes = (-1 if count is None else count for count in (load.label_tokens, load.nbytes))
    return PartMade(
        part.number, serial, sum(sizes), sizes, load.names, _failed_places(load.failed),
        load.costs, load.labels or (), tokens, nbytes, took_us,
    )  # fmt: skip


def _failed_places(failed: Iterable[tuple[int, FailedSample]]) -> tuple[FailedPlace, ...]:
    return tuple(FailedPlace(place, s.key, s.reason, s.is_io, s.source) for place, s in failed)


def _took_us(since: float) -> int:
    return round((time.perf_counter() - since) * 1e6)

"""What a job's balancer and its workers tell each other about tasks.

A worker is given *parts* (DoPart): a whole microbatch, some of its samples, or samples to measure.
What it makes of one it keeps under a serial number until the balancer frees it, and says so
(PartMade, PartMeasured, PartBroken). Every message may be repeated, lost or late: a part has a
number that is never used again in a job, and so has what is kept.
"""

from ..protocol.parts import Cost, Count
from ..protocol.records import ArrayRecord, Integer

# What is to be made of a part's samples: a batch, collated; the samples, as they are; or what they
# cost.
BATCH, SAMPLES, COSTS = "batch", "samples", "costs"
# What a worker has made within so long it may tell together.
TELL_S = 0.002
# Characters of an error that are told.
ERROR_CHARACTERS = 16_000
# A beat names so many of the parts of which something is kept, by turns.
KEPT = 64


class FailedPlace(ArrayRecord, frozen=True):
    """A sample of a part that cannot be used, by its place there; as FailedSample of run/tasks."""

    place: Count
    key: str
    reason: str
    is_io: bool
    source: str


# --- balancer to worker


class DoPart(ArrayRecord, frozen=True):
    """Do a part; `task` is as `packed()` of run/tasks has it, form is BATCH, SAMPLES, ...

    serials: as in FreeParts, which travel with it.
    """

    number: Count
    form: str
    task: tuple[Integer, ...]
    serials: tuple[Count, ...] = ()


class FreeParts(ArrayRecord, frozen=True):
    """What is kept under these serials is not wanted any more, nor are parts of these numbers.

    A part that is in work is finished.
    """

    serials: tuple[Count, ...]
    numbers: tuple[Count, ...] = ()


# --- worker to balancer


class PartMade(ArrayRecord, frozen=True):
    """A part of form BATCH or SAMPLES is made; see LoadedBatch of run/tasks.

    serial, nbytes: of what is kept, 0 where nothing is (a sample ends the run, or all have failed).
    frames: the bytes of each frame of it. took_us: how long it took. sample_bytes: -1 if not asked.
    labels: two counts or none. label_tokens: -1 if not counted.
    """

    number: Count
    serial: Count
    nbytes: Count
    frames: tuple[Count, ...]
    names: tuple[str, ...]
    failed: tuple[FailedPlace, ...]
    costs: tuple[tuple[Cost, ...], ...]
    labels: tuple[Count, ...]
    label_tokens: Integer
    sample_bytes: Integer
    took_us: Count


class PartMeasured(ArrayRecord, frozen=True):
    """What the samples of a part cost, in its order; of those that failed ().

    kept: the places of samples that had to be loaded for it, and are kept loaded as long as there
    is room: the worker needs no time to make a part of them.
    """

    number: Count
    costs: tuple[tuple[Cost, ...], ...]
    failed: tuple[FailedPlace, ...]
    took_us: Count
    differs: bool
    kept: tuple[Count, ...]


class PartBroken(ArrayRecord, frozen=True):
    """A part could not be made: what collating raised, as text with its traceback."""

    number: Count
    error: str
    took_us: Count


class PoolBeat(ArrayRecord, frozen=True):
    """The worker is alive, and works on the sample at `index` of part `number` ((0, -1): idle).

    leaving: it is to end, and is given nothing more. kept: (number, serial) of parts of which it
    keeps something, some of them with each beat: what the balancer has freed it frees again.
    most_bytes: what it may keep from now on, 0: as it said last. For diagnostics only: busy_ms:
    time at work; cpu_ms: of CPU.
    """

    number: Count
    index: Integer
    leaving: bool
    kept: tuple[tuple[Count, Count], ...]
    busy_ms: Count = 0
    cpu_ms: Count = 0
    most_bytes: Count = 0


ToWorker = DoPart | FreeParts
TO_WORKER = (DoPart, FreeParts)
FROM_WORKER = (PartMade, PartMeasured, PartBroken, PoolBeat)
KINDS = (*TO_WORKER, *FROM_WORKER)
FromWorker = PartMade | PartMeasured | PartBroken | PoolBeat

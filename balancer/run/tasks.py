"""What goes into a planned run and comes out of it: tasks of workers, and microbatches of ranks.

A task is a list of whole numbers, which travels in the shortest form: its kind, the epoch, what is
asked for, and where in the source its samples are.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, Protocol

from ..protocol.parts import Count, EpochPosition, Hole, Weights
from ..protocol.records import ArrayRecord, Integer

# The kinds of tasks; LOOK: at samples, to see that all ranks have the same data.
LOAD, MEASURE, LOOK = 0, 1, 2
# Numbers of a task before the indexes of its samples.
TASK_HEAD = 3


class FailedSample(NamedTuple):
    """A sample that could not be measured or loaded.

    is_io: an error of the disk or network that persisted after all retries, which says nothing
    about the sample. source: the file that it is in, empty where that is not known. raised: what
    was raised, where that is to end the run; other ranks are not told it.
    """

    key: str
    reason: str
    is_io: bool
    source: str = ""
    raised: Any = None


class Load(NamedTuple):
    """A microbatch to load and to collate.

    indexes: its samples' in the source. names, costs: whether their names, and their costs as
    loading shows them, are asked for. labels: whether labels are counted sample by sample.
    spare: the first of the samples that can be loaded is the batch, for a loop that takes no empty
    one. size: the bytes of the samples are asked for.
    """

    epoch: int
    indexes: Sequence[int]
    names: bool = False
    costs: bool = False
    labels: bool = False
    spare: bool = False
    size: bool = False

    def packed(self) -> list[int]:
        """Return the task as whole numbers."""
        asked = self.names | self.costs << 1 | self.labels << 2 | self.spare << 3 | self.size << 4
        return [LOAD, self.epoch, asked, *self.indexes]


class Measure(NamedTuple):
    """Samples to measure, of an epoch; again: some of them a second time, as of the next epoch."""

    epoch: int
    indexes: Sequence[int]
    again: bool = False

    def packed(self) -> list[int]:
        """Return the task as whole numbers."""
        return [MEASURE, self.epoch, int(self.again), *self.indexes]


class LoadedBatch(NamedTuple):
    """A microbatch that was loaded, and what was asked about it.

    batch: None where a sample ends the run. failed: the places of samples in the task that could
    not be used, and why. labels: label tokens sample by sample, as they are counted at their token
    and at the token before; None where no sample has labels. label_tokens: those of the batch.
    nbytes: of the samples.
    """

    batch: Any
    names: tuple[str, ...] = ()
    failed: tuple[tuple[int, FailedSample], ...] = ()
    costs: tuple[tuple[int, ...], ...] = ()
    labels: tuple[int, int] | None = None
    label_tokens: int | None = None
    nbytes: int | None = None


class Measured(NamedTuple):
    """What samples cost, in the order of the task; differs: whether another epoch's do."""

    costs: tuple[tuple[int, ...] | FailedSample, ...]
    seconds: float
    differs: bool = False


class Tasks(Protocol):
    """Where tasks are done."""

    @property
    def most(self) -> int:
        """How many may be under way."""

    @property
    def most_held(self) -> int:
        """How many microbatches may be under way or made, before they are handed out."""

    def held_bytes(self, waiting: int, mean_bytes: int) -> int:
        """Return the bytes that are kept of what was made: `waiting` batches of `mean_bytes`."""

    def free(self, batch: Any) -> None:
        """Take note that a batch that was made is not wanted."""

    def submit(self, number: int, task: list[int]) -> None:
        """Give a task to a worker."""

    def receive(self, seconds: float = 0.0, also: int | None = None) -> tuple[int, Any] | None:
        """Return the number of a task and its result, None if none comes within `seconds`."""

    def describe_worker(self, number: int) -> str:
        """Return who works on a task, and on which sample, as text."""


class Failed:
    """What a task raised, in place of a result."""

    def __init__(self, error: Exception | None, wrapper: Any = None) -> None:
        self._error, self._wrapper = error, wrapper

    def reraise(self) -> NoReturn:
        """Raise it; what a worker raised has the worker's traceback in its text."""
        if self._error is None:
            self._wrapper.reraise()
        raise self._error or RuntimeError("a worker's error was not raised")


@dataclass(frozen=True, slots=True)
class Killed:
    """In place of a result: so many workers have died of the task's sample at this index."""

    index: int
    deaths: int


class OwnTasks:
    """What is made here is held by the run, and goes with it."""

    def held_bytes(self, waiting: int, mean_bytes: int) -> int:
        """Return the bytes of what was made and is held."""
        return waiting * mean_bytes

    def free(self, batch: Any) -> None:
        """Do nothing: no other process keeps a batch."""


class InlineTasks(OwnTasks):
    """Does tasks in this process, one when a result is asked for."""

    # Tasks that may be under way: nothing is done ahead of need.
    most = most_held = 1

    def __init__(self, reader: Any) -> None:
        """`reader` does them, as that of torch's worker does: see workers/planned/reader.py."""
        self._reader = reader
        self._waiting: deque[tuple[int, list[int]]] = deque()
        reader.restore()

    def submit(self, number: int, task: list[int]) -> None:
        """Take a task."""
        self._waiting.append((number, task))

    def receive(self, seconds: float = 0.0, also: int | None = None) -> tuple[int, Any] | None:  # noqa: ARG002
        """Do the first task, and return its number and result; None if there is none.

        With `seconds` 0 nothing is done: results are asked for, too, where no loop waits.
        """
        if not seconds or not self._waiting:
            return None
        number, task = self._waiting.popleft()
        try:
            return number, self._reader.collate(self._reader.__getitems__(task))
        except Exception as error:
            return number, Failed(error)

    def describe_worker(self, number: int) -> str:  # noqa: ARG002
        """Return who works on a task."""
        return "this process"

    def close(self) -> None:
        """Forget what waits."""
        self._waiting.clear()


class RunStart(NamedTuple):
    """The beginning of a run.

    costs, samples: as in the message StartRun. stream: of a loop over a stream, where this rank's
    begins; None: with its next epoch.
    """

    epoch: int
    at: EpochPosition
    holes: tuple[int, ...] = ()
    served: int = 0
    costs: str = ""
    samples: int = -1
    stream: Any = None


class MicrobatchFacts(ArrayRecord, frozen=True):
    """The facts about a microbatch beside its batch."""

    rank: Count
    step: Count
    microbatch: Count
    microbatches: Count
    weights: Weights
    costs: tuple[Integer, ...]
    padding: tuple[Integer, ...]
    after: EpochPosition
    keys: tuple[str, ...]
    holes: tuple[Hole, ...]
    step_holes: tuple[Integer, ...]


@dataclass(slots=True)
class LocalArrival:
    """A microbatch that a worker has made; loaded: None where it was handed over already.

    resources: what its costs are of, None where they are the job's. stream: of a loop over a
    stream, where this rank's is after the microbatch's step.
    """

    batch: MicrobatchFacts
    loaded: LoadedBatch | None = None
    resources: tuple[str, ...] | None = field(default=None, kw_only=True)
    stream: Any = field(default=None, kw_only=True)

    def unpack(self) -> LoadedBatch:
        """Return what was made."""
        return self.loaded or LoadedBatch(None)


class RunError(Exception):
    """A run cannot go on: broken data, an impossible plan, ranks that disagree.

    raised: the error of the user's code that ends the run.
    """

    def __init__(self, text: str, raised: Exception | None = None) -> None:
        super().__init__(text)
        self.raised = raised

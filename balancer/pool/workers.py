"""Tasks, their parts and workers as the pool sees them: who has to do and who keeps what."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..run.tasks import LOAD, TASK_HEAD
from .messages import TELL_S
from .tickets import KeptPiece, Ticket

# So many parts in a row have to take a worker longer than usual before it is taken to be slow:
# samples differ by more than workers do.
SLOW_PARTS = 3
# A worker has work for about AHEAD_S, so that none waits for the network.
AHEAD_S, LEAST_AHEAD, MOST_AHEAD = 0.1, 2, 16
# What it has made and not told is work of at most so many times TELL_S, as that is expected.
MOST_UNTOLD = 4
# Of what a task asks for (Load.packed), the bit that says that it is for a spare sample.
_SPARE = 1 << 3


@dataclass(slots=True, eq=False)
class PoolTask:
    """A task of the run, until its result is told, and its ticket is freed.

    indexes: where in the source its samples are.
    ticket: where workers keep the microbatch, once its result is told.
    awaited: parts that are to be made.
    """

    number: int
    words: Sequence[int]
    indexes: Sequence[int]
    parts: "list[PoolPart]" = field(default_factory=list)
    awaited: int = 0
    ticket: Ticket | None = None
    is_over: bool = False

    @property
    def is_load(self) -> bool:
        """Whether it is a microbatch to load."""
        return self.words[0] == LOAD

    @property
    def is_spare(self) -> bool:
        """Whether the first of its samples that can be loaded is the batch."""
        return self.is_load and self.words[2] & _SPARE != 0


@dataclass(slots=True, eq=False)
class PoolPart:
    """What one worker makes of a task: some of its samples, by their places there.

    numbers: under which each worker has it. answer: what came of it. failed: the places that failed
    when it was made first. is_alone: a worker may die of it, which has nothing else meanwhile.
    keeper: the worker that has its samples loaded. kept_number: of what is kept.
    """

    task: PoolTask
    form: str
    places: Sequence[int]
    numbers: "dict[PoolWorker, int]" = field(default_factory=dict)
    answer: Any = None
    piece: KeptPiece | None = None
    failed: tuple[int, ...] | None = None
    is_alone: bool = False
    is_over: bool = False
    keeper: "PoolWorker | None" = None
    kept_number: int = 0

    @property
    def indexes(self) -> list[int]:
        """Where in the source its samples are."""
        indexes = self.task.indexes
        return [indexes[place] for place in self.places]

    @property
    def waits(self) -> bool:
        """Return whether a worker is to be given it."""
        return not (self.is_over or self.numbers or self.answer is not None)

    def words(self) -> tuple[int, ...]:
        """Return the task that a worker is given for it."""
        return (*self.task.words[:TASK_HEAD], *self.indexes)


@dataclass(slots=True, eq=False)
class Giving:
    """A part that a worker has: since when, what it is expected to take, and beats without it."""

    part: PoolPart
    since: float
    work_s: float
    beats: int = 0


@dataclass(slots=True, eq=False)
class PoolWorker:
    """A worker of the pool.

    heard: when it last said anything. most_bytes: that it may keep. givings: by number, in the
    order in which it does them. kept_parts: of which it keeps something, by number. freeing:
    serials to be freed at it.
    work_s: what all that it has takes a worker of the usual speed; pace: how much longer it takes
    this one at least, as its last parts (paces) show. idle_since: it has nothing since then. at,
    at_since: the part and sample that its beats name, and since when. key: its entry among those
    that have room.
    """

    name: bytes
    heard: float
    most_bytes: int
    kept_bytes: int = 0
    givings: dict[int, Giving] = field(default_factory=dict)
    kept_parts: dict[int, PoolPart] = field(default_factory=dict)
    freeing: list[int] = field(default_factory=list)
    dropping: list[int] = field(default_factory=list)
    work_s: float = 0.0
    pace: float = 1.0
    paces: deque[float] = field(default_factory=lambda: deque([1.0], maxlen=SLOW_PARTS))
    idle_since: float = 0.0
    is_leaving: bool = False
    at: tuple[int, int] = (0, -1)
    at_since: float = 0.0
    key: int = -1

    @property
    def has_room(self) -> bool:
        """Whether it may be given one more part."""
        if self.is_leaving or any(giving.part.is_alone for giving in self.givings.values()):
            return False
        is_short = len(self.givings) < MOST_AHEAD and self.work_s * self.pace < AHEAD_S
        return is_short or len(self.givings) < LEAST_AHEAD

    def take_giving(self, number: int, now: float) -> "Giving | None":
        """Return what it has under a number, which it has no more."""
        giving = self.givings.pop(number, None)
        if giving is not None:
            giving.part.numbers.pop(self, None)
            self.work_s = self.work_s - giving.work_s if self.givings else 0.0
            self.idle_since = now
        return giving

    def note_pace(self, pace: float) -> None:
        """Note how much longer than usual it took for a part, or has taken so far."""
        self.paces.append(pace)
        self.pace = max(1.0, min(self.paces))

    def suspects(self) -> list[PoolPart]:
        """Return the parts that it may work on, as far as is known.

        That is what its beat names, or the first that it has, and those after it that it has begun
        if it has made what it has not told yet.
        """
        if self.at[0] in self.givings:
            return [self.givings[self.at[0]].part]
        suspects, before_s = list[PoolPart](), 0.0
        for giving in self.givings.values():
            if suspects and before_s > MOST_UNTOLD * TELL_S:
                break
            suspects.append(giving.part)
            before_s += giving.work_s * self.pace
        return suspects

    def weigh_death(self, suspects: Sequence[PoolPart], now: float, dead_s: float) -> float:
        """Return how sure it is that it has died of one of these parts: 0.5 or 1.

        One that says nothing for `dead_s`, and has said nothing since it was given them, may have
        been dead before.
        """
        since = min((g.since for g in self.givings.values() if g.part in suspects), default=now)
        return 0.5 if now > self.heard + dead_s and self.heard < since else 1.0

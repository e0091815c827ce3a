"""The steps of a loop over streams: each rank's packs, and what ranks agree on for each step.

A rank takes a step's packs from its workers, says through the store of the process group what they
hold, and waits until all ranks have: so each knows the step's samples and label tokens before it
hands out the first microbatch, and all end at the same step. Who has fewer packs than a step has
microbatches gets some that weigh nothing. No collective is entered.
"""

import copy
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ...balancer.protocol.job_spec import JobSpec, to_json
from ...balancer.protocol.parts import EpochPosition, Hole, Ready, Weights
from ...workers.batches.planned_reader import Made
from ..balanced.arrivals import LocalArrival, MicrobatchFacts
from ..local.starts import LOST_S, MEET_S, pack_start, why_apart
from ..resume.balanced_position import ResumePosition, RunStart
from ..step.errors import LoaderError
from ..step.ranks import Place, has_process_group
from ..step.waiting import WaitLog
from .pack_loader import PackLoader, StreamPlace
from .reader import Pack

if TYPE_CHECKING:
    from ..peers.exchange import Peers

logger = logging.getLogger(__name__)
HOW_TO_SHARD = (
    "give each rank, and each worker, a part of its own: "
    "datasets.distributed.split_dataset_by_node(data, rank, world_size) for Hugging Face's, "
    "nodesplitter=wds.split_by_node for webdataset, every n-th sample in an __iter__ of your own"
)


class StreamStart(NamedTuple):
    """The beginning of a run: a RunStart, and the place in this rank's stream; None: its start."""

    epoch: int
    at: EpochPosition
    holes: tuple[int, ...] = ()
    place: StreamPlace | None = None
    costs: str = ""


@dataclass(frozen=True, slots=True)
class StreamPosition(ResumePosition):
    """A place in the epoch, where each rank has a stream of its own.

    stream: where it was before the place's step; None at the beginning of an epoch.
    """

    stream: StreamPlace | None = None

    def start(self, epoch: int, costs: str, samples: int = -1) -> Any:  # noqa: ARG002
        """Return the beginning of a run here."""
        return StreamStart(epoch, self.place, self.holes, self.stream)

    def after(self, batch: Any, holes: tuple[int, ...], ranks: tuple[int, ...]) -> Any:  # noqa: ARG002
        """Return the position after a microbatch."""
        before, following = batch.after
        if batch.microbatch + 1 == batch.microbatches:
            return StreamPosition(at_step(batch.step + 1), 0, holes, following)
        return StreamPosition(at_step(batch.step, batch.microbatch + 1), 0, holes, before)


def at_step(step: int, microbatch: int = 0) -> EpochPosition:
    """Return the position of a microbatch: nothing was planned ahead."""
    return EpochPosition(0, step, step, microbatch, "")


STREAM_START = StreamPosition(at_step(0))


class Share(NamedTuple):
    """What a rank has of a step; holes: samples left out; marks: of first samples of its stream."""

    packs: int
    samples: int
    label_tokens: int
    holes: int
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What a loop over streams is made of. packs: gives this rank's packs; accumulate: of a step.

    collate: makes a batch of no samples, None where it cannot. drop_last: a step that not all ranks
    can fill is not handed out. name: the loader's, for other ranks; timeout_s: how long those may
    take.
    """

    job: JobSpec
    packs: PackLoader
    place: Place
    collate: Callable[[list[Any]], Any] | None
    drop_last: bool
    name: str = ""
    timeout_s: float | None = None

    @property
    def accumulate(self) -> int:
        """The microbatches that each rank has in a step."""
        return int(self.job.plan.accumulate)


class StreamLoop:
    """Gives this rank's microbatches in order: see MicrobatchSource.

    An exception may leave `next` at any moment. Where that was in the middle of taking a pack, the
    run goes on from the place before the step, which has the same packs again.
    """

    left_out = 0

    def __init__(self, settings: LoopSettings) -> None:
        """Take the settings; nothing is started, and nobody met, before the first run."""
        self._settings = settings
        self._peers: Peers | None = None
        self._iterator: Any = None
        self._runs, self._owner = 0, os.getpid()
        self._start = StreamStart(0, at_step(0))
        # This rank's values under keys of the run, and those of all ranks: said and heard once.
        self._said: set[str] = set()
        self._heard: dict[str, tuple[bytes, ...]] = {}
        self._is_torn = self._has_all = self._is_over = self._is_first = True
        self._spare: Any = None
        self._clear(StreamPlace(), 0)

    def _clear(self, place: StreamPlace, step: int) -> None:
        """Begin a step at a place, of which nothing is there yet."""
        self._place, self._step = place, step
        self._packs: list[Pack] = []
        self._late_holes: list[Any] = []
        self._ready: deque[LocalArrival] = deque()

    def wait_ready(self, timeout_s: float | None = None) -> Ready:  # noqa: ARG002
        """Refuse: nobody knows the number of samples."""
        raise TypeError("of a stream the number of samples is not known")

    def begin(self, start: RunStart | StreamStart) -> None:
        """Start the next run, and its workers."""
        assert isinstance(start, StreamStart)
        self._is_torn = True
        self._end_run()
        if self._peers is None and not self._settings.place.is_alone:
            self._peers = self._meet()
        self._runs, self._said, self._heard = self._runs + 1, set(), {}
        self._say("start", pack_start(RunStart(start.epoch, start.at)))
        self._begin_packs(start)
        self._is_torn = False

    def go_on(self, start: RunStart, /) -> None:
        """Start the next run: only loops whose order a pipeline decides do so."""
        self.begin(start)

    def recover(self, start: RunStart | StreamStart) -> None:
        """Begin again at a position if an exception has left something half done."""
        assert isinstance(start, StreamStart)
        if self._owner != os.getpid():
            raise LoaderError(
                f"this loader's workers belong to process {self._owner}, and a forked child cannot "
                "use them: make a new DataLoader in the child"
            )
        if not self._is_torn:
            return
        if not self._runs:
            self.begin(start)
            return
        # What was agreed with other ranks stays: the same packs come again.
        self._begin_packs(start)
        self._is_torn = False

    def _begin_packs(self, start: StreamStart) -> None:
        packs, place = self._settings.packs, start.place
        self._iterator = None
        self._iterator, self._owner = packs.begin(place), os.getpid()
        self._has_all = self._is_over = False
        self._start, self._is_first = start, True
        self._clear(packs.place(0 if place is None else place.left_out), start.at.step)

    @property
    def place(self) -> StreamPlace:
        """The place before the step that comes next, or is being handed out."""
        return self._place

    def next(self, timeout_s: float | None = None) -> LocalArrival | None:
        """Return the next microbatch, the same until it is released; None at the end of the run.

        Raises what a worker and torch's iterator raise, LoaderError when the run cannot go on, and
        TimeoutError after `timeout_s`.
        """
        while not self._ready and not self._is_over:
            self._take_packs()
            shares = self._agree(timeout_s)
            self._make_step(shares)
            # Of a step that was begun the first microbatches have been handed out.
            if self._step == self._start.at.step:
                for _ in range(min(self._start.at.microbatch, len(self._ready))):
                    self._ready.popleft()
        return self._ready[0] if self._ready else None

    def release(self, arrival: Any) -> None:
        """Go on to the microbatches after this one; does nothing the second time."""
        facts = arrival.batch
        head = self._ready[0].batch if self._ready and not self._is_torn else None
        if head is None or (head.step, head.microbatch) != (facts.step, facts.microbatch):
            return
        self._is_first = False
        if len(self._ready) > 1:
            self._ready.popleft()
            return
        key = f"step/{self._step}"
        self._heard.pop(key, None)
        self._said.discard(key)
        self._clear(facts.after[1], self._step + 1)

    def add_up_labels(
        self, step: int, tokens: Mapping[int, int], timeout_s: float | None = None, /
    ) -> int:
        """Refuse: a step's label tokens come with its first microbatch."""
        raise NotImplementedError

    def finish(self) -> None:
        """End the run's workers, unless they are persistent."""
        if self._owner == os.getpid():
            self._end_run()

    def close(self) -> None:
        """End all processes."""
        self._end_run()
        self._settings.packs.end()
        if self._peers is not None:
            self._peers.close()
            self._peers = None

    def _end_run(self) -> None:
        if self._peers is not None and self._runs:
            self._peers.end(str(self._runs))
        if self._iterator is not None and not self._has_all:
            self._settings.packs.leave()
        self._iterator = self._spare = None
        self._clear(StreamPlace(), 0)
        self._is_over, self._is_torn = True, True

    # --- a step

    def _take_packs(self) -> None:
        """Take this rank's packs of the step from its workers."""
        self._is_torn = True
        while len(self._packs) < self._settings.accumulate and not self._has_all:
            pack: Pack | None = next(self._iterator, None)
            if pack is None:
                self._has_all = True
            elif pack.is_end:
                self._late_holes += pack.holes
                self._spare = self._spare if pack.batch is None else pack.batch
            else:
                self._packs.append(pack)
        self._is_torn = False

    def _agree(self, timeout_s: float | None) -> list[Share]:
        """Return what all ranks have of the step."""
        holes = sum(len(each.holes) for each in self._packs) + len(self._late_holes)
        mine = Share(
            len(self._packs),
            sum(len(each.keys) for each in self._packs),
            sum(each.label_tokens for each in self._packs),
            holes,
            tuple(each.mark for each in self._packs if each.mark),
        )
        if self._peers is None:
            _tell_same([mine])
            return [mine]
        key = f"step/{self._step}"
        self._say(key, json.dumps(mine).encode())
        if self._is_first and (why := why_apart(self._hear("start", timeout_s))):
            raise LoaderError(why)
        shares = [Share(*json.loads(each)) for each in self._hear(key, timeout_s)]
        if self._is_first:
            _tell_same(shares)
        return shares

    def _make_step(self, shares: list[Share]) -> None:
        """Make a step's microbatches ready; the run is over where there is nothing of it."""
        accumulate, settings = self._settings.accumulate, self._settings
        n_holes, n_packs = sum(each.holes for each in shares), sum(each.packs for each in shares)
        is_short = settings.drop_last and min(each.packs for each in shares) < accumulate
        if is_short or not (n_packs or n_holes):
            self._is_over = True
            if is_short and n_packs and 0 in settings.place.played:
                logger.info(
                    "drop_last: a step for which %d of %d ranks have no packs left ends the epoch",
                    sum(each.packs < accumulate for each in shares), len(shares),
                )  # fmt: skip
            return
        before = self._place
        following = settings.packs.place(before.left_out + n_holes)
        mine = shares[settings.place.played[0] if self._peers is not None else 0]
        whole = sum(each.samples for each in shares), sum(each.label_tokens for each in shares)
        step_holes = tuple(range(before.left_out, before.left_out + n_holes))
        holes = [[*each.holes] for each in self._packs]
        holes += [[] for _ in range(accumulate - len(holes))]
        holes[-1] += self._late_holes
        ready: deque[LocalArrival] = deque()
        for number in range(accumulate):
            pack = self._packs[number] if number < len(self._packs) else self._weightless(n_packs)
            keys = () if pack.is_end else tuple(pack.keys)
            tokens = 0 if pack.is_end else pack.label_tokens
            facts = MicrobatchFacts(
                rank=settings.place.played[0],
                step=self._step,
                microbatch=number,
                microbatches=accumulate,
                weights=Weights(len(keys), tokens, mine.samples, mine.label_tokens, *whole),
                costs=(),
                after=(before, following),  # type: ignore[arg-type]
                keys=keys,
                holes=tuple(Hole(0, each.key, each.reason, each.source) for each in holes[number]),
                step_holes=step_holes,
            )
            ready.append(LocalArrival(facts, Made(pack)))
        self._ready = ready

    def _weightless(self, n_packs: int) -> Pack:
        """Return a microbatch without samples; LoaderError where none can be made."""
        if self._settings.collate is not None:
            batch = self._settings.collate([])
        elif self._spare is not None:
            batch = copy.deepcopy(self._spare)  # the caller may change what it gets
        elif not n_packs:
            batch = None  # nothing of the step is handed out
        else:
            raise LoaderError(
                f"rank {self._settings.place.played[0]} has no sample in its stream, others have, "
                "and collate_fn cannot make a batch of no samples: give each rank samples, a "
                "layout, or a collate_fn that takes []"
            )
        return Pack(batch, (), {}, 0, (), is_end=True)

    # --- other ranks

    def _meet(self) -> "Peers":
        if not has_process_group():
            raise ValueError(
                "several ranks without torch.distributed cannot find each other, to end their "
                "streams together: call init_process_group()"
            )
        from ..peers.joining import meet  # here: a loop on its own meets nobody

        own = self._settings
        facts = {"configuration": to_json(own.job)}
        return meet(own.place, own.name, facts, own.timeout_s or MEET_S)

    def _say(self, key: str, value: bytes) -> None:
        if self._peers is not None and key not in self._said:
            self._said.add(key)
            self._peers.post(f"{self._runs}/{key}", value)

    def _hear(self, key: str, timeout_s: float | None) -> tuple[bytes, ...]:
        """Return all ranks' values, once all have said theirs; LoaderError if that will not be."""
        peers, name = self._peers, f"{self._runs}/{key}"
        assert peers is not None
        since, log, limit_s = time.monotonic(), WaitLog(self._is_first), timeout_s or MEET_S
        while key not in self._heard:
            if (found := peers.gather(name)) is not None:
                self._heard[key] = found
                break
            waited = time.monotonic() - since
            if waited > limit_s:
                raise TimeoutError(
                    f"no batch within {limit_s:g} s: waits for what other ranks say of step "
                    f"{self._step}: {peers.why_missing(name)}"
                )
            if waited > LOST_S and (why := peers.why_lost(name)):
                raise LoaderError(f"other ranks will say nothing more: {why}")
            if log.is_due(waited):
                logger.warning(
                    "rank %d has waited %.0f s for %s; still missing: what other ranks say of step "
                    "%d: %s", self._settings.place.played[0], waited, log.what, self._step,
                    peers.why_missing(name),
                )  # fmt: skip
            time.sleep(peers.pause_s())
        return self._heard[key]


def _tell_same(shares: list[Share]) -> None:
    """Log that ranks, or workers, read the same data, where their streams begin alike."""
    marks = [mark for share in shares for mark in share.marks]
    if len({*marks}) == len(marks):
        return
    ranks = [rank for rank, share in enumerate(shares) if marks.count(share.marks[0]) > 1] if (
        all(share.marks for share in shares)
    ) else []
    who = f"ranks {', '.join(map(str, ranks))}" if len(ranks) > 1 else "workers of a rank"
    logger.warning(
        "the streams of %s begin with the same sample: if they read the same data, each sample is "
        "trained on several times; %s", who, HOW_TO_SHARD,
    )  # fmt: skip

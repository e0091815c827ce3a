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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ...balancer.protocol.job_spec import to_json
from ...balancer.protocol.parts import EpochPosition, Hole, Weights
from ...balancer.run.run import describe_start_mismatch, pack_start
from ...balancer.run.tasks import LoadedBatch, LocalArrival, MicrobatchFacts, RunStart
from ..balanced.settings import LoopSettings
from ..balanced.source import BatchWait, MicrobatchSource, refuse_forked_copy
from ..local.starts import LOST_S, MEET_S
from ..step.errors import LoaderError
from ..step.ranks import has_process_group
from .pack_loader import PackLoader, StreamPlace
from .reader import Pack

if TYPE_CHECKING:
    from ..peers.exchange import Peers

logger = logging.getLogger(__name__)


class Share(NamedTuple):
    """What a rank has of a step.

    holes: samples left out. can_fill: it has, if need be, what a microbatch is made of that weighs
    nothing. marks: of the first samples of its readers, where their first packs are in this step.
    """

    packs: int
    samples: int
    label_tokens: int
    holes: int
    can_fill: bool
    marks: tuple[str, ...]


class StreamLoop(MicrobatchSource):
    """Gives this rank's microbatches in order.

    An exception may leave `next` at any moment. Where that was in the middle of taking a pack, the
    run goes on from the place before the step, where the same packs come again.
    """

    def __init__(self, settings: LoopSettings, packs: PackLoader) -> None:
        """Start nothing, and meet no rank, before the first run. packs: gives this rank's packs."""
        local, job = settings.local, settings.job
        self._job, self._packs, self._name = job, packs, local.arguments.ranks.name
        # Makes a batch of no samples.
        self._collate = local.batches.in_worker if local.takes_empty else None
        self._seat, self._timeout_s = settings.place, local.timeout_s
        self._accumulate = int(job.plan.accumulate)
        self._peers: Peers | None = None
        self._iterator: Any = None
        self._runs, self._owner = 0, os.getpid()
        # The step that the run has begun in, and how many of its microbatches were handed out.
        self._began = 0, 0
        # This rank's values under keys of the run, and those of all ranks: said and heard once.
        self._posted: set[str] = set()
        self._heard: dict[str, tuple[bytes, ...]] = {}
        self._is_torn = self._has_all = self._is_over = self._is_first = True
        # A batch of one sample that was in a pack before, from the end of a reader.
        self._spare: Any = None
        self._clear(StreamPlace(), 0)

    def _clear(self, place: StreamPlace, step: int) -> None:
        """Begin a step at a place, of which nothing is there yet."""
        # `_place`: before the step that comes next, or is being handed out.
        self._place, self._step = place, step
        self._taken: list[Pack] = []
        self._late_holes: list[Any] = []
        self._ready: deque[LocalArrival] = deque()

    def begin(self, start: RunStart) -> StreamPlace:
        """Start the next run, and its workers; return where the stream is."""
        self._end_run()
        if self._peers is None and not self._seat.is_alone:
            self._peers = self._meet()
        self._runs, self._posted, self._heard = self._runs + 1, set(), {}
        self._say("start", pack_start(start))
        self._begin_packs(start)
        return self._place

    def recover(self, start: Callable[[], RunStart]) -> None:
        """Begin again at a position if an exception has left something half done.

        What was agreed with other ranks stays.
        """
        refuse_forked_copy(self._owner)
        if not self._runs:
            self.begin(start())
        elif self._is_torn:
            here = start()
            self._packs.check_way_back(here.stream)
            self._begin_packs(here)

    def _begin_packs(self, start: RunStart) -> None:
        place, self._iterator = start.stream, None
        self._iterator, self._owner = self._packs.begin(place), os.getpid()
        self._has_all = self._is_over = False
        self._began, self._is_first = (start.at.step, start.at.microbatch), True
        self._clear(self._packs.place(0 if place is None else place.left_out), start.at.step)
        self._is_torn = False

    def next(self, timeout_s: float | None = None) -> LocalArrival | None:
        """Return the next microbatch; see MicrobatchSource."""
        while not self._ready and not self._is_over:
            self._take_packs()
            ready = self._make_arrivals(self._agree(timeout_s))
            begun, handed_out = self._began
            self._ready = deque(ready[handed_out if self._step == begun else 0 :])
            self._is_over = not ready
        return self._ready[0] if self._ready else None

    def release(self, arrival: LocalArrival) -> None:
        """Go on to the microbatches after this one; does nothing the second time."""
        facts = arrival.batch
        head = self._ready[0].batch if self._ready and not self._is_torn else None
        if head is None or (head.step, head.microbatch) != (facts.step, facts.microbatch):
            return
        self._is_first = False
        if len(self._ready) > 1:
            self._ready.popleft()
            return
        # By the microbatch's own step: what an exception leaves in its middle is called again.
        key = f"step/{facts.step}"
        self._heard.pop(key, None)
        self._posted.discard(key)
        self._clear(arrival.stream, facts.step + 1)

    def finish(self) -> None:
        """End the run's workers, unless they are persistent."""
        if self._owner == os.getpid():
            self._end_run()

    def close(self) -> None:
        """End all processes."""
        self._end_run()
        self._packs.end()
        if self._peers is not None:
            self._peers.close()
            self._peers = None

    def _end_run(self) -> None:
        if self._peers is not None and self._runs:
            self._peers.end(str(self._runs))
        if self._iterator is not None and not self._has_all:
            self._packs.leave()
        self._iterator = self._spare = None
        self._clear(StreamPlace(), 0)
        self._is_over = self._is_torn = True

    # --- a step

    def _take_packs(self) -> None:
        """Take this rank's packs of the step from its workers."""
        self._is_torn = True
        while len(self._taken) < self._accumulate and not self._has_all:
            pack: Pack | None = next(self._iterator, None)
            if pack is None:
                self._has_all = True
            elif pack.error is not None:
                self._is_torn = False
                raise pack.error if isinstance(pack.error, Exception) else pack.error.reraise()
            elif pack.is_end:
                self._late_holes += pack.holes
                self._spare = self._spare if pack.batch is None else pack.batch
            else:
                self._taken.append(pack)
        self._is_torn = False

    def _agree(self, timeout_s: float | None) -> list[Share]:
        """Return what all ranks have of the step."""
        packs = self._taken
        is_whole, has_filling = len(packs) == self._accumulate, self._collate or self._spare
        mine = Share(
            len(packs), sum(len(pack.keys) for pack in packs),
            sum(pack.label_tokens for pack in packs),
            sum(len(pack.holes) for pack in packs) + len(self._late_holes),
            is_whole or has_filling is not None, tuple(pack.mark for pack in packs if pack.mark),
        )  # fmt: skip
        key, shares = f"step/{self._step}", [mine]
        if self._peers is not None:
            self._say(key, json.dumps(mine).encode())
            if self._is_first and (why := describe_start_mismatch(self._hear("start", timeout_s))):
                raise LoaderError(why)
            shares = [Share(*json.loads(text)) for text in self._hear(key, timeout_s)]
        if self._is_first:  # only the first packs have marks
            _tell_same_data(shares)
        return shares

    def _make_arrivals(self, shares: list[Share]) -> list[LocalArrival]:
        """Return the step's microbatches of this rank; none where the run is over."""
        n_holes, n_packs = sum(s.holes for s in shares), sum(s.packs for s in shares)
        is_short = min(share.packs for share in shares) < self._accumulate
        if not (n_packs or n_holes) or (is_short and self._job.plan.drop_last):
            return []
        starved = [str(rank) for rank, share in enumerate(shares) if not share.can_fill]
        if n_packs and starved:
            raise LoaderError(
                f"rank {', '.join(starved)} has no sample in its stream, others have, and "
                "collate_fn cannot make a batch of no samples: give each rank samples, a layout, "
                "or a collate_fn that takes []"
            )
        begin, (rank,) = self._place.left_out, self._seat.played
        after, following = self._step + 1, self._packs.place(begin + n_holes)
        mine = shares[rank if len(shares) > 1 else 0]
        whole = sum(s.samples for s in shares), sum(s.label_tokens for s in shares)
        packs = [*self._taken]
        # All ranks have the same number of microbatches, and the last takes holes without a pack.
        packs += [self._weightless() for _ in range(self._accumulate - len(packs))]
        packs[-1] = packs[-1]._replace(holes=(*packs[-1].holes, *self._late_holes))
        ready = []
        for number, pack in enumerate(packs):
            weights = len(pack.keys), pack.label_tokens, mine.samples, mine.label_tokens, *whole
            resources = tuple(pack.costs)
            facts = MicrobatchFacts(
                rank=rank, step=self._step, microbatch=number, microbatches=self._accumulate,
                weights=Weights(*weights), costs=tuple(pack.costs.values()),
                padding=tuple(pack.padding.get(name, 0) for name in resources),
                after=EpochPosition(0, after, after, 0, ""), keys=tuple(pack.keys),
                holes=tuple(Hole(0, hole.key, hole.reason, hole.source) for hole in pack.holes),
                step_holes=tuple(range(begin, begin + n_holes)),
            )  # fmt: skip
            loaded = LoadedBatch(pack.batch)
            ready.append(LocalArrival(facts, loaded, resources=resources or None, stream=following))
        return ready

    def _weightless(self) -> Pack:
        """Return a microbatch without samples; the caller may change what it gets."""
        batch = self._collate([]) if self._collate is not None else copy.deepcopy(self._spare)
        return Pack(batch, (), {}, {}, 0, ())

    # --- other ranks

    def _meet(self) -> "Peers":
        if not has_process_group():
            raise ValueError(
                "several ranks without torch.distributed cannot find each other, to end their "
                "streams together: call init_process_group()"
            )
        from ..peers.joining import meet  # here: a loop on its own needs it not

        facts = {"configuration": to_json(self._job)}
        return meet(self._seat, self._name, facts, self._timeout_s or MEET_S)

    def _say(self, key: str, value: bytes) -> None:
        if self._peers is not None and key not in self._posted:
            self._posted.add(key)
            self._peers.post(f"{self._runs}/{key}", value)

    def _hear(self, key: str, timeout_s: float | None) -> tuple[bytes, ...]:
        """Return all ranks' values, once all have said theirs; LoaderError if that will not be."""
        peers, name = self._peers, f"{self._runs}/{key}"
        log = BatchWait(self._is_first, f"rank {self._seat.played[0]}")
        since, limit_s = time.monotonic(), timeout_s or MEET_S
        of = f"what other ranks say of step {self._step}"
        while peers is not None and key not in self._heard:
            if (values := peers.gather(name)) is not None:
                self._heard[key] = values
                break
            waited = time.monotonic() - since
            if waited > LOST_S and (why := peers.explain_loss(name)):
                raise LoaderError(f"other ranks will say nothing more: {why}")
            log.check(waited, limit_s, f"{of}: {peers.describe_missing(name)}")
            time.sleep(peers.pause_s())
        return self._heard[key]


def _tell_same_data(shares: list[Share]) -> None:
    """Log that ranks, or workers, read the same data, where their streams begin alike."""
    marks = [mark for share in shares for mark in share.marks]
    if len({*marks}) == len(marks):
        return
    is_in_one_rank = any(len({*share.marks}) < len(share.marks) for share in shares)
    logger.warning(
        "the streams of %s begin with the same sample: if they read the same data, each sample is "
        "trained on several times. Give each rank and worker a part of its own: "
        "datasets.distributed.split_dataset_by_node(data, rank, world_size) for Hugging Face's, "
        "nodesplitter=wds.split_by_node for webdataset, every n-th sample in an __iter__ of yours",
        "workers of a rank" if is_in_one_rank else "ranks",
    )

"""Loops over streams without processes: ranks are threads, and workers are iterators in turn."""

import itertools
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import IterableDataset

from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.planning.problem.shapes import Sizing
from counterpoise.balancer.protocol.job_spec import JobSpec
from counterpoise.balancer.run.tasks import LocalArrival, RunStart
from counterpoise.loader.balanced.settings import LoopSettings
from counterpoise.loader.resume.balanced_position import START
from counterpoise.loader.step.ranks import Place, Ranks
from counterpoise.loader.streams.loop import StreamLoop
from counterpoise.loader.streams.pack_loader import StreamPlace
from counterpoise.loader.streams.packing import Limits
from counterpoise.loader.streams.reader import PackedStream, PackSettings
from counterpoise.workers.collate.layouts import collate_packed
from counterpoise.workers.sources.interface import SampleError

BUDGET = 100


class Samples(IterableDataset[Any]):
    """Samples of given lengths, which know where they are; `broken` ones cannot be used."""

    def __init__(self, name: str, lengths: list[int], broken: frozenset[int] = frozenset()) -> None:
        self.name, self.lengths, self.broken = name, lengths, broken
        self.at = 0
        self.read: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        while self.at < len(self.lengths):
            number, self.at = self.at, self.at + 1
            self.read.append(number)
            ids = torch.full((self.lengths[number],), number)
            if number in self.broken:
                yield SampleError(f"{self.name}/{number}", "is broken")
            else:
                yield {"__key__": f"{self.name}/{number}", "input_ids": ids, "labels": ids}
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class SimulatedPacks:
    """Stands for a PackLoader: the packs of several workers, in torch's order of workers."""

    def __init__(self, workers: list[Samples], settings: PackSettings) -> None:
        self._streams = [PackedStream(each, settings) for each in workers]
        self._iterators: list[Any] = []
        self._states: list[Any] = []
        self._turn = 0

    def begin(self, place: StreamPlace | None) -> Iterator[Any]:
        for stream in self._streams:
            stream.dataset.at = 0
        self._iterators = [iter(stream) for stream in self._streams]
        self._turn = 0
        if place is not None:
            states: Any
            self._turn, states = place.iteration  # type: ignore[misc]
            for iterator, state in zip(self._iterators, states, strict=True):
                iterator.load_state_dict(state)
        self._states = [each.state_dict() for each in self._iterators]
        return self._packs()

    def _packs(self) -> Iterator[Any]:
        alive = {*range(len(self._streams))}
        while alive:
            worker, self._turn = self._turn % len(self._streams), self._turn + 1
            if worker not in alive:
                continue
            try:
                pack = next(self._iterators[worker])
            except StopIteration:
                alive.remove(worker)
                continue
            self._states[worker] = self._iterators[worker].state_dict()
            yield pack

    def place(self, left_out: int) -> StreamPlace:
        here: Any = self._turn, [*self._states]
        return StreamPlace(here, left_out=left_out)

    def end(self) -> None:
        self._iterators = []

    leave = end

    def check_way_back(self, _: Any) -> None:
        pass


@dataclass
class Board:
    """Where simulated ranks meet."""

    ranks: int
    values: dict[str, dict[int, bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class SimulatedPeers:
    """Stands for Peers: the part that a loop over streams uses."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank = board, rank

    def post(self, key: str, value: bytes) -> None:
        with self._board.lock:
            values = self._board.values.setdefault(key, {})
            assert self._rank not in values
            values[self._rank] = value

    def gather(self, key: str) -> tuple[bytes, ...] | None:
        found = self._board.values.get(key, {})
        ranks = range(self._board.ranks)
        return tuple(found[rank] for rank in ranks) if len(found) == len(ranks) else None

    def end(self, group: str) -> None:
        pass

    def describe_missing(self, key: str) -> str:
        return key

    def explain_loss(self, _: str) -> str:
        return ""

    def pause_s(self) -> float:
        return 0.0


@dataclass(frozen=True)
class Setting:
    """Random streams of some ranks and workers, and how they are packed."""

    number: int
    ranks: int
    workers: int
    accumulate: int = 1
    drop_last: bool = False
    takes_empty: bool = True
    on_error: str = "raise"

    def samples(self) -> list[list[Samples]]:
        """Return the part of each worker, of each rank; some are empty."""
        draw = random.Random(self.number)
        found = []
        for rank, worker in itertools.product(range(self.ranks), range(max(1, self.workers))):
            count = draw.choice((0, 1, 7, 30, 60))
            lengths = [min(BUDGET + 20, int(draw.lognormvariate(3, 0.8)) + 2) for _ in range(count)]
            broken = {n for n in range(count) if self.on_error == "skip" and draw.random() < 0.1}
            found.append(Samples(f"{rank}.{worker}", lengths, frozenset(broken)))
        size = max(1, self.workers)
        return [found[rank * size : (rank + 1) * size] for rank in range(self.ranks)]

    def loops(self, parts: list[list[Samples]]) -> list[StreamLoop]:
        """Return the loop of each rank."""
        settings = PackSettings(
            Limits((BUDGET,), (False,)), Sizing(), ("tokens",), None, collate_packed,
            self.takes_empty,
            on_error=self.on_error,  # type: ignore[arg-type]
        )  # fmt: skip
        plan = PlanConfig(
            self.ranks, self.ranks * self.accumulate, self.accumulate, ("tokens",), (BUDGET,),
            drop_last=self.drop_last,
        )  # fmt: skip
        local: Any = SimpleNamespace(
            arguments=SimpleNamespace(ranks=Ranks()),
            batches=SimpleNamespace(in_worker=collate_packed),
            takes_empty=self.takes_empty, timeout_s=None,
        )  # fmt: skip
        board, loops = Board(self.ranks), []
        for rank in range(self.ranks):
            packs: Any = SimulatedPacks(parts[rank], settings)
            place = Place((rank,), self.ranks)
            loop = StreamLoop(LoopSettings(JobSpec(plan=plan), local, place), packs)
            if self.ranks > 1:
                loop._peers = SimulatedPeers(board, rank)  # type: ignore[assignment]
            loops.append(loop)
        return loops


def run(loops: list[StreamLoop], starts: list[RunStart] | None = None) -> list[list[LocalArrival]]:
    """Return what came to each rank."""
    starts = starts or [START.start(0, "") for _ in loops]
    with ThreadPoolExecutor(len(loops)) as pool:
        return [*pool.map(_run, loops, starts)]


def _run(loop: StreamLoop, start: RunStart) -> list[LocalArrival]:
    loop.begin(start)
    found = []
    while (arrival := loop.next(30.0)) is not None:
        found.append(arrival)
        loop.release(arrival)
    loop.finish()
    return found

"""Costs that need no look at a sample: told when a source is open, or looked up by lease."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from counterpoise.balancer.protocol.messages import Welcome
from counterpoise.balancer.protocol.parts import SampleRef
from counterpoise.balancer.protocol.payload_messages import Lease, Revoke
from counterpoise.balancer.protocol.worker_session import WorkerSession
from counterpoise.loader import Balance, DataLoader
from counterpoise.workers.daemon.source_handler import SourceHandler
from counterpoise.workers.sources.interface import PlainSource, Probe

COUNT = 60


class Named:
    """Samples with names of their own."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return index

    def key(self, index: int) -> str:
        return f"n{index}"


class Probing(Named):
    """Samples that are measured one by one, as a table says."""

    key: Any = None

    def __init__(self, table: np.ndarray) -> None:
        self.table = table

    def probe(self, index: int) -> Probe:
        return Probe(str(index), {"tokens": int(self.table[index])})


class Longer(PlainSource):
    """A source that measures in its own way."""

    def probe(self, index: int) -> Probe:
        return Probe(self.key(index), {"samples": index})


def opened(source: PlainSource, *resources: str) -> SourceHandler:
    handler = SourceHandler(source, resources, seed=0, local=True)
    handler.open("")
    return handler


@pytest.mark.parametrize("seed", range(10))
def test_what_is_looked_up_is_what_probes_say(seed: int) -> None:
    draw = np.random.default_rng(seed)
    kinds = np.uint8, np.int32, np.int64
    table = {
        name: draw.integers(0, 200, COUNT).astype(kinds[(seed + column) % 3])
        for column, name in enumerate(("tiles", "tokens", "more"))
    }
    handler = opened(PlainSource([*range(COUNT)], cost=table), "tokens", "tiles")
    assert handler.looks_up
    places = draw.choice(COUNT, size=17, replace=False).tolist()
    refs = [SampleRef(100 + ordinal, index) for ordinal, index in enumerate(places)]
    assert handler.look_up(refs) == [handler.probe(ref, epoch=3) for ref in refs]


def test_what_all_samples_cost_is_looked_up_too() -> None:
    handler = opened(PlainSource([5] * COUNT), "samples")
    refs = [SampleRef(0, 3), SampleRef(1, 0)]
    assert handler.look_up(refs) == [handler.probe(ref, epoch=3) for ref in refs]


@pytest.mark.parametrize(
    ("make", "resources", "looks_up"),
    [
        (lambda: PlainSource([5] * COUNT), ("samples",), True),
        (lambda: PlainSource([5] * COUNT), ("samples", "tokens"), False),
        (lambda: PlainSource([5] * COUNT, key="k{}".format), ("samples",), False),
        (lambda: PlainSource(Named()), ("samples",), False),
        (lambda: Longer([5] * COUNT), ("samples",), False),
        (lambda: PlainSource([5] * COUNT, cost=lambda _: {"samples": 1}), ("samples",), False),
        (lambda: PlainSource([5] * COUNT, cost={"a": [7] * COUNT}), ("a",), True),
        (lambda: PlainSource([5] * COUNT, cost={"a": [7] * COUNT}), ("a", "b"), False),
        (lambda: PlainSource(Named(), cost={"a": [7] * COUNT}), ("a",), False),
        (lambda: PlainSource(Probing(np.arange(COUNT))), ("tokens",), False),
    ],
)
def test_only_what_runs_nothing_of_the_data_set_is_known_beforehand(
    make: Callable[[], PlainSource], resources: tuple[str, ...], looks_up: bool
) -> None:
    handler = opened(make(), *resources)
    assert handler.looks_up == looks_up


def test_a_lease_is_taken_whole_and_no_more() -> None:
    session = WorkerSession()
    session.handle(Welcome("", 1))
    for lease in (7, 8, 9):
        refs = tuple(SampleRef(10 * lease + n, n) for n in range(3))
        session.handle(Lease(lease, "probe", 0, refs))
    assert session.tasks.popleft()
    session.handle(Revoke(8))
    assert [task.ref.ordinal for task in session.next_lease()] == [71, 72]
    assert [task.lease for task in session.next_lease()] == [9] * 3
    assert session.next_lease() == []


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_samples_that_are_measured_one_by_one(workers: int) -> None:
    table = np.random.default_rng(1).integers(1, 40, COUNT)
    balance = Balance("isf", budgets={"tokens": 80}, accumulate="auto", samples_per_step=12, seed=2)

    def epochs(data: Any, **named: Any) -> list[list[list[int]]]:
        loader = DataLoader(
            data, shuffle=True, balance=balance, collate_fn=list, num_workers=workers, **named
        )
        found = [list(loader) for _ in range(2)]
        loader.close()
        return found

    known = epochs([*range(COUNT)], cost={"tokens": table})
    assert known == epochs(Probing(table))
    assert sorted(index for batch in known[0] for index in batch) == [*range(COUNT)]

"""What comes next, however an iteration was left: with torch's loader, torchdata's, and ours.

The rows are those of the table in docs/guides/resume.md. A program is a list of ways to use an
iteration. Where torch's loader cannot resume, it goes on: what follows must be the same.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, Sampler

import counterpoise as cp
from counterpoise.loader import assembly
from tests.loader.local.both_ways import by_balancer

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
SAMPLES, TAKEN = 24, 2
WORKERS: dict[str, dict[str, Any]] = {
    "inline": {},
    "worker": {"num_workers": 1},
    "worker that stays": {"num_workers": 1, "persistent_workers": True},
}
Make = Callable[[], Any]


def taken(loader: Any, _: Make) -> tuple[list[Any], Any]:
    return list(itertools.islice(loader, TAKEN)), loader


def ended(loader: Any, _: Make) -> tuple[list[Any], Any]:
    return list(loader), loader


def raised(loader: Any, _: Make) -> tuple[list[Any], Any]:
    batches = []
    try:
        for batch in loader:
            batches.append(batch)
            1 / (TAKEN - len(batches))
    except ZeroDivisionError:
        pass
    return batches, loader


def opened(loader: Any, _: Make) -> tuple[list[Any], Any]:
    iter(loader)
    return [], loader


def resumed(loader: Any, make: Make) -> tuple[list[Any], Any]:
    """Go on in another loader, where there is a state; of an iteration that came to its end."""
    begun = iter(loader)
    head = list(itertools.islice(begun, TAKEN))
    if type(loader) is DataLoader:
        return head + list(begun), loader
    state = loader.state_dict()
    again = make()
    again.load_state_dict(state)
    return head + list(again), again


WAYS = (ended, taken, raised, opened, resumed)
# Each way after each other, and after itself, with the end that `run` adds.
EACH_AFTER_EACH = [
    way
    for number, first in enumerate(WAYS)
    for way in (first, *(each for second in WAYS[number + 1 :] for each in (first, second)))
]
SHORT = (taken, opened, resumed)
PROGRAMS: dict[str, Any] = {"inline": EACH_AFTER_EACH, "worker": SHORT, "worker that stays": SHORT}


def run(make: Make, program: Any) -> list[Any]:
    """Return what the iterations of a program give, each with the way; the last one ends."""
    torch.manual_seed(3)
    loader, came = make(), []
    for way in (*program, ended):
        batches, loader = way(loader, make)
        came.append((way.__name__, [torch.as_tensor(batch).tolist() for batch in batches]))
    return came


class Counting(Sampler[int]):
    """Counts its epochs, which differ, and goes on where its state says, as lhotse's."""

    def __init__(self) -> None:
        self.epoch, self.at, self.goes_on = -1, 0, False

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        if not self.goes_on:
            self.epoch, self.at = self.epoch + 1, 0
        self.goes_on = False
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch))
        while self.at < SAMPLES:
            self.at += 1
            yield int(order[self.at - 1])

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at, self.goes_on = state["epoch"], state["at"], True


class Stream(IterableDataset[int]):
    """Counts its epochs, and says where it is."""

    epoch, at, goes_on = -1, 0, False

    def __iter__(self) -> Iterator[int]:
        if not self.goes_on:
            self.epoch, self.at = self.epoch + 1, 0
        self.goes_on = False
        while self.at < SAMPLES:
            self.at += 1
            yield 100 * self.epoch + self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at, self.goes_on = state["epoch"], state["at"], True


def ordered(sampler: Callable[[], Any]) -> Callable[..., Any]:
    def make(kind: Any, **more: Any) -> Any:
        return kind(list(range(SAMPLES)), batch_size=4, sampler=sampler(), **more)

    return make


def drawn() -> Any:
    return RandomSampler(range(SAMPLES), generator=torch.Generator().manual_seed(3))


def spread() -> Any:
    return DistributedSampler(range(SAMPLES), num_replicas=1, rank=0)  # type: ignore[arg-type]


def streamed(kind: Any, **more: Any) -> Any:
    return kind(Stream(), 4, **more)


def packed(kind: Any, **more: Any) -> Any:
    """Pack a stream into the batches of a plain loop."""
    if kind is cp.DataLoader:
        more |= {"balance": cp.Balance(budgets={"tokens": 4}, accumulate=1)}
        return kind(Stream(), cost=lambda _: {"tokens": 1}, collate_fn=list, **more)
    return streamed(kind, collate_fn=list, **more)


TORCHS: dict[str, Callable[..., Any]] = {
    "RandomSampler": ordered(drawn), "DistributedSampler": ordered(spread),
    "shuffle": lambda kind, **more: kind(list(range(SAMPLES)), 4, shuffle=True, **more),
    "a sampler with a state": ordered(Counting), "a stream": streamed, "a packed stream": packed,
}  # fmt: skip


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", TORCHS)
def test_a_loop_goes_on_as_torchs(kind: str, workers: str) -> None:
    make, more, program = TORCHS[kind], WORKERS[workers], PROGRAMS[workers]
    theirs = run(lambda: make(DataLoader, **more), program)
    assert run(lambda: make(cp.DataLoader, **more), program) == theirs


# torchdata restores no RandomSampler's generator, and shuffles by other seeds.
SAME_IN_TORCHDATA = [name for name in TORCHS if name not in ("RandomSampler", "shuffle")]


@pytest.mark.parametrize("workers", ["inline", "worker"])
@pytest.mark.parametrize("kind", SAME_IN_TORCHDATA)
def test_a_loop_goes_on_as_torchdatas(kind: str, workers: str) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    make, more, program = TORCHS[kind], WORKERS[workers], PROGRAMS[workers]
    theirs = run(lambda: make(torchdata.StatefulDataLoader, **more), program)
    assert run(lambda: make(cp.DataLoader, **more), program) == theirs


def balanced(**more: Any) -> Any:
    costs = {"tokens": [1] * SAMPLES}
    given: dict[str, Any] = {"shuffle": True, "collate_fn": list, "balance": "fixed"}
    return cp.DataLoader(list(range(SAMPLES)), 4, **{**given, "cost": costs, **more})


def planned_for_torch(ranks: tuple[int, int] = (0, 1), **more: Any) -> Any:
    balance = cp.Balance(budgets={"tokens": 4}, samples_per_step=4 * ranks[1], accumulate=1)
    costs = {"tokens": [1] * SAMPLES}
    sampler: Any = cp.BalancedBatchSampler(costs, balance, ranks=ranks)
    numbers: Any = list(range(SAMPLES))
    return DataLoader(numbers, batch_sampler=sampler, collate_fn=list, **more)


def mixed(**more: Any) -> Any:
    parts = {"a": (list(range(16)), 2), "b": (list(range(16, SAMPLES)), 1)}
    given: dict[str, Any] = {"shuffle": True, "collate_fn": list, "balance": "fixed"}
    return cp.DataLoader(cp.Mixture(parts, epoch=SAMPLES), 4, **{**given, **more})


SPREAD = {"balanced": balanced, "BalancedBatchSampler": planned_for_torch}
OURS = {
    **SPREAD,
    "auto": lambda **more: balanced(balance="auto", cost=None, **more),
    "a mixture": mixed,
}


def follow_the_table(make: Make, program: Any, counts_opened: bool = True) -> None:
    """Compare what comes in each iteration with the epochs of a loop that is never left."""
    counted, epoch, expected = make(), 0, []
    epochs = [list(counted) for _ in range(len(program) + 1)]
    assert len({str(batches) for batches in epochs}) == len(epochs)
    for way in (*program, ended):
        most = {opened: 0, ended: None, resumed: None}.get(way, TAKEN)
        expected.append((way.__name__, epochs[epoch][:most]))
        epoch += way is not opened or counts_opened
    assert run(make, program) == expected


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", OURS)
def test_each_iteration_that_does_not_resume_begins_the_next_epoch(kind: str, workers: str) -> None:
    # Without workers torch's own loader asks a sampler for nothing before a batch is wanted.
    counts_opened = (kind, workers) != ("BalancedBatchSampler", "inline")
    follow_the_table(lambda: OURS[kind](**WORKERS[workers]), PROGRAMS[workers], counts_opened)


def test_so_it_does_by_a_balancer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "choose_connection", by_balancer)
    follow_the_table(balanced, EACH_AFTER_EACH)


@pytest.mark.parametrize("kind", SPREAD)
def test_ranks_that_leave_at_different_places_are_in_the_same_epoch_next(kind: str) -> None:
    ranks = [SPREAD[kind](ranks=(rank, 2)) for rank in range(2)]
    for _ in range(3):
        for rank, loader in enumerate(ranks):
            assert len(list(itertools.islice(loader, 1 + rank))) == 1 + rank
        whole = [list(itertools.chain(*loader)) for loader in ranks]
        assert sorted(itertools.chain(*whole)) == list(range(SAMPLES))

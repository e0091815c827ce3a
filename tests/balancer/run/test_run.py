"""A run hands its microbatches out in the plan's order, in whatever order they are made."""

import random
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import given, strategies as st

from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import IN_BATCHES, LABEL_TOKENS, JobSpec
from counterpoise.balancer.run.ahead import LoopCosts, PlanAhead
from counterpoise.balancer.run.planning import Planning
from counterpoise.balancer.run.run import PlannedRun
from counterpoise.balancer.run.steps import RunSettings
from counterpoise.balancer.run.tasks import Failed, RunError, RunStart
from counterpoise.workers.planned.reader import PlannedReader
from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.sources.plain import as_source
from tests.balancer.run.plans import (
    RESOURCES,
    START,
    config,
    costs_of,
    describe,
    feed,
    take,
    values,
)

MOST = 5


class Texts:
    """Texts of given lengths; some cannot be read."""

    def __init__(self, lengths: list[int], broken: set[int]) -> None:
        self.lengths, self.broken = lengths, broken

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> str:
        if index in self.broken:
            raise SampleError(str(index), "it is torn")
        return "a" * self.lengths[index]


class AnyOrder:
    """Tasks that come back in any order: see run.Tasks."""

    most = most_held = MOST

    def __init__(self, reader: PlannedReader, seed: int) -> None:
        self._reader, self._random = reader, random.Random(seed)
        self._waiting: list[tuple[int, list[int]]] = []

    def submit(self, number: int, task: list[int]) -> None:
        self._waiting.append((number, task))
        assert len(self._waiting) <= 2 * self.most  # microbatches, and portions to measure

    def receive(self, seconds: float = 0.0, also: int | None = None) -> tuple[int, Any] | None:  # noqa: ARG002
        if not self._waiting or (not seconds and self._random.random() < 0.5):
            return None
        number, task = self._waiting.pop(self._random.randrange(len(self._waiting)))
        try:
            return number, self._reader.__getitems__(task)
        except Exception as error:
            return number, Failed(error)

    def held_bytes(self, made: int, each: int) -> int:
        return made * each

    def free(self, batch: Any) -> None:
        pass

    def describe_worker(self, number: int) -> str:
        return f"who has task {number}"


def begin(
    plan: PlanConfig, data: Texts, seed: int, on_error: str = "raise",
    collate: Callable[[list[Any]], Any] = list, buffer_bytes: int = 2**30,
    label_tokens: str = LABEL_TOKENS,
) -> PlannedRun:  # fmt: skip
    """Return a run from the epoch's start."""
    job = JobSpec(plan, on_error=on_error, buffer_bytes=buffer_bytes, label_tokens=label_tokens)
    source = as_source(data, lambda text: {"tokens": len(text)})
    reader = PlannedReader(
        data, source, RESOURCES, 0, collate, on_error == "skip",
        count_labels=lambda batch, *_: sum(map(len, batch)),
    )  # fmt: skip
    tasks = AnyOrder(reader, seed)
    costs_here = feed(plan, LoopCosts(len(data), RESOURCES))
    planning = Planning(
        lambda: PlanAhead(costs_here, 20, plan.samples_per_step),
        describe(plan, tuple(range(plan.ranks))),
    )  # fmt: skip
    settings = RunSettings(job, source, tuple(range(plan.ranks)), False, True, True, False)
    return PlannedRun(settings, RunStart(0, START), tasks, planning, count(1))


def deliver(run: PlannedRun) -> list[Any]:
    """Return all that a run hands out, and the error that ends it."""
    found = []
    while not run.is_at_end():
        run.pump(0.01)
        arrival = run.head()
        if isinstance(arrival, Exception):
            return [*found, arrival]
        if arrival is not None:
            assert run.head() is not None  # it stays until it is released
            found.append(arrival)
            run.release(arrival.batch)
            run.release(arrival.batch)
    return found


def planned(plan: PlanConfig, lengths: list[int]) -> list[tuple[int, int, int, list[str]]]:
    """Return (step, microbatch, rank, texts) of the plan."""
    return [
        (step.number, m, r, ["a" * lengths[i] for i in step.find_indexes(step.ordinals(r, m))])
        for step in take(feed(plan, costs_of(lengths)))
        for m in range(step.microbatches)
        for r in range(plan.ranks)
    ]


def place(arrival: Any) -> tuple[int, int, int]:
    return arrival.batch.step, arrival.batch.microbatch, arrival.batch.rank


@given(
    lengths=values, seed=st.integers(0, 999), mode=st.sampled_from(["exact", "window", "epoch"]),
    ranks=st.integers(1, 2), on_error=st.sampled_from(["raise", "skip"]),
)  # fmt: skip
def test_microbatches_come_in_the_plans_order(
    lengths: list[int], seed: int, mode: Any, ranks: int, on_error: str
) -> None:
    plan = config(mode=mode, ranks=ranks)
    run = begin(plan, Texts(lengths, set()), seed, on_error)
    found = deliver(run)
    came = [(*place(each), each.loaded.batch) for each in found]
    assert came == planned(plan, lengths)
    assert run.measuring.measured == len(lengths)


@given(lengths=values, seed=st.integers(0, 999), broken=st.sets(st.integers(0, 59), max_size=5))
def test_holes_stay_where_the_plan_has_them_whoever_finds_them(
    lengths: list[int], seed: int, broken: set[int]
) -> None:
    bad = {index for index in broken if index < len(lengths)}
    first, second = (
        deliver(begin(config(), Texts(lengths, bad), seed + more, "skip")) for more in (0, 1)
    )
    assert [each.batch for each in first] == [each.batch for each in second]
    assert [each.loaded.batch for each in first] == [each.loaded.batch for each in second]
    holes = [hole.key for each in first for hole in each.batch.holes]
    assert sorted(map(int, holes)) == sorted(bad)
    assert sum(len(each.loaded.batch) for each in first) == len(lengths) - len(bad)


@given(lengths=values, seed=st.integers(0, 99), data=st.data())
def test_what_is_broken_ends_the_run_at_its_own_microbatch(
    lengths: list[int], seed: int, data: st.DataObject
) -> None:
    bad = data.draw(st.integers(0, len(lengths) - 1))
    *came, error = deliver(begin(config(), Texts(lengths, {bad}), seed))
    assert isinstance(error, RunError)
    assert str(error) == f"sample '{bad}': it is torn"
    costs = [0 if index == bad else length for index, length in enumerate(lengths)]
    whole = [each[:3] for each in planned(config(), costs)]
    assert [place(each) for each in came] == whole[: len(came)]


class Once:
    """A collate function that fails once for each batch that has an even number of samples."""

    def __init__(self) -> None:
        self.failed: set[str] = set()

    def __call__(self, samples: list[Any]) -> list[Any]:
        name = repr(samples)
        if samples and len(samples) % 2 == 0 and name not in self.failed:
            self.failed.add(name)
            raise MemoryError(name)
        return samples


@given(lengths=values, seed=st.integers(0, 99))
def test_a_batch_that_could_not_be_made_is_made_again(lengths: list[int], seed: int) -> None:
    run = begin(config(), Texts(lengths, set()), seed, collate=Once())
    came: list[Any] = []
    while not run.is_at_end():
        rest = deliver(run)
        came += [each for each in rest if not isinstance(each, Exception)]
    assert [(*place(each), each.loaded.batch) for each in came] == planned(config(), lengths)


def test_a_microbatch_over_the_byte_budget_is_named_wherever_it_is() -> None:
    lengths = [5] * 120
    lengths[100] = 5_000
    with pytest.raises(RunError, match="a byte budget of 500 cannot hold one microbatch"):
        deliver(begin(config(), Texts(lengths, set()), 0, buffer_bytes=500))


def test_no_more_is_made_ahead_than_is_allowed() -> None:
    run = begin(config(), Texts([5] * 200, set()), 0)
    for _ in range(300):
        run.pump(0.01)
    assert run.head() is not None
    # Of what nobody takes: as many microbatches as may be under way, beside what is measured.
    assert len(run._sent) <= MOST
    assert run.measuring.measured <= 60


@given(
    lengths=st.lists(st.integers(1, 12), min_size=6, max_size=40), seed=st.integers(0, 99),
    on_error=st.sampled_from(["raise", "skip"]), broken=st.sets(st.integers(0, 59), max_size=3),
)  # fmt: skip
def test_a_steps_label_tokens_are_told_before_any_of_it_is_handed_out(
    lengths: list[int], seed: int, on_error: str, broken: set[int]
) -> None:
    data = Texts(lengths, broken if on_error == "skip" else set())
    run = begin(config(), data, seed, on_error, label_tokens=IN_BATCHES)
    told: dict[str, int] = {}
    run._planning.say = lambda key, value: told.setdefault(key, int(value))  # type: ignore
    counted: dict[str, int] = {}
    for _ in range(100):  # more than there is room for ahead
        run.pump(0.01)
    assert told
    for arrival in deliver(run):
        key = f"labels/{arrival.batch.step}"
        counted[key] = counted.get(key, 0) + (arrival.loaded.label_tokens or 0)
    assert told == {key: counted[key] for key in told}

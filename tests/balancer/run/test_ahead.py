"""What is measured and planned ahead of need, by one rank or by several that tell each other."""

import random
from collections import Counter
from typing import Any

from hypothesis import given, strategies as st

from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.parts import EpochPosition
from counterpoise.balancer.run.ahead import LoopCosts, PlanAhead
from counterpoise.balancer.run.tasks import FailedSample
from tests.balancer.run.plans import (
    RESOURCES,
    START,
    config,
    costs_of,
    feed,
    plans,
    seen,
    take,
    values,
)  # fmt: skip

BROKEN = FailedSample("broken", "it does not decode", False)


class Board:
    """What ranks have posted, for all to see."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.posted: dict[str, dict[int, bytes]] = {}


class Shares:
    """A rank at a board: see exchange.Peers."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self.rank, self.ranks = board, rank, board.ranks

    def post(self, key: str, value: bytes) -> None:
        assert self.rank not in self._board.posted.setdefault(key, {})
        self._board.posted[key][self.rank] = value

    def gather(self, key: str) -> tuple[bytes, ...] | None:
        there = self._board.posted.get(key, {})
        return tuple(there[r] for r in range(self.ranks)) if len(there) == self.ranks else None

    def pause_s(self) -> float:
        return 0.0

    def end(self, group: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def explain_loss(self, _key: str) -> str:
        return ""

    def describe_missing(self, key: str) -> str:
        there = self._board.posted.get(key, {})
        return ", ".join(f"rank {rank}" for rank in range(self.ranks) if rank not in there)


class Rank:
    """A rank that measures what it is asked to, and takes its steps, some at a time."""

    def __init__(
        self, plan: PlanConfig, costs: list[int], broken: set[int], ahead: int,
        shares: Any = None, at: EpochPosition = START, block: int = 10**6,
    ) -> None:  # fmt: skip
        self.costs, self.broken, self.steps = costs, broken, list[Any]()
        self.out = 0
        self.measured: Counter[int] = Counter()
        unknown = LoopCosts(len(costs), RESOURCES)
        source = feed(plan, unknown, at)
        self.ahead = PlanAhead(source, ahead, min(block, plan.samples_per_step), shares, "1")

    def move(self, source: random.Random) -> None:
        """Do a part of what there is to do, at random."""
        self.steps += self.ahead.steps()
        waiting = self.ahead.to_measure
        some = [waiting.popleft() for _ in range(source.randint(0, len(waiting)))]
        source.shuffle(some)
        self.measured.update(some)
        self.ahead.store(some, [self.cost(each) for each in some])
        if source.random() < 0.7 and self.steps:
            self.out += source.randint(0, len(self.steps) - self.out)
            self.ahead.hand_out(self.out and self.steps[self.out - 1].number + 1)

    def cost(self, ordinal: int) -> Any:
        index = int(self.ahead.feed.order[ordinal])
        return BROKEN if index in self.broken else (self.costs[index],)


def known(costs: list[int], broken: set[int]) -> LoopCosts:
    return costs_of([0 if index in broken else cost for index, cost in enumerate(costs)])


indexes = st.sets(st.integers(0, 59), max_size=6)


# Samples measured together; a step's at most.
blocks = st.integers(1, 40)


@given(
    plan=plans, costs=values, broken=indexes, ahead=st.integers(1, 40), seed=st.integers(0, 99),
    block=blocks,
)  # fmt: skip
def test_what_is_measured_ahead_is_planned_as_if_all_costs_were_known(
    plan: PlanConfig, costs: list[int], broken: set[int], ahead: int, seed: int, block: int
) -> None:
    rank, source = Rank(plan, costs, broken, ahead, block=block), random.Random(seed)
    for _ in range(1000):
        if rank.ahead.is_over:
            break
        rank.move(source)
    assert rank.ahead.is_over
    assert [*map(seen, rank.steps)] == [*map(seen, take(feed(plan, known(costs, broken))))]
    assert set(rank.measured.values()) <= {1}


@given(
    plan=plans, costs=values, broken=indexes, ahead=st.integers(1, 40), seed=st.integers(0, 99),
    ranks=st.integers(2, 4), block=blocks,
)  # fmt: skip
def test_ranks_that_measure_a_part_each_make_the_same_plan(
    plan: PlanConfig, costs: list[int], broken: set[int], ahead: int, seed: int, ranks: int,
    block: int,
) -> None:  # fmt: skip
    board, source = Board(ranks), random.Random(seed)
    all_ranks = [
        Rank(plan, costs, broken, ahead, Shares(board, rank), block=block) for rank in range(ranks)
    ]
    for _ in range(5000):
        if all(rank.ahead.is_over for rank in all_ranks):
            break
        source.choice(all_ranks).move(source)
    expected = [*map(seen, take(feed(plan, known(costs, broken))))]
    measured = Counter[int]()
    for rank in all_ranks:
        assert rank.ahead.is_over
        assert [*map(seen, rank.steps)] == expected
        measured.update(rank.measured)
        used = {int(rank.ahead.feed.order[each]) for each in rank.ahead.failed}
        assert used <= broken
    assert set(measured.values()) <= {1}  # none by two ranks
    assert len({frozenset(rank.ahead.failed) for rank in all_ranks}) == 1


def together(ranks: list[Rank], seed: int) -> None:
    """Let all ranks go on, in a random order, until all are over."""
    source = random.Random(seed)
    for _ in range(5000):
        if all(rank.ahead.is_over for rank in ranks):
            return
        source.choice(ranks).move(source)
    raise AssertionError([rank.ahead.missing for rank in ranks])


def test_no_more_is_measured_and_planned_than_is_asked_for() -> None:
    rank = Rank(config(), [5] * 600, set(), ahead=24)
    for handed_out in (0, 0, 1, 0):
        rank.ahead.hand_out(handed_out)
        for _ in range(50):
            rank.steps += rank.ahead.steps()
            waiting = [*rank.ahead.to_measure]
            rank.ahead.to_measure.clear()
            rank.measured.update(waiting)
            rank.ahead.store(waiting, [(5,)] * len(waiting))
    # As many as are wanted and a step, and as many again are measured ahead.
    assert 24 + 6 <= sum(step.samples for step in rank.steps) <= 24 + 6 + 6
    assert rank.measured.total() <= 2 * (24 + 6 + 6)


def test_the_first_window_is_measured_and_planned_before_anything_else() -> None:
    rank = Rank(config(), [5] * 600, set(), ahead=24)
    assert list(rank.ahead.steps()) == []
    waiting = [*rank.ahead.to_measure]
    assert waiting == list(range(6))
    rank.ahead.to_measure.clear()
    rank.ahead.store(waiting, [(5,)] * len(waiting))
    assert len([*rank.ahead.steps()]) == 1
    assert len(rank.ahead.to_measure) == 6 + 24


def test_it_says_what_it_waits_for() -> None:
    board = Board(2)
    one = Rank(config(), [5] * 60, set(), 6, Shares(board, 0))
    assert list(one.ahead.steps()) == []
    assert "costs of the next window of 6 samples" in one.ahead.missing
    assert not one.ahead.awaits_ranks
    waiting = [*one.ahead.to_measure]
    one.ahead.to_measure.clear()
    one.ahead.store(waiting, [(5,)] * len(waiting))
    assert list(one.ahead.steps()) == []
    assert one.ahead.awaits_ranks
    assert one.ahead.missing == "costs that other ranks measure: rank 1"


def test_with_known_costs_nothing_is_measured() -> None:
    source = feed(config(), costs_of([5] * 60))
    ahead = PlanAhead(source, 12, 6)
    assert len([*ahead.steps()]) == 2
    assert not ahead.to_measure
    ahead.hand_out(1)
    assert len([*ahead.steps()]) == 1

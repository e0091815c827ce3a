"""Planning beside the training loop: its thread ends, and nobody's fork has to wait for ever."""

import gc
import os
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from counterpoise.balancer.planning.problem.config import Planned, Window
from counterpoise.balancer.run.ahead import LoopCosts, PlanAhead, PlannedStep
from counterpoise.balancer.run.planning import Planning, PlanningThread, PlanProgress
from tests.balancer.run.plans import RESOURCES, config, costs_of, describe, feed, seen, take
from tests.balancer.run.test_ahead import Board, Shares

PLAN = config()
COUNT = 120
FILES = Path("/proc/self/fd")
CYCLES = 300
LIMIT_S = 60.0


def make(costs: LoopCosts | None = None, ahead: int = 24) -> Callable[[], PlanAhead]:
    known = costs_of([*range(COUNT)]) if costs is None else costs
    return lambda: PlanAhead(feed(PLAN, known), ahead, PLAN.samples_per_step)


def collected(planning: Planning) -> Iterator[PlanProgress]:
    """Yield what comes of planning until it is over; measure and hand out what it asks for."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        found = planning.collect()
        if found is None:
            planning.wait(0.1)
            continue
        yield found
        if found.is_over or found.error is not None:
            return
        ordinals = [ordinal for ordinal, _ in found.to_measure]
        if ordinals:
            planning.measured(ordinals, [(index,) for _, index in found.to_measure])
        for step, _ in found.steps:
            planning.handed_out(step.number + 1)
    raise AssertionError("planning takes too long")


@pytest.fixture
def alarm() -> Iterator[None]:
    """End this process if it hangs where no test's timeout is seen."""
    yield
    signal.alarm(0)


def of_thread(**given: Any) -> PlanningThread:
    planning = PlanningThread(make(**given), describe(PLAN))
    planning.start()
    return planning


@pytest.mark.parametrize("is_known", [True, False])
def test_a_thread_gives_what_the_caller_gets_without_one(is_known: bool) -> None:
    costs = [None if is_known else LoopCosts(COUNT, RESOURCES) for _ in range(2)]
    here = Planning(make(costs[0]), describe(PLAN))
    there = of_thread(costs=costs[1])
    expected = [*map(seen, take(feed(PLAN, costs_of([*range(COUNT)]))))]
    for planning in (here, there):
        steps = [step for found in collected(planning) for step, _ in found.steps]
        assert [*map(seen, steps)] == expected
        planning.stop()


def test_what_planning_raises_is_collected_once() -> None:
    def fail() -> PlanAhead:
        raise ValueError("no such order")

    planning = PlanningThread(fail, describe(PLAN))
    planning.start()
    *_, last = collected(planning)
    assert str(last.error) == "no such order"
    assert planning.collect() is None
    planning.stop()


def test_ranks_tell_each_other_what_they_find_though_no_more_can_be_planned() -> None:
    costs = [1] * COUNT
    costs[-1] = 50  # more than a budget
    board = Board(2)
    shares: list[Any] = [Shares(board, rank) for rank in range(2)]
    ranks = [
        Planning(
            lambda: PlanAhead(feed(config(oversize="error"), costs_of(costs)), COUNT, 6),
            describe(PLAN), each, "1",
        )
        for each in shares
    ]  # fmt: skip
    for each in ranks:
        while (found := each.collect()) is None or found.error is None:
            each.turn()
        assert isinstance(found.error, ValueError)
        each.say("holes/0", b"[]")
    for each in (*ranks, *ranks):
        each.turn()
    assert [each.heard for each in ranks] == [{"holes/0": (b"[]", b"[]")}] * 2
    assert not any(each.has_ended or each.rewind(0) for each in ranks)


def test_what_a_trainer_had_in_hand_comes_again_after_a_rewind() -> None:
    costs = LoopCosts(COUNT, RESOURCES)
    planning, source = of_thread(costs=costs), random.Random(5)
    due, steps, is_over, deadline = deque[PlannedStep](), list[PlannedStep](), False, LIMIT_S
    deadline += time.monotonic()
    while due or not is_over:
        assert time.monotonic() < deadline
        if source.random() < 0.05:  # all that this loop has is lost, but for what it handed out
            at = steps[-1].number + 1 if steps else 0
            due.clear()
            is_over = False
            assert planning.rewind(at)
            continue
        if due:
            steps.append(due.popleft())
            if source.random() < 0.5:
                planning.handed_out(steps[-1].number + 1)
        if (found := planning.collect()) is None:
            if steps and not due:
                planning.handed_out(steps[-1].number + 1)
            planning.wait(0.01 if due else 1.0)
            continue
        assert found.error is None
        due.extend(step for step, _ in found.steps if not steps or step.number > steps[-1].number)
        is_over |= found.is_over
        planning.measured(
            [each for each, _ in found.to_measure], [(index,) for _, index in found.to_measure]
        )
    assert [*map(seen, steps)] == [*map(seen, take(feed(PLAN, costs_of([*range(COUNT)]))))]
    planning.stop()


def test_planning_that_has_ended_or_was_done_here_cannot_be_rewound() -> None:
    here = Planning(make(), describe(PLAN))
    there = of_thread()
    there.stop()
    assert not here.rewind(0)
    assert not there.rewind(0)


def test_threads_that_are_begun_and_stopped_at_once_all_end() -> None:
    gc.collect()
    before, descriptors = threading.active_count(), len(list(FILES.iterdir()))
    for cycle in range(CYCLES):
        planning = of_thread()
        if cycle % 3 == 1:
            planning.handed_out(1)
        if cycle % 3 == 2:
            planning.wait(1.0)
        planning.stop()
        assert planning._thread is not None
        assert not planning._thread.is_alive()
        del planning
    assert threading.active_count() == before
    assert len(list(FILES.iterdir())) <= descriptors


def test_a_thread_ends_with_its_planning_though_nobody_stops_it() -> None:
    planning = of_thread()
    thread: Any = planning._thread
    del planning
    thread.join(LIMIT_S)
    assert not thread.is_alive()


class Slow:
    """A planner that says when it is at work, and takes its time."""

    is_at_work = False

    def __init__(self, planner: Any) -> None:
        self._planner = planner

    @property
    def window_samples(self) -> int:
        return self._planner.window_samples

    def plan(self, window: Window) -> Planned:
        Slow.is_at_work = True
        time.sleep(0.002)
        planned: Planned = self._planner.plan(window)
        Slow.is_at_work = False
        return planned


@pytest.mark.usefixtures("alarm")
def test_a_fork_finds_no_planner_at_work_and_both_go_on() -> None:
    def slow() -> PlanAhead:
        ahead = make(ahead=COUNT)()
        planner: Any = Slow(ahead.feed.planner)
        ahead.feed.planner = planner
        return ahead

    signal.alarm(120)
    was_at_work = 0
    for moment in range(0, 30, 2):
        planning = PlanningThread(slow, describe(PLAN))
        planning.start()
        time.sleep(moment * 0.001)
        was_at_work += Slow.is_at_work
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            is_fine = not Slow.is_at_work
            # Whatever a thread could hold: the child plans, starts threads, and forks.
            thread = of_thread()
            steps = sum(len(found.steps) for found in collected(thread))
            thread.stop()
            os._exit(0 if is_fine and steps == COUNT // 6 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sum(len(found.steps) for found in collected(planning)) == COUNT // 6
        planning.stop()
    assert was_at_work > 1  # else nothing was tested


@pytest.mark.usefixtures("alarm")
def test_threads_that_fork_while_others_plan_never_hang() -> None:
    signal.alarm(120)
    plannings = [of_thread() for _ in range(4)]

    def fork() -> None:
        for _ in range(8):
            try:
                child = os.fork()
            except RuntimeError:
                continue  # newer filelocks, where something has loaded one, refuse forks that meet
            if child == 0:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0

    forkers = [threading.Thread(target=fork) for _ in range(3)]
    for each in forkers:
        each.start()
    for planning in plannings:
        assert sum(len(found.steps) for found in collected(planning)) == COUNT // 6
        planning.stop()
    for each in forkers:
        each.join(LIMIT_S)
        assert not each.is_alive()

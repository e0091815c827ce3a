"""Optimal exposed encoder time of tiny problems, by exhaustive search: the oracle of the tests.

For given times before and after the step it is a job shop with calendars: each microbatch a job
that waits for its gradient, has to be done when the language model needs it, and may run on any
pipeline; kernels of different microbatches and directions may mix on a GPU as they like. Schedules
in which no kernel could start earlier suffice (Giffler and Thompson, 1960), so it branches only on
which of the kernels that compete for a GPU goes first. Exponential: a dozen kernels are fine.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from counterpoise.sched.bubble_filling.gaps import COMMUNICATING, COMPUTING, FREE
from counterpoise.sched.bubble_filling.instance import FillProblem, StageKernels


@dataclass(frozen=True, slots=True)
class _Task:
    """A kernel: its GPU, its time, and its chain's and own bounds."""

    machine: tuple[int, int]
    resource: int
    ns: int
    lag: int


Calendar = tuple[tuple[int, int, int], ...]


def least_exposed(problem: FillProblem, known: int) -> int:
    """The least time before and after together, where `known` is possible.

    More time never hurts, so it goes down from what is known until nothing is possible. Raises
    ValueError where encoder collectives are modelled, which this does not know.
    """
    if problem.forward.release.any() or problem.backward.release.any():
        raise ValueError("the exact search does not know the encoders' collectives")
    total = known
    while total and any(_possible(problem, b, total - 1 - b) for b in range(total)):
        total -= 1
    return total


def _possible(problem: FillProblem, before: int, after: int) -> bool:
    pipelines = range(problem.pipelines)
    calendars = {
        (rank, copy): _calendar(problem, rank, before, after)
        for rank in range(len(problem.gaps.ranks))
        for copy in range(problem.copies)
    }
    for choice in product(pipelines, repeat=problem.microbatches):
        if problem.most is not None and max(map(choice.count, pipelines)) > problem.most:
            continue
        chains = list(_chains(problem, choice, before, after))
        if _Search(chains, calendars).run():
            return True
    return False


def _calendar(problem: FillProblem, rank: int, before: int, after: int) -> Calendar:
    one = problem.gaps.ranks[rank]
    rows = list(zip(one.start.tolist(), one.end.tolist(), one.kind.tolist(), strict=True))
    rows[0] = (rows[0][0] - before, rows[0][1], rows[0][2])
    rows[-1] = (rows[-1][0], rows[-1][1] + after, rows[-1][2])
    return tuple(rows)


Chain = tuple[int, int, tuple[_Task, ...]]


def _chains(
    problem: FillProblem, choice: tuple[int, ...], before: int, after: int
) -> Iterator[Chain]:
    """Release, deadline and tasks of each microbatch's forward and backward."""
    gaps = problem.gaps
    for microbatch, pipeline in enumerate(choice):
        group, copy = divmod(pipeline, problem.copies)
        ranks = problem.groups[group]
        ahead = _tasks(problem, problem.forward, ranks, copy, microbatch)
        yield -before, int(gaps.need_ns[microbatch]) - problem.hop_ns, ahead
        if len(problem.backward.resource):
            back = _tasks(problem, problem.backward, ranks[::-1], copy, microbatch)
            ready = int(gaps.gradient_ns[microbatch]) + problem.hop_ns
            yield ready, gaps.step_ns + after, back


def _tasks(
    problem: FillProblem, work: StageKernels, ranks: tuple[int, ...], copy: int, microbatch: int
) -> tuple[_Task, ...]:
    row = problem.row(microbatch, work)
    return tuple(
        _Task((rank, copy), int(work.resource[q]), int(work.ns[rank if many else 0, row, q]), hop)
        for many in (work.ns.shape[0] > 1,)
        for stage, rank in enumerate(ranks)
        for q in range(len(work.resource))
        for hop in (problem.hop_ns if stage and not q else 0,)
    )


class _Search:
    """Depth first over active schedules."""

    def __init__(self, chains: list[Chain], calendars: dict[tuple[int, int], Calendar]) -> None:
        self.chains, self.calendars = chains, calendars
        self.seen: set[tuple[object, ...]] = set()

    def run(self) -> bool:
        at = tuple(0 for _ in self.chains)
        ready = tuple(release for release, _, _ in self.chains)
        return self._step(at, ready, {})

    def _step(
        self, at: tuple[int, ...], ready: tuple[int, ...], busy: dict[tuple[int, int], int]
    ) -> bool:
        state = (at, ready, tuple(sorted(busy.items())))
        if state in self.seen:
            return False
        self.seen.add(state)
        options = []
        for job, (_, deadline, tasks) in enumerate(self.chains):
            if at[job] == len(tasks):
                continue
            task = tasks[at[job]]
            start = self._earliest(
                task, max(ready[job] + task.lag, busy.get(task.machine, -(10**9)))
            )
            rest = sum(one.ns + one.lag for one in tasks[at[job] + 1 :])
            if start is None or start + task.ns + rest > deadline:
                return False
            options.append((start + task.ns, start, job, task))
        if not options:
            return True
        soonest, _, _, first = min(options, key=lambda option: option[0])
        for end, start, job, task in sorted(options, key=lambda option: option[:3]):
            if task.machine == first.machine and start < soonest:
                later = (*ready[:job], end, *ready[job + 1 :])
                beyond = (*at[:job], at[job] + 1, *at[job + 1 :])
                if self._step(beyond, later, busy | {task.machine: end}):
                    return True
        return False

    def _earliest(self, task: _Task, ready: int) -> int | None:
        allowed = (FREE, COMPUTING if task.resource else COMMUNICATING)
        for start, end, kind in self.calendars[task.machine]:
            if kind in allowed and max(ready, start) + task.ns <= end:
                return max(ready, start)
        return None

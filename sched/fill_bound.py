"""An upper bound on how much encoder time can be hidden, whatever the schedule.

Forget pipelines' order, kernels' sizes and their sequence; keep that by F_i at least i + 1
microbatches must be through every stage of their pipelines, and that the last ones cannot go back
before B_i (Hall's condition). What a pipeline can take until then is what its tightest stage has
free. What is missing is exposed, spread evenly over the pipelines: no schedule exposes less, so
no efficiency is higher. Computation and all work together are bounded apart.
"""

import numpy as np

from .fill_gaps import COMMUNICATING, COMPUTING, FREE, Gaps, Ints
from .fill_problem import FillProblem, Work

_EVERY = (FREE, COMMUNICATING, COMPUTING)
_COMPUTE = (FREE, COMMUNICATING)


def hidden_bound(problem: FillProblem) -> float:
    """The highest efficiency that any schedule can have.

    Where microbatches differ their mean is taken, which still bounds plans that may order them
    freely only nearly: take it as a guide there.
    """
    exposed = max(_exposed(problem, _COMPUTE), _exposed(problem, _EVERY))
    return max(0.0, min(1.0, 1 - exposed / max(1, problem.encoder_ns)))


def _exposed(problem: FillProblem, kinds: tuple[int, ...]) -> float:
    """Nanoseconds per GPU that cannot be hidden in stretches of these kinds."""
    gaps = problem.gaps
    forward, backward = (
        _share(work, kinds == _COMPUTE) for work in (problem.forward, problem.backward)
    )
    room = [_Room(gaps, rank, kinds) for rank in range(len(gaps.ranks))]
    count = problem.microbatches
    early = max(
        (at + 1) * forward - _held(problem, [one.until(by) for one in room])
        for at, by in enumerate(gaps.need_ns.tolist())
    )
    late = max(
        (count - at) * backward - _held(problem, [one.whole - one.until(by) for one in room])
        for at, by in enumerate(gaps.gradient_ns.tolist())
    )
    every = count * (forward + backward) - _held(problem, [one.whole for one in room])
    return max(0.0, max(early, 0.0) + max(late, 0.0), every) / problem.pipelines


def _share(work: Work, only_compute: bool) -> float:
    """Nanoseconds of a microbatch on a stage, the mean of microbatches, the fastest rank."""
    chosen = work.resource == 0 if only_compute else slice(None)
    if not len(work.resource):
        return 0.0
    return float(work.ns[:, :, chosen].sum(axis=2).min(axis=0).mean())


def _held(problem: FillProblem, room: list[int]) -> int:
    """What all pipelines together can take: each what its tightest stage has."""
    return problem.copies * sum(min(room[rank] for rank in group) for group in problem.groups)


class _Room:
    """How much of these kinds a rank has until a time."""

    def __init__(self, gaps: Gaps, rank: int, kinds: tuple[int, ...]) -> None:
        one = gaps.ranks[rank]
        keep = np.isin(one.kind, kinds)
        self.start: Ints = one.start[keep]
        length = one.end[keep] - self.start
        self.length = length
        self.sums: Ints = np.concatenate(([0], np.cumsum(length)))

    @property
    def whole(self) -> int:
        return int(self.sums[-1])

    def until(self, time: int) -> int:
        """Of the stretches before a time."""
        at = int(np.searchsorted(self.start, time, side="left"))
        if at == 0:
            return 0
        return int(self.sums[at - 1] + min(self.length[at - 1], time - self.start[at - 1]))

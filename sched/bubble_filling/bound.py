"""An upper bound on how much encoder time can be hidden, whatever the schedule.

Forget kernels' sizes and their sequence, and let a pipeline use all that its GPUs have free: what
remains is that by F_i at least i + 1 microbatches must be through all stages of their pipelines,
and that the last ones cannot go back before B_i (Hall's condition). A stage has until then what is
free on it, less what it waits at the start for the stages before it and leaves at the end to those
behind, and works on whole microbatches. The least extension with which that is enough is exposed,
in each direction; and so is what the whole step has too little of. No schedule exposes less, so no
efficiency is higher. Computation and all work together are bounded apart.
"""

import numpy as np

from .gaps import COMMUNICATING, COMPUTING, FREE, Ints
from .instance import FillProblem, Work
from .pipelines import enough, least

_EVERY = (FREE, COMMUNICATING, COMPUTING)
_COMPUTE = (FREE, COMMUNICATING)
_TOLERANCE_NS = 20_000


def hidden_bound(problem: FillProblem) -> float:
    """Return an upper bound of the efficiency of any schedule.

    Where microbatches differ, the directions are bounded by the cheapest one.
    """
    exposed = max(_exposed(problem, _COMPUTE), _exposed(problem, _EVERY))
    return max(0.0, min(1.0, 1 - exposed / max(1, problem.encoder_ns)))


def _exposed(problem: FillProblem, kinds: tuple[int, ...]) -> float:
    """Return nanoseconds per GPU that cannot be hidden in stretches of these kinds."""
    gaps, only = problem.gaps, kinds == _COMPUTE
    chosen = [(one, np.isin(one.kind, kinds)) for one in gaps.ranks]
    room = [_Room(one.start[keep], one.end[keep], gaps.step_ns) for one, keep in chosen]
    ahead = _extension(problem, problem.forward, only, room, gaps.need_ns)
    mirrored = [one.mirrored() for one in room]
    back = np.sort(gaps.step_ns - gaps.gradient_ns)
    behind = _extension(problem, problem.backward, only, mirrored, back)
    held = problem.copies * sum(min(room[rank].whole for rank in group) for group in problem.groups)
    total = sum(_all(problem, work, only) for work in (problem.forward, problem.backward))
    return max(ahead + behind, (total - held) / problem.pipelines)


def _per_row(work: Work, only_compute: bool) -> Ints:
    """Return each row's time on a stage, on the fastest rank."""
    chosen = work.resource == 0 if only_compute else slice(None)
    return np.asarray(work.ns[:, :, chosen].sum(axis=2).min(axis=0))


def _all(problem: FillProblem, work: Work, only_compute: bool) -> int:
    """Return the time of all microbatches on a stage."""
    if not len(work.resource):
        return 0
    rows = _per_row(work, only_compute)
    return int(np.broadcast_to(rows, (problem.microbatches,)).sum())


def _extension(
    problem: FillProblem, work: Work, only: bool, room: list["_Room"], need: Ints
) -> int:
    """Return the least extension with which enough microbatches can be done by each time."""
    if not len(work.resource):
        return 0
    share = int(_per_row(work, only).min())
    chain = int(_per_row(work, False).min()) + problem.hop_ns
    if not share:
        return 0
    tolerance = min(_TOLERANCE_NS, share)
    wanted = np.arange(1, problem.microbatches + 1)
    by = need - problem.hop_ns

    def fits(extension: int) -> bool:
        done = np.zeros(len(need), np.int64)
        for group in problem.groups:
            last = len(group) - 1
            stages = [
                room[rank].between(at * chain, by - (last - at) * chain, extension)
                for at, rank in enumerate(group)
            ]
            done += problem.copies * (np.min(stages, axis=0) // share)
        return bool((done >= wanted).all())

    high = enough(problem, work, problem.microbatches)
    return max(0, least(fits, high, tolerance) - tolerance)


class _Room:
    """Some of a rank's stretches, whose time is summed up for any interval."""

    def __init__(self, start: Ints, end: Ints, step_ns: int) -> None:
        self.start, self.end, self.step_ns = start, end, step_ns
        self.length = end - start
        self.sums: Ints = np.concatenate(([0], np.cumsum(self.length)))

    @property
    def whole(self) -> int:
        return int(self.sums[-1])

    def mirrored(self) -> "_Room":
        """Return the same on a clock that runs backward from the step's end."""
        step_ns = self.step_ns
        return _Room((step_ns - self.end)[::-1], (step_ns - self.start)[::-1], step_ns)

    def until(self, time: Ints) -> Ints:
        """Return the time in stretches before each of these times."""
        if not len(self.start):
            return np.zeros(len(time), np.int64)
        at = np.searchsorted(self.start, time, side="left")
        before = np.maximum(at - 1, 0)
        part = np.clip(time - self.start[before], 0, self.length[before])
        return np.where(at > 0, self.sums[before] + part, 0)

    def between(self, begin: int, end: Ints, extension: int) -> Ints:
        """Return the time from `begin` after the extended start; all of the extension is free."""
        first = begin - extension
        early = np.maximum(np.minimum(end, 0) - first, 0)
        inner = self.until(np.maximum(end, 0)) - self.until(np.array([max(first, 0)]))
        return np.asarray(early + np.maximum(inner, 0))

"""Algorithm 2 of Optimus (2025) as printed, for comparison.

Coarse: all forwards before the language model's first pass, all backwards after its last. Then
fine, forwards first: the pipeline whose exposed time is longest gives one whole microbatch to the
bubbles between; this repeats until a microbatch finds no room or misses its dependency, which
ends it. A microbatch is either in the big bubble or between, never both. The paper tries all
partitions of the microbatches; here it is the even one, since in set R none is better.
"""

from dataclasses import dataclass

import numpy as np

from counterpoise.sched.bubble_filling.gaps import FREE, Ints
from counterpoise.sched.bubble_filling.instance import (
    EncoderPipeline,
    FilledSchedule,
    FillProblem,
    StageKernels,
)
from counterpoise.sched.bubble_filling.pipelines import (
    NEVER,
    Placed,
    Space,
    enough,
    fill,
    least,
    make_space,
    match,
    mirrored_work,
)
from tests.sched.bubble_filling.validate import check_filled

_TOLERANCE_NS = 50_000


@dataclass(slots=True)
class _Lane:
    """A pipeline while it is filled: its number of microbatches, and of those moved between."""

    space: Space
    count: int
    coarse: list[Placed | None]
    extensions: list[int]
    moved: int = 0
    between: Placed | None = None

    @property
    def exposed(self) -> int:
        """The exposed time with the microbatches in the big bubble that are not between."""
        return self.extensions[self.count - self.moved]


def fill_optimus(problem: FillProblem, *, fine: bool = True) -> FilledSchedule:
    """Return the schedule of Algorithm 2, or with fine=False of its first half.

    Raises ValueError if microbatches differ or their order is fixed: the paper has no such case.
    """
    if problem.fixed or problem.forward.ns.shape[1] > 1:
        raise ValueError(
            "Algorithm 2 as printed needs equal microbatches in any order: use fill_bubbles"
        )
    gaps = problem.gaps
    spaces = [make_space(tuple(gaps.ranks[r] for r in group)) for group in problem.groups]
    forward = _direction(problem, problem.forward, spaces, gaps.need_ns, fine)
    backward = []
    if len(problem.backward.resource):
        left = [_left(lane).mirrored(gaps.step_ns) for lane in forward]
        need = gaps.step_ns - gaps.gradient_ns[::-1]
        mirror = mirrored_work(problem.backward)
        backward = _direction(problem, mirror, left, need, fine)
    return check_filled(_joined(problem, forward, backward))


def _direction(
    problem: FillProblem, work: StageKernels, spaces: list[Space], need: Ints, fine: bool
) -> list[_Lane]:
    """Fill one direction of all pipelines; return them."""
    count, pipelines = problem.microbatches, problem.pipelines
    lanes = []
    known: dict[tuple[int, int], _Lane] = {}
    for at in range(pipelines):
        size = count * (at + 1) // pipelines - count * at // pipelines
        space = at if len(spaces) == pipelines else at // problem.copies
        key = (space if len(spaces) < pipelines else at, size)
        # Pipelines of one space and one count fill alike: compute each only once.
        if key not in known:
            known[key] = _coarse(problem, work, spaces[space], at, size)
        ready = known[key]
        lanes.append(_Lane(ready.space, size, ready.coarse, ready.extensions))
    while fine:
        # Move one microbatch of the most exposed pipeline between, if all stay in time.
        critical = max(lanes, key=lambda lane: lane.exposed)
        if not critical.exposed or critical.moved == critical.count:
            break
        at = lanes.index(critical)
        group = problem.groups[at // problem.copies]
        rows = np.zeros(critical.moved + 1, np.int64)
        found = fill(_between(critical.space), work, group, rows, 0, problem.hop_ns, int(need[-1]))
        ends = [int(e) for lane in lanes if lane is not critical for e in _done(lane)]
        ends += found.done.tolist()
        slack = need[len(need) - len(ends) :]
        if found.placed < len(rows) or (np.sort(ends) > slack).any():
            break
        critical.between, critical.moved = found, critical.moved + 1
    return lanes


def _done(lane: _Lane) -> list[int]:
    return [] if lane.between is None else lane.between.done.tolist()


def _coarse(problem: FillProblem, work: StageKernels, space: Space, at: int, size: int) -> _Lane:
    """Return a lane with, for every count, the extension with which the big bubble holds it."""
    group, hop = problem.groups[at // problem.copies], problem.hop_ns
    ends = _only_first(space)
    high = enough(problem, work, problem.microbatches)
    coarse: list[Placed | None] = [None]
    extensions = [0]
    for n in range(1, size + 1):
        rows = np.zeros(n, np.int64)

        def fits(extension: int, rows: Ints = rows) -> bool:
            return fill(ends, work, group, rows, extension, hop).placed == len(rows)

        extensions.append(least(fits, high, _TOLERANCE_NS))
        coarse.append(fill(ends, work, group, rows, extensions[-1], hop))
    return _Lane(space, size, coarse, extensions)


def _only_first(space: Space) -> Space:
    """Return only the gap at the beginning; results need not travel within it."""
    kind = space.kind.copy()
    kind[:, 1:] = -1
    return Space(space.start, space.end, kind, space.count)


def _between(space: Space) -> Space:
    """Return all but the gap at the beginning."""
    kind = space.kind.copy()
    kind[kind[:, 0] == FREE, 0] = -1
    return Space(space.start, space.end, kind, space.count)


def _left(lane: _Lane) -> Space:
    """Return the space that is free in a pipeline after its forwards."""
    first, between = lane.coarse[lane.count - lane.moved], lane.between
    start = lane.space.start.copy()
    if first is not None:
        start[:, 0] = first.left.start[:, 0]
    if between is not None:
        start[:, 1:] = between.left.start[:, 1:]
    return Space(start, lane.space.end, lane.space.kind, lane.space.count)


def _extension(lanes: list[_Lane]) -> int:
    return max((lane.exposed for lane in lanes), default=0)


def _times(lane: _Lane) -> tuple[Ints, Ints, list[int]]:
    """Return starts and ends of kernels, and arrivals, those in the big bubble first."""
    first = lane.coarse[lane.count - lane.moved]
    parts = [one for one in (first, lane.between) if one is not None]
    if not parts:
        return np.zeros((0,) * 3, np.int64), np.zeros((0,) * 3, np.int64), []
    return (
        np.concatenate([one.starts for one in parts]),
        np.concatenate([one.starts + one.took for one in parts]),
        [int(end) for one in parts for end in one.done],
    )


def _joined(problem: FillProblem, forward: list[_Lane], backward: list[_Lane]) -> FilledSchedule:
    """Return one schedule of both directions, with places for all microbatches."""
    step = problem.gaps.step_ns
    ahead, behind = _extension(forward), _extension(backward)
    ahead_at = [_times(lane) for lane in forward]
    back_at = [_times(lane) for lane in backward]
    done = [end for _, _, row in ahead_at for end in row]
    last = (
        [step - end for _, _, row in back_at for end in row[::-1]]
        if backward
        else [NEVER] * len(done)
    )
    place = match(done, last, problem.gaps.need_ns, problem.gaps.gradient_ns)
    if place is None:
        raise ValueError("Algorithm 2 placed forwards and backwards that no order can satisfy")
    pipelines, at = [], 0
    for number, lane in enumerate(forward):
        group = problem.groups[number // problem.copies]
        own = place[at : at + lane.count]
        at += lane.count
        back = back_end = np.zeros((lane.count, len(group), 0), np.int64)
        if backward and lane.count:
            # Backwards were filled in mirrored time: turn them round.
            back_end, back = (step - one[::-1, :, ::-1] for one in back_at[number][:2])
        shape = (lane.count, len(group), len(problem.forward.resource))
        begin, end = (one.reshape(shape) for one in ahead_at[number][:2])
        times = begin, back, end, back_end
        pipelines.append(EncoderPipeline(group, number % problem.copies, own, *times))
    return FilledSchedule(problem, tuple(pipelines), ahead, behind)

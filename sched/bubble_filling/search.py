"""The bubble scheduler: a search over partitions of the microbatches for least exposed time.

After Optimus (2025), section 4.2, Algorithm 2, but: no enumeration of partitions (prefixes, see
pipelines.py), the exposed time found by bisection instead of moving one microbatch after
another, parts of a microbatch may be exposed, both directions agree on each microbatch's place
(`match`), and microbatches of a fixed order may differ. First the even partition; if some time
stays exposed, single microbatches change pipelines while that helps.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .gaps import COMMUNICATING, FREE
from .instance import EncoderPipeline, FilledSchedule, FillProblem, StageKernels
from .kernels import check_work
from .pipelines import NEVER, Placed, Space, enough, fill, least, make_space, match, mirrored_work

# The microbatches of each pipeline, in the order of forwards and of backwards.
Lists = tuple[tuple[int, ...], ...]
# About what Python takes for a kernel of a microbatch and a stage, without compiled walks
_PLAIN_S = 6e-5


@dataclass(frozen=True, slots=True)
class Effort:
    """Search effort: tolerance of the exposed time, and the number of single moves to try."""

    tolerance_ns: int = 50_000
    moves: int = 12


def fill_bubbles(problem: FillProblem, effort: Effort | None = None) -> FilledSchedule:
    """Return the best filled schedule found.

    There always is one: work that does not fit runs before and after the step. If the step has no
    bubbles all work does, and the schedule's note says so.
    """
    count, stages = problem.microbatches, len(problem.groups[0])
    kernels = len(problem.forward.resource) + len(problem.backward.resource)
    task = f"filling {count} microbatches of {kernels} kernels on {stages} stages"
    check_work(task, _PLAIN_S * count * kernels * stages)
    search = _Search(problem, effort or Effort())
    best: FilledSchedule | None = None
    for lists in search.candidates():
        filled = search.evaluate(lists, best)
        if best is None or (filled is not None and filled.step_ns < best.step_ns):
            best = filled
        # Nothing is shorter than the step without encoders.
        if best is not None and best.step_ns == problem.gaps.step_ns:
            break
    if best is None:
        raise ValueError("no order of the microbatches meets the gradients")
    best = search.improve(best)
    if not any(sum(problem.gaps.free_ns(kind)) for kind in (FREE, COMMUNICATING)):
        best = replace(best, note="the step has no bubbles: encoders run before and after it")
    return best


def _sizes(sizes: Sequence[int]) -> Lists:
    """Return lists of `sizes[k]` microbatches for pipeline k; all of them are equal."""
    until = np.cumsum([0, *sizes]).tolist()
    return tuple(tuple(range(a, b)) for a, b in itertools.pairwise(until))


class _Search:
    """The search on one problem: its free spaces, and the schedules tried on them."""

    def __init__(self, problem: FillProblem, effort: Effort) -> None:
        self.problem, self.effort = problem, effort
        self.spaces = [
            make_space(tuple(problem.gaps.ranks[rank] for rank in group))
            for group in problem.groups
        ]
        self.mirrored = mirrored_work(problem.backward)

    def candidates(self) -> Iterator[Lists]:
        """Yield lists worth trying, most promising first.

        Those of a fixed order may be unequal: longest first to the least loaded pipeline, then in
        the given order. Others are alike, so that only their numbers matter.
        """
        if not self.problem.fixed:
            count, pipelines = self.problem.microbatches, self.problem.pipelines
            until = [count * k // pipelines for k in range(pipelines + 1)]
            yield _sizes([b - a for a, b in itertools.pairwise(until)])
            return
        microbatches = list(range(self.problem.microbatches))
        cost = [self._cost(microbatch) for microbatch in microbatches]
        longest = sorted(microbatches, key=lambda m: (-cost[m], m))
        for order in dict.fromkeys((tuple(longest), tuple(microbatches))):
            yield tuple(tuple(sorted(row)) for row in self._deal(order, cost))

    def _cost(self, microbatch: int) -> int:
        problem = self.problem
        both = (work for work in (problem.forward, problem.backward) if len(work.resource))
        return sum(int(work.per_microbatch_ns[problem.row(microbatch, work)]) for work in both)

    def _deal(self, order: Sequence[int], cost: Sequence[int]) -> list[list[int]]:
        rows: list[list[int]] = [[] for _ in range(self.problem.pipelines)]
        loads = [0] * len(rows)
        most = self.problem.most or self.problem.microbatches
        for microbatch in order:
            open_ = [k for k in range(len(rows)) if len(rows[k]) < most]
            to = min(open_, key=lambda k: (loads[k], k))
            rows[to].append(microbatch)
            loads[to] += cost[microbatch]
        return rows

    def evaluate(self, lists: Lists, best: FilledSchedule | None = None) -> FilledSchedule | None:
        """Return the schedule of least exposed time, or None where it is no better than `best`."""
        problem, gaps = self.problem, self.problem.gaps
        if any(len(row) > (problem.most or len(row)) for row in lists):
            return None
        count = max(map(len, lists))
        high = enough(problem, problem.forward, count)
        # Bisect no further than the best so far: anything longer is of no use.
        limit = high if best is None else best.before_ns + best.after_ns
        if limit < high and not self._forward_fits(lists, limit):
            return None
        fits = functools.partial(self._forward_fits, lists)
        before = least(fits, min(limit, high), self.effort.tolerance_ns)
        forward = self._forward(lists, before)
        done = self._by_microbatch(lists, forward)
        # Backwards go as late as possible into what forwards left: the same on a mirrored clock.
        spaces = [placed.left.mirrored(gaps.step_ns) for placed in forward]
        after = 0
        if len(problem.backward.resource):
            high = enough(problem, problem.backward, count)
            limit = high if best is None else limit - before
            if self._places(lists, done, spaces, limit) is None:
                return None
            after = least(
                lambda extension: self._places(lists, done, spaces, extension) is not None,
                limit,
                self.effort.tolerance_ns,
            )
        placed = self._places(lists, done, spaces, after)
        if placed is None:
            return None
        pipelines = self._pipelines(lists, forward, placed[1], placed[0])
        return FilledSchedule(problem, pipelines, before, after)

    def _forward(self, lists: Lists, extension: int, stop: int = NEVER) -> list[Placed]:
        spaces = [space for space in self.spaces for _ in range(self.problem.copies)]
        return self._run(self.problem.forward, lists, extension, stop, spaces)

    def _run(
        self, work: StageKernels, lists: Lists, extension: int, stop: int, spaces: Sequence[Space]
    ) -> list[Placed]:
        """Place every pipeline's microbatches; equal work in one space is placed once."""
        problem = self.problem
        known: dict[tuple[int, tuple[int, ...]], Placed] = {}
        result = []
        for pipeline, (microbatches, space) in enumerate(zip(lists, spaces, strict=True)):
            rows = tuple(problem.row(m, work) for m in microbatches)
            key = (id(space), rows)
            if key not in known:
                group = problem.groups[pipeline // problem.copies]
                index = np.array(rows, np.int64)
                known[key] = fill(space, work, group, index, extension, problem.hop_ns, stop)
                if known[key].placed < len(rows):
                    return []
            result.append(known[key])
        return result

    def _forward_fits(self, lists: Lists, extension: int) -> bool:
        need = self.problem.gaps.need_ns
        placed = self._forward(lists, extension, int(need[-1]))
        if not placed:
            return False
        done = self._by_microbatch(lists, placed)
        ends = done if self.problem.fixed else sorted(done)
        return all(end <= by for end, by in zip(ends, need.tolist(), strict=True))

    def _by_microbatch(self, lists: Lists, placed: Sequence[Placed]) -> list[int]:
        done = [0] * self.problem.microbatches
        for row, pipeline in zip(lists, placed, strict=True):
            for microbatch, end in zip(row, pipeline.done.tolist(), strict=True):
                done[microbatch] = end
        return done

    def _places(
        self, lists: Lists, done: list[int], spaces: Sequence[Space], extension: int
    ) -> tuple[tuple[int, ...], list[Placed]] | None:
        """Return a place for each microbatch with backwards extended by `extension`, or None."""
        gaps, count = self.problem.gaps, self.problem.microbatches
        if not len(self.problem.backward.resource):
            place = self._choose(done, [NEVER] * count)
            return None if place is None else (place, [])
        lists = tuple(row[::-1] for row in lists)
        stop = gaps.step_ns - int(gaps.gradient_ns[0])
        placed = self._run(self.mirrored, lists, extension, stop, spaces)
        if not placed:
            return None
        last = [gaps.step_ns - end for end in self._by_microbatch(lists, placed)]
        place = self._choose(done, last)
        return None if place is None else (place, placed)

    def _choose(self, done: list[int], last: list[int]) -> tuple[int, ...] | None:
        gaps = self.problem.gaps
        if not self.problem.fixed:
            return match(done, last, gaps.need_ns, gaps.gradient_ns)
        need, gradient = gaps.need_ns.tolist(), gaps.gradient_ns.tolist()
        good = all(map(int.__le__, done, need)) and all(map(int.__ge__, last, gradient))
        return tuple(range(len(done))) if good else None

    def _pipelines(
        self, lists: Lists, forward: list[Placed], backward: list[Placed],
        place: tuple[int, ...],
    ) -> tuple[EncoderPipeline, ...]:  # fmt: skip
        problem, step = self.problem, self.problem.gaps.step_ns
        result = []
        for at, row in enumerate(lists):
            back = back_end = np.zeros((len(row), len(problem.groups[0]), 0), np.int64)
            if backward:
                # On the mirrored clock kernels begin where they end.
                back_end = step - backward[at].starts[::-1, :, ::-1]
                back = back_end - backward[at].took[::-1, :, ::-1]
            result.append(
                EncoderPipeline(
                    ranks=problem.groups[at // problem.copies],
                    copy=at % problem.copies,
                    microbatches=tuple(place[m] for m in row),
                    forward=forward[at].starts,
                    backward=back,
                    forward_end=forward[at].starts + forward[at].took,
                    backward_end=back_end,
                )
            )
        return tuple(result)

    def improve(self, best: FilledSchedule) -> FilledSchedule:
        """Move single microbatches between pipelines while time stays exposed and it helps."""
        tried = 0
        seen: set[Lists] = set()
        better = True
        while better and best.step_ns > self.problem.gaps.step_ns:
            better = False
            for moved in self._neighbours(best):
                if moved in seen or tried >= self.effort.moves:
                    continue
                seen.add(moved)
                tried += 1
                filled = self.evaluate(moved, best)
                if filled is not None and filled.step_ns < best.step_ns:
                    best, better = filled, True
                    break
        return best

    def _neighbours(self, best: FilledSchedule) -> Iterator[Lists]:
        """Yield lists with one microbatch moved, from the fullest pipelines first."""
        sizes = [len(pipeline.microbatches) for pipeline in best.pipelines]
        for source, target in self._moves(sizes):
            if not self.problem.fixed:
                yield _sizes([n - (k == source) + (k == target) for k, n in enumerate(sizes)])
                continue
            for microbatch in best.pipelines[source].microbatches:
                rows = [list(pipeline.microbatches) for pipeline in best.pipelines]
                rows[source].remove(microbatch)
                rows[target].append(microbatch)
                yield tuple(tuple(sorted(row)) for row in rows)

    def _moves(self, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield (source, target) pipelines of different groups, fullest to emptiest first."""
        copies = self.problem.copies
        firsts = range(0, len(sizes), copies)
        sources = [max(range(at, at + copies), key=sizes.__getitem__) for at in firsts]
        targets = [min(range(at, at + copies), key=sizes.__getitem__) for at in firsts]
        pairs = [
            (a, b) for a in sources for b in targets if a // copies != b // copies and sizes[a]
        ]
        yield from sorted(pairs, key=lambda pair: sizes[pair[1]] - sizes[pair[0]])

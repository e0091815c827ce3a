"""The validator of filled schedules: all that this folder's tests fill passes it (conftest.py).

It does not depend on how schedules are made. It proves that a schedule is

- complete: each microbatch is on one pipeline;
- timed: each kernel takes its time;
- inside: each kernel lies in one stretch that allows it, within the step and its extensions;
- alone: no two encoder kernels overlap on a GPU;
- ordered: a microbatch's kernels follow each other, and its stages with the hop between;
- dependencies: EF_i <= F_i and EB_i >= B_i, hops included, for each microbatch;
- collectives: the first kernels wait for their parameters, the last leave time for gradients;
- memory: no stage holds more microbatches than fit.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from counterpoise.sched.bubble_filling.gaps import COMMUNICATING, COMPUTING, FREE, Ints
from counterpoise.sched.bubble_filling.instance import (
    EncoderPipeline,
    FilledSchedule,
    StageKernels,
)
from counterpoise.sched.checking import Problem


def check_filled(filled: FilledSchedule) -> FilledSchedule:
    """Return the schedule itself. Raises ValueError with the first problem found."""
    for found in filled_problems(filled):
        raise ValueError(f"the filled schedule is wrong ({found.proof}): {found.message}")
    return filled


def filled_problems(filled: FilledSchedule) -> Iterator[Problem]:
    """Yield all problems of a filled schedule."""
    found = list(_complete(filled))
    yield from found
    if found:
        return
    for pipeline in filled.pipelines:
        yield from _timed(filled, pipeline)
        yield from _ordered(filled, pipeline)
        yield from _dependencies(filled, pipeline)
        yield from _collectives(filled, pipeline)
        yield from _memory(filled, pipeline)
        for stage, rank in enumerate(pipeline.ranks):
            yield from _inside(filled, pipeline, stage, rank)


def _complete(filled: FilledSchedule) -> Iterator[Problem]:
    problem = filled.problem
    every = list(range(problem.microbatches))
    if sorted(x for p in filled.pipelines for x in p.microbatches) != every:
        yield Problem(
            "complete", f"the pipelines' microbatches are not 0 to {every[-1]}, each once"
        )
    lanes = [(p.ranks, p.copy) for p in filled.pipelines]
    if len(set(lanes)) != len(lanes) or {p.ranks for p in filled.pipelines} - set(problem.groups):
        yield Problem("complete", "pipelines share GPUs, or use ranks outside the planned groups")
    for p in filled.pipelines:
        backward = len(problem.backward.resource)
        want = (len(p.microbatches), len(p.ranks))
        if p.forward.shape != (*want, len(problem.forward.resource)) or p.backward.shape != (
            *want,
            backward,
        ):
            yield Problem("complete", f"pipeline {p.ranks} does not have a start for every kernel")


def _ends(filled: FilledSchedule, p: EncoderPipeline) -> tuple[Ints, Ints]:
    """Return the ends of each forward and backward kernel of a pipeline."""
    problem = filled.problem
    return (
        p.forward + lengths(problem.forward, p.ranks, p.microbatches),
        p.backward + lengths(problem.backward, p.ranks, p.microbatches),
    )


def _timed(filled: FilledSchedule, p: EncoderPipeline) -> Iterator[Problem]:
    for found, said in zip(_ends(filled, p), (p.forward_end, p.backward_end), strict=True):
        if (found != said).any():
            yield Problem("timed", f"kernels of pipeline {p.ranks} do not take what they do")


def _ordered(filled: FilledSchedule, p: EncoderPipeline) -> Iterator[Problem]:
    forward, backward = _ends(filled, p)
    hop = filled.problem.hop_ns
    for what, start, end in (("forward", p.forward, forward), ("backward", p.backward, backward)):
        if not start.size:
            continue
        if (start[:, :, 1:] < end[:, :, :-1]).any():
            yield Problem("ordered", f"{what} kernels of pipeline {p.ranks} are out of order")
        first, last = start[:, :, 0], end[:, :, -1]
        late = (
            first[:, 1:] < last[:, :-1] + hop
            if what == "forward"
            else (first[:, :-1] < last[:, 1:] + hop)
        )
        if late.any():
            yield Problem(
                "ordered", f"a {what} stage of pipeline {p.ranks} begins before its input"
            )


def _dependencies(filled: FilledSchedule, p: EncoderPipeline) -> Iterator[Problem]:
    problem = filled.problem
    if not p.microbatches:
        return
    forward, _ = _ends(filled, p)
    own = np.array(p.microbatches, np.int64)
    late = forward[:, -1, -1] + problem.hop_ns > problem.gaps.need_ns[own]
    for at in np.flatnonzero(late).tolist():
        yield Problem(
            "dependencies", f"microbatch {p.microbatches[at]} is needed before it is there"
        )
    if not p.backward.size:
        return
    early = p.backward[:, -1, 0] < problem.gaps.gradient_ns[own] + problem.hop_ns
    for at in np.flatnonzero(early).tolist():
        what = f"microbatch {p.microbatches[at]} goes back before its gradient is there"
        yield Problem("dependencies", what)


def _collectives(filled: FilledSchedule, p: EncoderPipeline) -> Iterator[Problem]:
    problem = filled.problem
    step = problem.gaps.step_ns
    if p.forward.size:
        ready = problem.forward.release - filled.before_ns
        if (p.forward[:1] < ready).any():
            yield Problem(
                "collectives", f"pipeline {p.ranks} begins before its parameters are there"
            )
    if p.backward.size:
        _, end = _ends(filled, p)
        if (end[-1:] > step + filled.after_ns - problem.backward.release).any():
            yield Problem("collectives", f"pipeline {p.ranks} leaves no time to reduce gradients")


def _memory(filled: FilledSchedule, p: EncoderPipeline) -> Iterator[Problem]:
    most = filled.problem.most
    if most is None or len(p.microbatches) <= most:
        return
    _, end = _ends(filled, p)
    for stage in range(len(p.ranks)):
        took = [(int(t), 1) for t in p.forward[:, stage, 0]] if p.forward.size else []
        gave = [(int(t), -1) for t in end[:, stage, -1]] if end.size else []
        # At equal times a release sorts before a take.
        held = np.cumsum([step for _, step in sorted(took + gave)])
        if held.max(initial=0) > most:
            what = (
                f"stage {stage} of pipeline {p.ranks} holds {held.max()} microbatches, not {most}"
            )
            yield Problem("memory", what)


def _inside(filled: FilledSchedule, p: EncoderPipeline, stage: int, rank: int) -> Iterator[Problem]:
    problem, gaps = filled.problem, filled.problem.gaps
    forward, backward = _ends(filled, p)
    parts = ((p.forward, forward, problem.forward), (p.backward, backward, problem.backward))
    start = np.concatenate([s[:, stage].ravel() for s, _, _ in parts])
    end = np.concatenate([e[:, stage].ravel() for _, e, _ in parts])
    resource = np.concatenate([np.tile(work.resource, len(s)) for s, _, work in parts])
    order = np.argsort(start, kind="stable")
    order = order[end[order] > start[order]]
    start, end, resource = start[order], end[order], resource[order]
    if (start[1:] < end[:-1]).any():
        yield Problem("alone", f"two encoder kernels overlap on rank {rank}")
    one = gaps.ranks[rank]
    opens, closes = one.start.copy(), one.end.copy()
    opens[0] -= filled.before_ns
    closes[-1] += filled.after_ns
    at = np.searchsorted(opens, start, side="right") - 1
    # A kernel that begins where an empty stretch does belongs to the stretch that holds it.
    allowed = (one.kind[at] == FREE) | (
        one.kind[at] == np.where(resource == 0, COMMUNICATING, COMPUTING)
    )
    bad = (at < 0) | (end > closes[at]) | ~allowed
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        what = f"a kernel from {start[first]} to {end[first]} ns on rank {rank} is in no bubble"
        yield Problem("inside", what)


def lengths(work: StageKernels, ranks: Sequence[int], order: Sequence[int]) -> Ints:
    """Return what kernels take (microbatches in `order`, stages, kernels)."""
    rows = order if work.ns.shape[1] > 1 else [0] * len(order)
    lanes = list(ranks) if work.ns.shape[0] > 1 else [0] * len(ranks)
    return work.ns[lanes][:, np.array(rows, np.int64)].transpose(1, 0, 2)

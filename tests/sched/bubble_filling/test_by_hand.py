"""A job so small that its plans can be worked out by hand, and filled in no time."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from counterpoise.sched.bubble_filling.choose import fitting, scan
from counterpoise.sched.bubble_filling.encoder_plans import (
    EncoderPlan,
    Host,
    encoder_collectives,
    host_step,
    memory,
    plan_problem,
    plans,
)
from counterpoise.sched.bubble_filling.gaps import Ints
from counterpoise.sched.bubble_filling.instance import EncoderPipeline, FilledSchedule
from counterpoise.sched.bubble_filling.search import fill_bubbles
from counterpoise.sched.bubble_filling.setup import FillSetup, Kernel, KernelLayer, Stack, pieces
from tests.sched.bubble_filling.validate import filled_problems

US = 1000


def layer(name: str, us: int, **more: int) -> KernelLayer:
    """A layer that computes and then communicates, and twice as long backwards."""
    forward = (Kernel("gemm", "compute", us * US, True), Kernel("sum", "communication", us * 300))
    backward = tuple(replace(one, ns=2 * one.ns) for one in forward)
    return KernelLayer(name, forward, backward, **more)


SETUP = FillSetup(
    name="by hand",
    stages=4,
    chunks=1,
    microbatches=4,
    tensor=2,
    data=1,
    model=Stack(layer("llm", 100), 8),
    encoders={
        wide: (
            Stack(layer("large", 60, saved_bytes=1000, checkpoint_bytes=10), 4),
            Stack(layer("small", 20, saved_bytes=500, checkpoint_bytes=70), 8),
        )
        for wide in (1, 2)
    },
    hop_ns=5 * US,
    gather_ns=50 * US,
    scatter_ns=50 * US,
)


@cache
def filled() -> tuple[Host, FilledSchedule]:
    host = host_step(SETUP)
    return host, fill_bubbles(plan_problem(SETUP, EncoderPlan(2, 2), host))


def test_plans_have_all_divisors_of_the_language_models_sizes() -> None:
    # One chunk a rank has one warm-up.
    for setup, warmups in ((SETUP, "m"), (replace(SETUP, chunks=2), "mr")):
        found = {(p.stages, p.tensor, p.recompute, p.warmup) for p in plans(setup)}
        every = [(s, t, r, w) for s in (1, 2, 4) for t in (1, 2) for r in (0, 1) for w in warmups]
        assert len(plans(setup)) == len(found)
        assert sorted((s, t, int(r), w[0]) for s, t, r, w in found) == sorted(every)


@pytest.mark.parametrize(
    ("recompute", "a_microbatch"), [(False, 2 * 1000 + 4 * 500), (True, 2 * 10 + 4 * 70)]
)
def test_a_microbatch_keeps_what_its_layers_of_a_stage_keep(
    recompute: bool, a_microbatch: int
) -> None:
    plan = EncoderPlan(2, 2, recompute)
    host = host_step(SETUP, plan)
    assert memory(SETUP, plan, host).per_microbatch == a_microbatch
    large, small = SETUP.encoders[2]
    one = replace(SETUP, encoders={2: (large, replace(small, trainable=False))})
    assert memory(one, plan, host).per_microbatch == 2 * (10 if recompute else 1000)


def test_a_layer_of_unknown_size_has_no_parameters_to_gather() -> None:
    setup = replace(SETUP, encoder_gather_ns=10**12, encoder_scatter_ns=10**12)
    assert encoder_collectives(setup, EncoderPlan(1, 1)) == (0, 0)


def test_pieces_are_the_longest_that_fit_the_longest_bubble_of_communication() -> None:
    bubble = 2 * 100 * 300  # a forward has a bubble of half of that
    for parts, way in enumerate(fitting(SETUP), 1):
        for more, fits in ((0, True), (1, False)):
            size = replace(way, longest_ns=way.longest_ns + more)
            kernel = Kernel("long", "compute", 10 * size.longest_ns, True)
            assert (max(pieces(kernel, size)) <= bubble // parts) == fits


def test_plans_come_shortest_step_first() -> None:
    # The first has the shorter host, and more to hide: it computes every forward twice.
    two = [EncoderPlan(1, 1), EncoderPlan(1, 1, False, "reduced")]
    found = scan(replace(SETUP, chunks=2), prune=False, candidates=two)
    assert [one.plan for one in found.chosen] == two[::-1]
    assert found.chosen[0].host.gaps.step_ns > found.chosen[1].host.gaps.step_ns


def test_exposed_time_is_part_of_the_step_and_counts_against_efficiency() -> None:
    _, one = filled()
    exposed = one.problem.encoder_ns // 4
    late = replace(one, before_ns=exposed - 7, after_ns=7)
    assert late.step_ns == one.problem.gaps.step_ns + exposed
    assert late.efficiency == pytest.approx(0.75)
    assert replace(late, before_ns=4 * exposed).efficiency == 0


def proofs(problem: FilledSchedule) -> set[str]:
    return {found.proof for found in filled_problems(problem)}


def test_memory_is_given_back_by_the_end_of_a_backward() -> None:
    _, one = filled()
    problem = replace(one.problem, most=1, copies=9)
    shape, back = ((4, 2, len(w.resource)) for w in (problem.forward, problem.backward))

    def held_from(gap: int, first: int = 0) -> FilledSchedule:
        """One pipeline with every microbatch; the next begins `gap` ns after one has gone back.

        first: its first kernel begins that much earlier than the others.
        """
        span = 10**7
        at = np.arange(4, dtype=np.int64)[:, None, None] * span
        forward: Ints = np.broadcast_to(at, shape).copy()
        forward[:, :, 0] -= first
        backward: Ints = np.broadcast_to(at + span - gap, back).copy()
        backward[:, :, -1] -= problem.backward.ns[0, 0, -1]
        times = forward, backward, forward, backward
        pipeline = EncoderPipeline(one.pipelines[0].ranks, 0, (0, 1, 2, 3), *times)
        return replace(one, problem=problem, pipelines=(pipeline,))

    assert "memory" not in proofs(held_from(0))
    assert "memory" not in proofs(held_from(1))
    assert "memory" in proofs(held_from(-1))
    assert "memory" not in proofs(held_from(5, first=5))
    assert "memory" in proofs(held_from(4, first=5))

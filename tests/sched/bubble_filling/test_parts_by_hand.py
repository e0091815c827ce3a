"""Parts of bubble filling whose results are worked out by hand: gaps, causes, work, searches."""

from dataclasses import replace

import numpy as np
import pytest

from counterpoise.sched import schedule, simulate, unit_costs
from counterpoise.sched.bubble_filling.choose import scan, shared_hosts
from counterpoise.sched.bubble_filling.encoder_plans import (
    EncoderPlan,
    encoder_collectives,
    host_step,
    plans,
)
from counterpoise.sched.bubble_filling.filled_program import fill_program
from counterpoise.sched.bubble_filling.gaps import (
    COMMUNICATING,
    COMPUTING,
    FREE,
    Gaps,
    Stretches,
    find_gaps,
)
from counterpoise.sched.bubble_filling.pipelines import least
from counterpoise.sched.bubble_filling.setup import (
    FillSetup,
    Kernel,
    KernelLayer,
    Splitting,
    Stack,
    pieces,
)
from counterpoise.sched.bubble_filling.timeline import bubble_causes
from counterpoise.sched.ir.kinds import layer_kind
from counterpoise.sched.ir.program import Edge, Pass
from tests.sched.bubble_filling.test_by_hand import SETUP, filled

ONE = (Kernel("k", "compute", 1),)


def test_kernels_are_stretched_to_the_time_that_their_pass_takes() -> None:
    timeline = simulate(schedule("gpipe", ranks=1, microbatches=1), unit_costs(31, 60))
    inside = (Kernel("a", "compute", 10), Kernel("b", "communication", 20))
    (one,) = find_gaps(timeline, {"F": inside, "B": inside}).ranks
    busy = one.kind != FREE
    assert one.start[busy].tolist() == [0, 10, 31, 51]
    assert one.end[busy].tolist() == [10, 31, 51, 91]
    assert one.kind[busy].tolist() == [COMPUTING, COMMUNICATING] * 2


@pytest.mark.parametrize(
    ("ends", "warmup", "steady", "cooldown"),
    [((10,), 10, 0, 0), ((4, 10), 4, 0, 6), ((1, 3, 10), 1, 2, 7)],
)
def test_a_bubble_counts_once(
    ends: tuple[int, ...], warmup: int, steady: int, cooldown: int
) -> None:
    end = np.array(ends, np.int64)
    start = np.concatenate(([0], end[:-1]))
    free = Stretches(start, end, np.full(len(end), FREE))
    nothing = np.empty(0, np.int64)
    idle = replace(
        simulate(schedule("gpipe", ranks=1, microbatches=1), unit_costs(1, 2)), ranks=((),)
    )
    (one,) = bubble_causes(Gaps((free,), nothing, nothing, 10), idle)
    found = (one["warmup_ns"], one["steady_ns"], one["cooldown_ns"])
    assert found == (warmup, steady, cooldown)
    assert sum(one.values()) == 10


def test_what_is_not_given_takes_no_time() -> None:
    tiny = Stack(KernelLayer("tiny", ONE, ONE), 1)
    setup = FillSetup("tiny", 1, 1, 1, 1, 1, tiny, {1: (tiny,)})
    # forward, the same again, and backward
    assert host_step(setup).timeline.makespan_ns == 3


@pytest.mark.parametrize("least_ns", [0, 1, 2, 63])
def test_the_least_extension_that_fits(least_ns: int) -> None:
    assert least(lambda ns: ns >= least_ns, 64, 1) == least_ns


def test_steps_are_kept_by_warm_up_where_encoders_have_no_collectives() -> None:
    hosts = shared_hosts(SETUP)
    assert hosts(EncoderPlan(1, 1)) is hosts(EncoderPlan(2, 2, False))
    assert hosts(EncoderPlan(1, 1)) is not hosts(EncoderPlan(1, 1, warmup="reduced"))


def test_a_plan_is_skipped_when_its_step_is_as_long_as_the_best_so_far() -> None:
    large, _ = SETUP.encoders[2]
    sized = {2: (replace(large, layer=replace(large.layer, parameters=10**6)),)}
    setup = replace(SETUP, encoders=sized, data=2, encoder_gather_ns=10**9)
    every = scan(setup, prune=False)
    took = {one.plan: (one.host.gaps.step_ns, one.filled.step_ns) for one in every.chosen}
    order = sorted(took, key=lambda p: (took[p][0], -p.tensor, p.stages))
    skipped = sum(
        any(took[before][1] <= took[plan][0] for before in order[:at])
        for at, plan in enumerate(order)
    )
    assert len(took) == len(plans(setup))
    assert scan(setup).skipped == skipped > 0


def test_no_plan_is_filled_once_the_best_is_as_short_as_the_model_alone() -> None:
    ways = [EncoderPlan(2, 2), EncoderPlan(4, 2), EncoderPlan(2, 2, False)]
    tiny = Stack(KernelLayer("tiny", ONE, ONE), 4)
    found = scan(replace(SETUP, encoders={2: (tiny,)}), candidates=ways)
    assert found.best.filled.step_ns == found.best.host.gaps.step_ns
    assert (len(found.chosen), found.skipped) == (1, 2)


def test_collectives_take_their_time_for_each_parameter_that_a_gpu_holds() -> None:
    large, small = SETUP.encoders[2]
    sized = replace(large, layer=replace(large.layer, parameters=10**9))
    frozen = replace(small, layer=replace(small.layer, parameters=10**9), trainable=False)
    setup = replace(SETUP, encoders={2: (sized, frozen)})
    # not modelled unless they are given
    assert (setup.encoder_gather_ns, setup.encoder_scatter_ns) == (0, 0)
    setup = replace(setup, encoder_gather_ns=10**9, encoder_scatter_ns=10**9)
    # 4 and 8 billion parameters over 8 GPUs; of those only the 4 have gradients.
    assert encoder_collectives(setup, EncoderPlan(4, 2)) == (1_500_000_000, 500_000_000)


def test_pieces_need_no_launch_and_may_be_as_fast_as_the_whole() -> None:
    assert pieces(Kernel("k", "compute", 30, True), Splitting(10, 0, 0)) == (10, 10, 10)
    # by default a fifth longer, and a launch of 10 us
    whole = Kernel("k", "compute", 400_000, True)
    assert pieces(whole, Splitting(120_000)) == (130_000,) * 4
    assert pieces(Kernel("k", "compute", 30, True), Splitting(30)) == (30,)  # whole: no launch more
    for wrong in ((0, 0, 0), (1, -1, 0), (1, 0, -1)):
        with pytest.raises(ValueError, match="the others 0 or more"):
            Splitting(*wrong)


def test_gradients_go_from_an_encoders_first_layer_there_to_its_last_one_before() -> None:
    host, one = filled()
    edges = fill_program(host, one).edges
    # two layers of the first encoder and four of the second on each of two ranks
    for p in one.pipelines:
        before, after = p.ranks
        for microbatch in p.microbatches:
            for first, last in ((0, 1), (2, 5)):
                source = Pass(after, layer_kind("EB", first), microbatch)
                target = Pass(before, layer_kind("EB", last), microbatch)
                assert Edge(source, target) in edges
                source = Pass(before, layer_kind("EF", last), microbatch)
                target = Pass(after, layer_kind("EF", first), microbatch)
                assert Edge(source, target) in edges

"""Plans from measured times, and replays of them, on the small job of test_by_hand.py."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.bubbles.drift import jittered, replan
from benchmarks.bubbles.replay import (
    GUEST_COMPUTE,
    GUEST_LINKS,
    HOST_COMPUTE,
    HOST_LINKS,
    Kernels,
    filled_kernels,
    host_kernels_graph,
    measured_host,
)
from counterpoise.sched.bubble_filling.encoder_plans import (
    EncoderPlan,
    Host,
    host_step,
    plan_problem,
)
from counterpoise.sched.bubble_filling.gaps import Ints
from counterpoise.sched.bubble_filling.instance import FilledSchedule
from counterpoise.sched.bubble_filling.search import fill_bubbles
from tests.sched.bubble_filling.test_by_hand import SETUP, filled

STREAMS = ((HOST_COMPUTE, GUEST_COMPUTE), (HOST_LINKS, GUEST_LINKS))


def test_a_time_without_jitter_is_itself() -> None:
    assert jittered(np.array([1, 7]), 0.0, 1).tolist() == [1, 7]


def test_an_encoder_kernel_is_planned_with_the_mean_of_its_microbatches_and_steps() -> None:
    host, one = filled()
    kernels = filled_kernels(host, one)
    slow = kernels.ns.copy()
    at = kernels.host
    for p in one.pipelines:
        # In one of two steps forwards of the first of two microbatches take four times as long.
        slow[at : at + p.forward[0].size] *= 4
        at += p.forward.size + p.backward.size
    _, again = replan(host, one, kernels, [kernels.ns, slow])
    planned, new = one.problem, again.problem
    assert new.forward.ns.shape == (SETUP.stages, 1, len(planned.forward.resource))
    assert (new.forward.ns == planned.forward.ns * 7 // 4).all()
    assert (new.backward.ns == planned.backward.ns).all()


def test_kernels_wait_for_a_hop_where_one_comes_from_another_stage() -> None:
    host, one = filled()
    kernels = filled_kernels(host, one)
    first, handed_on, at = list[int](), list[int](), kernels.host
    for p in one.pipelines:
        ahead = at + np.arange(p.forward.size).reshape(p.forward.shape)
        back = ahead.max() + 1 + np.arange(p.backward.size).reshape(p.backward.shape)
        first += back[:, -1, 0].tolist()
        # by the last kernel of each stage but the last one, in either direction
        handed_on += [*ahead[:, :-1, -1].ravel(), *back[:, 1:, -1].ravel()]
        at = int(back.max()) + 1
    # what takes a hop; streams' order takes no time
    hop, source = kernels.lag > 0, kernels.source
    guest = kernels.target >= kernels.host
    assert sorted(kernels.target[hop & guest & (source < kernels.host)]) == first
    assert sorted(source[hop & guest & (source >= kernels.host)]) == sorted(handed_on)


@pytest.mark.parametrize("factor", [1, 3])
def test_a_measured_step_has_the_times_that_were_measured(factor: int) -> None:
    # without hops and collectives, whose times are not kernels', all of a step scales
    host = host_step(replace(SETUP, hop_ns=0))
    alone, _ = host_kernels_graph(host)
    found = measured_host(host, alone.ns * factor)
    assert found.timeline.makespan_ns == factor * host.timeline.makespan_ns
    for before, after in zip(host.timeline.ranks, found.timeline.ranks, strict=True):
        assert [(s.what, s.start_ns, s.end_ns) for s in after] == [
            (s.what, factor * s.start_ns, factor * s.end_ns) for s in before
        ]
    assert (found.gaps.need_ns == factor * host.gaps.need_ns).all()
    assert (found.gaps.gradient_ns == factor * host.gaps.gradient_ns).all()


@cache
def two_wide() -> tuple[Host, FilledSchedule]:
    """Two pipelines of encoders side by side on each pair of ranks."""
    host = host_step(SETUP)
    return host, fill_bubbles(plan_problem(SETUP, EncoderPlan(2, 1), host))


def late(kernels: Kernels, slower: tuple[int, ...]) -> Ints:
    """Return the times of a step in which kernels of some streams take 50 times as long."""
    return np.where(np.isin(kernels.what, slower), 50 * kernels.ns, kernels.ns)


@pytest.mark.parametrize("slower", [(HOST_COMPUTE, HOST_LINKS), (GUEST_COMPUTE, GUEST_LINKS), ()])
@pytest.mark.parametrize("job", [filled, two_wide])
def test_streams_keep_the_planned_order_whoever_is_slow(
    job: Callable[[], tuple[Host, FilledSchedule]], slower: tuple[int, ...]
) -> None:
    host, one = job()
    for only in (None, 1):
        # also where a GPU has nothing of the first of two pipelines
        rows = tuple(p for p in one.pipelines if only is None or p.copy == only)
        if not rows:
            continue
        kernels = filled_kernels(host, replace(one, pipelines=rows))
        guests = np.arange(len(kernels.ns)) - kernels.host
        sizes = [p.forward.size + p.backward.size for p in rows]
        lane = np.repeat([p.copy for p in rows], sizes)[np.maximum(guests, 0)]
        start, end = kernels.run(late(kernels, slower))
        for rank in range(SETUP.stages):
            here = kernels.rank == rank
            for copy in {p.copy for p in rows if rank in p.ranks}:
                mine = (guests >= 0) & (lane == copy)
                for theirs, ours in STREAMS:
                    stream = (kernels.what == theirs) | (mine & (kernels.what == ours))
                    in_order(kernels, np.flatnonzero(here & stream), start, end)
                # an encoder's kernels wait for each other, whatever they use
                in_order(kernels, np.flatnonzero(here & mine), start, end)


def in_order(kernels: Kernels, nodes: Ints, start: Ints, end: Ints) -> None:
    """Check that kernels run one after another as planned."""
    nodes = nodes[np.argsort(kernels.planned[nodes], kind="stable")]
    assert len(nodes) > 1
    assert (end[nodes][:-1] <= start[nodes][1:]).all()


def test_what_is_planned_behind_a_gpus_first_kernel_waits_for_it() -> None:
    host, one = filled()
    p = one.pipelines[0]
    # A microbatch that is wanted last: its kernels begin with the language model's first one.
    _, stages, count = p.forward.shape
    begin = int(host.gaps.need_ns[0]) + 1
    last = (host.gaps.need_ns[-1] - begin) // (stages * count)
    forward = begin + last * np.arange(stages * count).reshape(1, stages, count)
    backward = one.step_ns + np.arange(p.backward[0].size)[::-1].reshape(1, stages, -1)[..., ::-1]
    alone = replace(
        p, microbatches=(3,), backward_order=(3,), position=(3,), forward=forward, backward=backward
    )
    kernels = filled_kernels(host, replace(one, pipelines=(alone,)))
    start, end = kernels.run(late(kernels, (HOST_COMPUTE, HOST_LINKS)))
    first = np.flatnonzero(kernels.what == HOST_COMPUTE)[0]
    guest = np.flatnonzero(kernels.what == GUEST_COMPUTE)[0]
    assert kernels.rank[first] == kernels.rank[guest] == 0
    assert kernels.planned[first] < kernels.planned[guest] < kernels.planned[first + 2]
    assert start[guest] >= end[first] > kernels.planned[guest]

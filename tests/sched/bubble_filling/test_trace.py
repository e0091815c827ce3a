"""Gaps from measured traces."""

import json
from dataclasses import replace

import pytest

from counterpoise.sched.bubble_filling.encoder_plans import EncoderPlan, host_step, plan_problem
from counterpoise.sched.bubble_filling.gaps import COMMUNICATING, COMPUTING, FREE
from counterpoise.sched.bubble_filling.presets import case_setup
from counterpoise.sched.bubble_filling.search import fill_bubbles
from counterpoise.sched.bubble_filling.timeline import bubble_causes
from counterpoise.sched.bubble_filling.trace import read_trace


def event(name: str, start: float, length: float, device: int = 0, cat: str = "kernel") -> object:
    return {
        "ph": "X",
        "name": name,
        "cat": cat,
        "ts": start,
        "dur": length,
        "pid": 1,
        "args": {"device": device},
    }


def trace(*events: object) -> str:
    return json.dumps({"traceEvents": list(events)})


STEP = (
    event("ncclDevKernel_AllGather", 100, 50),
    event("gemm", 150, 10),
    event("ncclDevKernel_ReduceScatter", 158, 6),
    event("gemm", 164, 10),
    event("ncclDevKernel_SendRecv", 176, 4),
    event("gemm", 180, 20),
    event("ncclDevKernel_ReduceScatter", 200, 30),
    event("0F0", 149, 27, cat="user_annotation"),
    event("0B0", 180, 20, cat="user_annotation"),
)


def test_a_trace_is_cut_into_what_guests_may_do() -> None:
    gaps = read_trace(trace(*STEP))
    one = gaps.ranks[0]
    told = [
        (a // 1000, b // 1000, k)
        for a, b, k in zip(one.start.tolist(), one.end.tolist(), one.kind.tolist(), strict=True)
    ]
    assert told == [
        (0, 50, FREE),
        (50, 60, COMPUTING),
        (60, 64, COMMUNICATING),
        (64, 74, COMPUTING),
        (74, 80, FREE),
        (80, 100, COMPUTING),
        (100, 130, FREE),
    ]
    assert (gaps.need_ns.tolist(), gaps.gradient_ns.tolist()) == ([49_000], [100_000])
    assert gaps.step_ns == 130_000
    assert sum(sum(causes.values()) for causes in bubble_causes(gaps)) == 90_000


def test_every_device_is_a_rank_in_numerical_order() -> None:
    more = [event("gemm", 150 + d, 10, device=d) for d in (10, 2)]
    gaps = read_trace(trace(*STEP, *more))
    assert [int(one.end[0]) for one in gaps.ranks] == [50_000, 52_000, 60_000]


def test_a_simulated_step_written_as_kernels_has_the_simulated_gaps() -> None:
    setup = case_setup("A")
    host = host_step(setup)
    events = []
    for rank, one in enumerate(host.gaps.ranks):
        rows = zip(one.start.tolist(), one.end.tolist(), one.kind.tolist(), strict=True)
        names = {COMPUTING: "gemm", COMMUNICATING: "nccl_gather"}
        events += [event(names[k], a / 1000, (b - a) / 1000, rank) for a, b, k in rows if k != FREE]
    events.append(event("nccl_gather", 0, 1, 0))
    events.append(event("nccl_scatter", host.gaps.step_ns / 1000 - 1, 1, 0))
    for at, (need, back) in enumerate(
        zip(host.gaps.need_ns.tolist(), host.gaps.gradient_ns.tolist(), strict=True)
    ):
        events.append(event(f"0F{at}", need / 1000, 1, cat="user_annotation"))
        events.append(event(f"0B{at}", back / 1000 - 1, 1, cat="user_annotation"))
    gaps = read_trace(trace(*events))
    assert gaps.step_ns == host.gaps.step_ns
    assert (gaps.need_ns == host.gaps.need_ns).all()
    assert gaps.free_ns(COMMUNICATING)[1] <= host.gaps.free_ns(COMMUNICATING)[1]
    one_plan = plan_problem(setup, EncoderPlan(2, 8), replace(host, gaps=gaps))
    assert fill_bubbles(one_plan).step_ns >= gaps.step_ns


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("{}", "no traceEvents"),
        (trace(), "no kernels"),
        (trace(event("gemm", 0, 1)), "does not name stage 0's passes"),
        (trace(event("ncclAllGather", 0, 1)), "computes nothing"),
        (trace({"ph": "X", "cat": "kernel", "name": "a"}), "without ts and dur"),
        (trace(*STEP[:-1]), "does not name"),
    ],
)
def test_traces_that_cannot_be_used(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_trace(text)

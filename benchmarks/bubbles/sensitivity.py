"""Measures how the hidden share depends on a job's properties, one changed at a time."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from counterpoise.sched.bubble_filling.choose import fitting, scan, shared_hosts
from counterpoise.sched.bubble_filling.encoder_plans import EncoderPlan
from counterpoise.sched.bubble_filling.presets import (
    CASES,
    SET_R_DEVICE,
    case_setup,
    fitted_device,
    make_setup,
)
from counterpoise.sched.bubble_filling.setup import FillSetup, total_ns

EXPOSED_S = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.535, 0.6)
# NVLink bandwidths (GB/s) that make tensor-parallel bubbles of about 100 to 500 us.
LINKS = (1000, 700, 500, 350, 250, 180)
SIZES = ("vit-3b", "vit-5b", "vit-11b", "vit-22b")
MORE = (("vit-22b", "vit-11b"), ("vit-22b",) * 2, ("vit-22b",) * 3, ("vit-22b",) * 4)


@dataclass(frozen=True, slots=True)
class Point:
    """One job: the changed property, its hidden shares, and step over the language model's own."""

    x: float
    whole: float
    split: float
    step: float

    def report(self) -> dict[str, float]:
        """Return the point as JSON."""
        return {
            "x": self.x,
            "whole": self.whole,
            "split": self.split,
            "step_over_llm_only": self.step,
        }


def sensitivity(name: str = "3072") -> dict[str, list[Point]]:
    """Return hidden shares by encoder size, exposed data-parallel time and tensor bubble."""
    return {
        "encoder time / language-model time": list(_by_size(name)),
        "exposed data-parallel time (s)": list(_by_exposed(name)),
        "tensor-parallel bubble (us), 1536 GPUs": list(_by_bubble("1536")),
    }


def _by_size(name: str) -> Iterable[Point]:
    for encoders in (*((one,) for one in SIZES), *MORE):
        setup = make_setup(name, replace(CASES[name], encoders=encoders), SET_R_DEVICE)
        yield _point(size_ratio(setup), setup)


def size_ratio(setup: FillSetup) -> float:
    """Return a microbatch's encoder time over its language-model time, in one tensor group."""
    encoder = sum(
        stack.layers * total_ns(stack.layer.forward + stack.layer.backward)
        for stack in setup.encoder_stacks(setup.tensor)
    )
    layer = setup.model.layer
    return encoder / (setup.model.layers * total_ns(layer.forward + layer.backward))


def _by_exposed(name: str) -> Iterable[Point]:
    setup = case_setup(name)
    whole = setup.gather_ns + setup.scatter_ns
    for seconds in EXPOSED_S:
        ns = int(seconds * 1e9)
        gather = ns * setup.gather_ns // whole
        yield _point(seconds, replace(setup, gather_ns=gather, scatter_ns=ns - gather))


def _by_bubble(name: str) -> Iterable[Point]:
    for bandwidth in LINKS:
        setup = case_setup(name, fitted_device(437, bandwidth * 10**9))
        yield _point(setup.model.layer.forward[0].ns / 1e3, setup)


def _point(x: float, setup: FillSetup) -> Point:
    """Return the best plan of full tensor width: pipeline size and warm-up chosen by time."""
    candidates = [
        EncoderPlan(stages, setup.tensor, True, warmup)
        for stages in (1, 2, 4)
        for warmup in ("megatron", "reduced")
    ]
    hosts, most = shared_hosts(setup), (None, *fitting(setup))
    whole = scan(setup, candidates=candidates, host_of=hosts).best
    cut = scan(setup, candidates=candidates, host_of=hosts, splittings=most).best
    alone = hosts(candidates[0]).gaps.step_ns
    return Point(
        x,
        whole.filled.efficiency,
        cut.filled.efficiency,
        cut.filled.step_ns / alone,
    )

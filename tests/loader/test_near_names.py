"""Who mistypes a name reads the name that was meant, wherever one of a few is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import counterpoise as cp
from counterpoise.balancer import Balance, PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec
from counterpoise.loader.step.loss import loss_rule
from counterpoise.tools.inputs.programs import Size, read_program
from counterpoise.workers.images.resize import resizer

TENSOR, ANY = torch.zeros(1), Any


def loader(**arguments: Any) -> Callable[[], object]:
    return lambda: cp.DataLoader([1, 2], batch_size=1, **arguments)


def job(**options: Any) -> JobSpec:
    return JobSpec(PlanConfig(1, 8, 1, ("tokens",), (9,)), {}, **options)


MISTYPED: dict[str, tuple[Callable[[], object], str]] = {
    "a grouping": (lambda: Balance("ballanced"), "'balanced'"),
    "a grouping of a loader": (loader(balance="ballanced"), "'balanced'"),
    "a mode in the grouping's place": (lambda: Balance("epoch"), "mode='epoch'"),
    "counts in the grouping's place": (lambda: Balance("free"), "counts='free'"),
    "a layout in the grouping's place": (
        lambda: Balance("packed"), "work='packed' or layout='packed'"
    ),
    "a mode": (lambda: Balance("auto", mode="exakt"), "'exact'"),
    "a partition": (lambda: Balance(partition="gready"), "'greedy'"),
    "an ordering": (lambda: Balance(ordering="twoopt"), "'two_opt'"),
    "waits": (lambda: Balance(waits="steps"), "'step'"),
    "work": (lambda: Balance(work="paded"), "'padded'"),
    "counts": (lambda: Balance(counts="eqal"), "'equal'"),
    "dispatch": (lambda: Balance(dispatch="image"), "'images'"),
    "oversize": (lambda: Balance(oversize="refused"), "'refuse'"),
    "a layout": (lambda: Balance(layout="Packd"), "'packed'"),
    "a layout's base": (lambda: cp.Layout("mine", {}, base="pad"), "'padded'"),
    "an option in a file": (
        lambda: Balance.from_json('{"version": 1, "acumulate": 2}'), "'accumulate'"
    ),
    "an argument": (loader(balence="auto"), "'balance'"),
    "an argument of Balance": (loader(layuot="packed"), "'layout'"),
    "a job's error policy": (lambda: job(on_error="skp"), "'skip'"),
    "a job's transport": (lambda: job(transport="inlined"), "'inline'"),
    "what a loss is a mean over": (lambda: cp.scale_loss(TENSOR, ANY, per="tokens"), "'token'"),
    "a reduction": (lambda: cp.scale_loss(TENSOR, ANY, reduction="avg_mean"), "'mean'"),
    "a framework": (lambda: loss_rule("lightening"), "'lightning'"),
    "a resizer": (lambda: resizer("pilow"), "'pillow'"),
    "a schedule": (lambda: read_program("interleave", Size(2, 4)), "'interleaved'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTYPED)
def test_a_mistyped_name_is_refused_with_the_name_that_was_meant(name: str) -> None:
    mistype, meant = MISTYPED[name]
    with pytest.raises((ValueError, TypeError)) as error:
        mistype()
    assert f"; did you mean {meant}?" in str(error.value)


def test_a_name_that_is_near_to_none_is_refused_with_those_that_are_allowed() -> None:
    with pytest.raises(ValueError, match=r"'device', 'auto'$"):
        Balance("magic")

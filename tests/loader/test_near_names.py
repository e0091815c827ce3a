"""Who mistypes a name reads the name that was meant, wherever one of a few is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise import balancer
from counterpoise.loader.step.loss import loss_rule
from counterpoise.tools.inputs.programs import Size, read_program
from counterpoise.workers.images.resize import resizer

NOTHING = torch.zeros(1)
# Their types refuse what is tried here.
Balance: Any = balancer.Balance
scale_loss: Any = cp.scale_loss
framework_rule: Any = loss_rule


def loader(**arguments: Any) -> Callable[[], object]:
    samples: Any = [1, 2]
    return lambda: cp.DataLoader(samples, batch_size=1, **arguments)


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
    "an ordering": (lambda: cp.PipelineOrder("p", "twoopt"), "'two_opt'"),  # type: ignore[arg-type]
    "waits": (lambda: Balance(waits="steps"), "'step'"),
    "counts": (lambda: Balance(counts="eqal"), "'equal'"),
    "dispatch": (lambda: cp.Images("image"), "'images'"),  # type: ignore[arg-type]
    "oversize": (lambda: Balance(oversize="refused"), "'refuse'"),
    "a layout": (lambda: Balance(layout="Packd"), "'packed'"),
    "an option in a file": (
        lambda: Balance.from_json('{"version": 2, "acumulate": 2}'), "'accumulate'"
    ),
    "an argument": (loader(balence="auto"), "balance="),
    "an argument of Balance": (loader(layuot="packed"), "layout= of balance=Balance(...)"),
    "a field of its values": (loader(bukets=8), "buckets= of balance=Balance(shapes=Shapes(...))"),
    "what a loss is a mean over": (lambda: scale_loss(NOTHING, None, per="tokens"), "'token'"),
    "a reduction": (lambda: scale_loss(NOTHING, None, reduction="avg_mean"), "'mean'"),
    "a framework": (lambda: framework_rule("lightening"), "'lightning'"),
    "a resizer": (lambda: resizer("pilow"), "'pillow'"),
    "a schedule": (lambda: read_program("interleave", Size(2, 4)), "'interleaved'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTYPED)
def test_a_mistyped_name_is_refused_with_the_name_that_was_meant(name: str) -> None:
    mistype, meant = MISTYPED[name]
    with pytest.raises((ValueError, TypeError)) as error:
        mistype()
    assert f"; did you mean {meant}?" in str(error.value)


def test_a_value_that_compares_by_element_is_refused_as_any_other() -> None:
    with pytest.raises(ValueError, match=r"mode is array\(\[1, 2\]\), allowed are"):
        cp.Balance(mode=np.array([1, 2]))  # type: ignore[arg-type]

"""Mistakes over Pipeline and its values: each answer says what was given, where, and what to do."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from counterpoise.sched import schedule
from counterpoise.sched.runtime import (
    EncoderSpec,
    HiddenStates,
    Pipeline,
    StageModules,
    StageOptions,
    StepLoss,
    VocabParallel,
)
from counterpoise.sched.runtime.job.start import vocabulary_part
from counterpoise.sched.runtime.units.place import UnitPlace
from tests.sched.runtime.models import total_loss

ENCODER = EncoderSpec("vision", [nn.Linear(2, 2)], tokens={"tiles": 1}, width=2)
# Without types: mypy would find the mistakes.
Hidden: Any = HiddenStates
Loss: Any = StepLoss
Options: Any = StageOptions
VALUES = {"stages": StageModules, "hidden": HiddenStates, "loss": StepLoss, "run": StageOptions}


def pipeline(**changed: Any) -> Callable[[], Pipeline]:
    """Return a call of Pipeline whose mesh is not reached by a wrong argument."""
    mesh: Any = None
    settings: dict[str, Any] = {"schedule": "1f1b", "stages": {}, "hidden": 64, "loss": total_loss}
    return partial(Pipeline, mesh, **settings | changed)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        # misspelt
        (pipeline(schedul="1f1b"), TypeError, "no argument schedul; did you mean schedule=?"),
        (pipeline(auxilary=max), TypeError, "did you mean auxiliary= of loss=StepLoss(...)?"),
        (partial(Loss, weight=1), TypeError, "no argument weight; did you mean weigh=?"),
        (
            pipeline(options={"chunks": 2}), TypeError,
            "no argument options: write schedule=partial(schedule, NAME, ...)",
        ),
        (pipeline(images=[]), TypeError, "no argument images: write encoders=TravellingImages("),
        # in a value
        (
            pipeline(loss=None, labels=("y",)), TypeError,
            "Pipeline has no argument labels: write loss=StepLoss(labels=('y',))",
        ),
        (
            pipeline(dtype=torch.bfloat16), TypeError,
            "no argument dtype: write hidden=HiddenStates(64, dtype=torch.bfloat16)",
        ),
        (
            pipeline(extras=("positions",), recompute=True), TypeError,
            "write run=StageOptions(extras=('positions',), recompute=True)",
        ),
        (pipeline(merge=max), TypeError, "no argument merge: write run=StageOptions(merge=max)"),
        (pipeline(weigh="sample"), TypeError, "loss=StepLoss(total_loss, weigh='sample')"),
        (pipeline(shared={}), TypeError, "write stages=StageModules({}, shared={})"),
        # of another type
        (
            pipeline(schedule=schedule("1f1b", 2, 4)), ValueError,
            "schedule is a Program; give a registered name such as '1f1b', or a function",
        ),
        (pipeline(stages=nn.Linear(2, 2)), ValueError, "stages is a Linear; give {number of the"),
        (pipeline(stages={0: nn.Linear}), ValueError, "stage 0 is a type; give an nn.Module"),
        (pipeline(hidden="64"), ValueError, "hidden is '64'; give the last dimension"),
        (
            partial(Hidden, 64, dtype="bfloat16"), ValueError,
            "dtype is 'bfloat16'; give a torch.dtype: torch.bfloat16",
        ),
        (pipeline(loss="sum"), ValueError, "loss is 'sum'; give a function of the last stage's"),
        (
            partial(StepLoss, weigh="tokens"), ValueError,
            "weigh is 'tokens', allowed are 'token', 'sample', or a function of a microbatch's "
            "info; did you mean 'token'?",
        ),
        (
            partial(Options, extras="position_ids"), ValueError,
            "extras is 'position_ids'; give a tuple of fields: ('position_ids',)",
        ),
        (
            pipeline(run={"recompute": True}), ValueError,
            "run is {'recompute': True}; give StageOptions(extras=..., merge=...)",
        ),
        (
            pipeline(encoders=ENCODER), ValueError,
            "encoders is an EncoderSpec; give a list: [EncoderSpec(...)]",
        ),
        (
            pipeline(encoders=[nn.Linear(2, 2)]), ValueError,
            "encoders has a Linear; give a list of EncoderSpecs",
        ),
    ],
)  # fmt: skip
def test_each_mistake_is_answered(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()


@pytest.mark.parametrize(
    ("name", "loss", "vocabulary", "message"),
    [
        ("1f1b", None, False, "give loss=, a function of the last stage's output and the labels"),
        ("1f1b", None, True, "the schedule '1f1b' has no vocabulary passes; take one such as"),
        ("1f1b-alg2", total_loss, True, "'1f1b-alg2' computes the loss in vocabulary passes"),
    ],
)
def test_a_loss_that_the_schedule_contradicts_is_answered(
    name: str, loss: Any, vocabulary: bool, message: str
) -> None:
    layers = VocabParallel(nn.Linear(2, 4)) if vocabulary else None
    program, place = schedule(name, 2, 4), UnitPlace.__new__(UnitPlace)
    with pytest.raises(ValueError, match=message):
        vocabulary_part(program, layers, StepLoss(loss), place, StageOptions())


def test_it_has_12_arguments_and_their_values_25_fields() -> None:
    arguments = inspect.signature(Pipeline).parameters
    assert len(arguments) == 12
    assert not any(p.kind is p.VAR_KEYWORD for p in arguments.values())
    fields = [len(inspect.signature(cls).parameters) for cls in VALUES.values()]
    assert len(arguments) - len(VALUES) + sum(fields) == 25

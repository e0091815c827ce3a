"""A generator that does not fit is refused with what to do."""

import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from counterpoise.sched import schedule
from counterpoise.sched.runtime import GeneratorSpec, Units, UnitSize
from counterpoise.sched.runtime.job.start import arrange
from counterpoise.sched.runtime.parts import MicrobatchData, StepData, TensorSpec
from counterpoise.sched.runtime.stage.agreement import RankFacts, combine
from counterpoise.sched.runtime.stage.generator import GeneratorPart, RankGenerator, rank_generator
from counterpoise.sched.transforms.generator_passes import with_generator

SPEC = TensorSpec((2, 4))


def spec_of(module: nn.Module | None = None, **given: Any) -> GeneratorSpec:
    return GeneratorSpec("drawing", module, {"pictures": 1}, 4, **given)


def run_forward(module: nn.Module) -> None:
    """Run GF of one microbatch of two states."""
    program = with_generator(schedule("1f1b", ranks=1, microbatches=1))
    part = GeneratorPart(program, 0, spec_of(module))
    data = MicrobatchData({}, 1.0, SPEC)
    part.begin_step(StepData((data,), (False, True)))
    (item,) = (item for item in program.ranks[0] if item.kind == "GF")
    part.run_pass(item, {"X_F": (torch.ones(2, 4),)})


def test_the_loss_is_one_number() -> None:
    with pytest.raises(ValueError, match=r"loss of shape \(2, 4\); return the sum"):
        run_forward(nn.Identity())


def test_states_come_from_a_layer_that_there_is() -> None:
    with pytest.raises(ValueError, match="states='norm' is no layer of the last stage"):
        RankGenerator(spec_of(states="norm"), 0).capture(nn.Sequential(nn.Linear(4, 4)))


def test_states_come_from_a_layer_that_is_called() -> None:
    stage = nn.ModuleDict({"used": nn.Identity(), "unused": nn.Identity()})
    capture = RankGenerator(spec_of(states="unused"), 0).capture(stage)
    assert capture is not None
    capture.expect()
    output = stage["used"](torch.ones(2, 4))
    with pytest.raises(RuntimeError, match="did not call the layer"):
        capture.states(output, {}, SPEC)


def test_states_have_the_planned_size() -> None:
    capture = RankGenerator(spec_of(take=lambda hidden, _: hidden[:1]), 0).capture(nn.Identity())
    assert capture is not None
    with pytest.raises(ValueError, match=r"states are \(1, 4\) .* plan says \(2, 4\)"):
        capture.states(torch.ones(2, 4), {}, SPEC)


def test_states_are_counted_by_a_cost_that_there_is() -> None:
    with pytest.raises(ValueError, match="counts its tokens by pictures, the microbatch's costs"):
        spec_of().states_spec(SimpleNamespace(costs={"tokens": 3}))


def test_the_loss_is_weighed_by_something_known() -> None:
    with pytest.raises(ValueError, match="weighs by 'word'; give 'token', 'sample'"):
        spec_of(weigh="word")


def test_its_rank_has_its_module() -> None:
    program = with_generator(schedule("1f1b", ranks=2, microbatches=2))
    GeneratorPart(program, 0, spec_of(None))
    with pytest.raises(ValueError, match="runs on this rank; give its module"):
        GeneratorPart(program, 1, spec_of(None))


def test_all_ranks_have_the_same() -> None:
    program = schedule("1f1b", ranks=2, microbatches=2)
    facts = [RankFacts({0: True}, {0: False}), RankFacts({1: True}, {1: False}, generator="a")]
    with pytest.raises(ValueError, match="rank 1 has the generator 'a', rank 0 ''"):
        combine(facts, program)


def test_passes_and_generator_go_together() -> None:
    program = with_generator(schedule("1f1b", ranks=2, microbatches=2))
    with pytest.raises(ValueError, match="has a generator's passes; give generator="):
        rank_generator(None, program, 0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"generator": UnitSize(1, 2)}, "the generator has pp 2"),
        ({"generator": UnitSize(0, 1)}, "generator has dp 0"),
    ],
)
def test_units_that_cannot_be_formed_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Units(UnitSize(1, 2), **given)


def test_units_are_more_than_a_language_model() -> None:
    with pytest.raises(ValueError, match="the backbone is the only unit; give encoder="):
        arrange(Units(UnitSize(1, 2)), partial(schedule, "1f1b"), (), None, 1.0)


def test_a_layout_may_have_a_generator(tmp_path: Path) -> None:
    sizes = {"backbone": (2, 2), "encoder": (3, 1), "generator": (2, 1)}
    units = {name: {"tp": 1, "dp": dp, "pp": pp} for name, (dp, pp) in sizes.items()}
    path = tmp_path / "layout.json"
    path.write_text(json.dumps({"version": 1, "units": units}))
    found = Units.from_layout(path)
    assert (found.ranks, found.generator) == (9, UnitSize(2, 1))
    assert found.generator_seats == range(5, 7)
    path.write_text(json.dumps({"version": 1, "units": {**units, "critic": units["encoder"]}}))
    with pytest.raises(ValueError, match="the runtime forms encoder, backbone, generator"):
        Units.from_layout(path)

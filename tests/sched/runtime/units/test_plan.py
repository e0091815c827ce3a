"""Plans of units: every order runs to its end, and nobody waits for a generator without need."""

import random
from itertools import product
from typing import Any

import pytest
import torch

from counterpoise.sched import Costs, check, schedule, simulate
from counterpoise.sched.runtime import Units, UnitSize
from counterpoise.sched.runtime.execution.walk import Walker, walk
from counterpoise.sched.runtime.parts import MicrobatchData, StepData, TensorSpec
from counterpoise.sched.runtime.units.lists import compile_units, joined
from counterpoise.sched.runtime.units.plan import plan_units
from counterpoise.sched.transforms.generator_passes import drop_last_stage
from tests.sched.runtime.loopback import Loopback

KINDS = ("F", "B", "I", "W", "GF", "GB", *(f"E{d}_{n}" for d in "FB" for n in "AB"))


class Zeros(dict[str, Any]):
    """A tensor by any name."""

    def get(self, name: str, default: Any = None) -> Any:
        del name, default
        return torch.zeros(1)


class Echo:
    """Runs every pass, and makes whatever is read of it."""

    def run_pass(self, what: Any, given: Any) -> Zeros:
        del what, given
        return Zeros()


UNITS = [
    Units(
        UnitSize(*backbone),
        UnitSize(encoder, 1) if encoder else None,
        generator=UnitSize(generator, 1),
    )
    for backbone, encoder, generator in product(
        ((1, 2), (2, 2), (3, 1), (2, 3)), (0, 1, 3), (1, 2, 3)
    )
]


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1", "zbv", "interleaved"])
def test_every_order_of_a_plan_runs_to_its_end(name: str) -> None:
    draw = random.Random(1)
    for units in UNITS:
        base = schedule(name, ranks=units.backbone.pp, microbatches=2 * units.backbone.pp)
        layers = [2] if units.encoder else []
        plan = plan_units(base, units, layers)
        for program in plan.programs:
            check(program)
        lists = compile_units(plan.programs, units, plan.order, [True] * (base.stages + 1))
        count = joined(plan.programs).microbatches
        each = MicrobatchData({}, 1.0, TensorSpec((1,)))
        data = StepData((each,) * count, (True,) * (base.stages + 1))
        loop, part = Loopback(units.ranks), Echo()
        walks = [
            walk(ops, data, Walker(dict.fromkeys(KINDS, part), loop.links(rank), {}, print))  # type: ignore[arg-type]
            for rank, ops in enumerate(lists)
        ]
        loop.run(walks, draw.choice)


def test_a_generator_of_its_own_takes_the_place_of_the_last_stage() -> None:
    longer = schedule("1f1b", ranks=3, microbatches=8)
    base = drop_last_stage(longer)
    assert base is not None
    costs = Costs({"F": 10, "B": 20, "GF": 10, "GB": 20})
    units = Units(UnitSize(1, 2), generator=UnitSize(1, 1))
    found = simulate(plan_units(base, units, []).programs[0], costs)
    assert found.makespan_ns == simulate(longer, costs).makespan_ns
    plain = schedule("1f1b", ranks=2, microbatches=8)
    waits = simulate(plan_units(plain, units, []).programs[0], costs)
    assert waits.makespan_ns > found.makespan_ns

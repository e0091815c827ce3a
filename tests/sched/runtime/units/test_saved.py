"""The plans of units as text: a resumed job goes on with them, and another layout plans anew."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from counterpoise.sched import Program, schedule
from counterpoise.sched.runtime import (
    Units,
    UnitSize,
    load_checkpoint,
    resumed_schedule,
    save_checkpoint,
)
from counterpoise.sched.runtime.units import plan
from counterpoise.sched.runtime.units.plan import (
    KnownPlans,
    UnitPlan,
    layout_digest,
    plan_units,
    read_plans,
)
from tests.sched.runtime.encoders.models import make_model, make_samples
from tests.sched.runtime.encoders.processes import loader_step
from tests.sched.runtime.pool import Pool
from tests.sched.runtime.units.processes import UnitSetting, make_pipe

UNITS = Units(UnitSize(2, 2), UnitSize(3, 1), generator=UnitSize(1, 1))
LAYERS = (2, 4)


def base(microbatches: int) -> Program:
    return schedule("1f1b", ranks=2, microbatches=microbatches)


def refuse(program: Program, *_: Any) -> UnitPlan:
    raise AssertionError(f"{program.name} was planned again")


def test_a_plan_is_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = KnownPlans(base, UNITS, LAYERS, "")
    made = {count: plans.plan_of(count) for count in (2, 6)}
    assert made[6] == plan_units(base(6), UNITS, LAYERS)
    layout = layout_digest(UNITS, LAYERS)
    assert read_plans(plans.text(), layout) == made
    again = KnownPlans(base, UNITS, LAYERS, plans.text())
    monkeypatch.setattr(plan, "plan_units", refuse)
    assert [again.plan_of(count) for count in (6, 2)] == [made[6], made[2]]
    assert again.text() == plans.text()


@pytest.mark.parametrize(
    "units",
    [
        Units(UnitSize(2, 2), UnitSize(2, 1), generator=UnitSize(1, 1)),
        Units(UnitSize(2, 2), UnitSize(3, 1), generator=UnitSize(1, 1), ahead=1),
        Units(UnitSize(2, 2), UnitSize(3, 1)),
    ],
    ids=["other encoder ranks", "further ahead", "no generator"],
)
def test_another_layout_is_planned_anew(units: Units) -> None:
    saved = KnownPlans(base, UNITS, LAYERS, "")
    saved.plan_of(4)
    plans = KnownPlans(base, units, LAYERS, saved.text())
    assert plans.known == {}
    assert plans.plan_of(4) == plan_units(base(4), units, LAYERS)


def test_another_schedule_is_planned_anew() -> None:
    saved = KnownPlans(base, UNITS, LAYERS, "")
    saved.plan_of(4)

    def other(count: int) -> Program:
        return schedule("gpipe", ranks=2, microbatches=count)

    plans = KnownPlans(other, UNITS, LAYERS, saved.text())
    assert plans.plan_of(4) == plan_units(other(4), UNITS, LAYERS)


def test_text_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="the units' plans: layout is 3; expected str"):
        read_plans('{"layout": 3, "plans": {}, "version": 1}', "")


SETTING = UnitSetting("1f1b", (1, 1), (3, 1), (2,))


def go_on(rank: int, folder: Path, step: int) -> str:
    """Train a step, from a checkpoint of the one before if there is one; return the plans.

    A job that goes on makes none.
    """
    before = folder / f"step-{step}" if step else None
    model = make_model(SETTING.layers, 1, torch.float32, merges=False)
    with patch("counterpoise.sched.runtime.units.plan.plan_units", refuse if step else plan_units):
        pipe, _ = make_pipe(SETTING, model, rank, resumed_schedule(before, SETTING.name))
        try:
            if before is not None:
                load_checkpoint(before, pipe)
            samples = make_samples(SETTING.microbatches, step, torch.float32)
            pipe.step(loader_step(samples, sum(len(s.ids) for s in samples)))
            save_checkpoint(folder / f"step-{step + 1}", pipe)
            return pipe.unit_plans()
        finally:
            pipe.close()


@pytest.mark.slow
def test_a_resumed_job_goes_on_with_its_plans(pool: Pool, tmp_path: Path) -> None:
    first, again = (pool.run(go_on, tmp_path, step) for step in (0, 1))
    assert {*first, *again} == {(tmp_path / "step-2" / "units.json").read_text("utf-8")}
    # Programs of units have no encoder passes among their own: they are not for a mesh.
    resumed = resumed_schedule(tmp_path / "step-2", "gpipe")
    assert (1, 4) in resumed.saved
    assert resumed(1, 4) == schedule("gpipe", ranks=1, microbatches=4)

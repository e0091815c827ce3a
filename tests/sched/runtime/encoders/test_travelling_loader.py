"""Pipelines whose images travel, fed by one balanced loader: the same steps, whatever travels."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from counterpoise.loader import Balance, DataLoader, ImageDispatch
from counterpoise.sched.runtime import Pipeline, TravellingImages, Units, UnitSize
from tests.sched.runtime.cases import gradient, relative
from tests.sched.runtime.encoders.models import INPUTS, make_model, merge, reference, specs_of
from tests.sched.runtime.encoders.processes import FIELDS
from tests.sched.runtime.models import HIDDEN, total_loss
from tests.sched.runtime.pool import Pool, make_mesh
from tests.sched.runtime.units.test_loader import STEP, Texts, collate, costs, microbatch_of

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5
# Two replicas of one stage, and two encoders that share their images.
UNITS = Units(UnitSize(dp=2, pp=1), UnitSize(dp=2, pp=1), spread=True)


def train(process: int, in_units: bool) -> dict[str, Any]:
    """Train two steps; return the largest errors, and the keys of each step's samples."""
    where = UNITS if in_units else make_mesh(2)
    model = make_model((2,), 1 if in_units else 2, torch.float32, merges=False)
    expected = copy.deepcopy(model)
    made: dict[str, Any]
    if isinstance(where, Units):
        mine = {0: model.stages[0]} if process < 2 else {}
        (spec,) = specs_of(model, fields=FIELDS)
        made = {"encoders": [replace(spec, images={"tiles": 1})]}
        trained = list(mine.values()) or model.encoders[0]
        theirs = list(expected.stages) if process < 2 else expected.encoders[0]
    else:
        at = where["pp"].get_local_rank()
        mine = {at: model.stages[at]}
        dispatch = ImageDispatch(
            nn.Sequential(*model.encoders[0]), torch.zeros(1, INPUTS), reduction="sum",
        )  # fmt: skip
        made = {"images": TravellingImages("vision", dispatch)}
        trained = [model.stages[at], *model.encoders[0]]
        theirs = [expected.stages[at], *expected.encoders[0]]
    pipe = Pipeline(
        where, schedule="1f1b", stages=mine, merge=merge, loss=total_loss, hidden=HIDDEN,
        weigh="sample", deadline_s=60, **made,
    )  # fmt: skip
    loader: DataLoader[Any, Any] = DataLoader(
        Texts(), collate_fn=collate, num_workers=1, shuffle=True, cost=costs, topology=where,
        balance=Balance(samples_per_step=STEP, accumulate=2, dispatch="images"), fields=pipe.needs,
        multiprocessing_context="fork",  # the pool's own method starts clean processes: seconds
    )  # fmt: skip
    try:
        found: dict[str, Any] = {"error": 0.0, "keys": []}
        for step in loader.steps():
            result = pipe.step(step)
            given: list[Any] = [None] * 4
            dist.all_gather_object(given, step.infos)
            infos = [info for at in ((0, 1) if in_units else (0, 2)) for info in given[at]]
            wanted = reference(expected, [microbatch_of(info) for info in infos], STEP)
            errors = [abs(float(result.loss) - wanted) / wanted]
            for one, other in zip(trained, theirs, strict=True):
                pairs = zip(one.parameters(), other.parameters(), strict=True)
                errors += [float(relative(gradient(a), gradient(b))) for a, b in pairs]
            found["error"] = max(found["error"], *errors)
            found["keys"].append(sorted(key for info in infos for key in info.keys))
            for piece in (*model.pieces(), *expected.pieces()):
                piece.zero_grad()
        return found
    finally:
        dist.barrier()
        loader.close()
        pipe.close()


def test_the_global_batch_is_that_of_the_seed(pool: Pool) -> None:
    meshed, apart = (pool.run(train, in_units) for in_units in (False, True))
    for one in (*meshed, *apart):
        assert one["error"] <= TOLERANCE
    assert [one["keys"] for one in (*meshed, *apart)] == [meshed[0]["keys"]] * 8
    assert len(meshed[0]["keys"]) == 2
    assert not set(meshed[0]["keys"][0]) & set(meshed[0]["keys"][1])

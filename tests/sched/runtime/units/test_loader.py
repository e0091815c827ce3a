"""One balanced loader gives each rank the fields that it needs, wherever images are encoded."""

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from counterpoise.balancer import Images
from counterpoise.loader import Balance, DataLoader, ImageDispatch
from counterpoise.sched.runtime import (
    Pipeline,
    StageOptions,
    StepLoss,
    TravellingImages,
    Units,
    UnitSize,
)
from tests.sched.runtime.cases import errors_of
from tests.sched.runtime.encoders.models import (
    INPUTS,
    Sample,
    make_model,
    make_samples,
    merge,
    reference,
    specs_of,
)
from tests.sched.runtime.encoders.processes import FIELDS
from tests.sched.runtime.models import HIDDEN, total_loss
from tests.sched.runtime.pool import Pool, make_mesh
from tests.sched.runtime.tensor_parallel import divide_in

pytestmark = pytest.mark.slow

# Ranks 0 and 1 have the language model each; 2 and 3 encode, each for both of them.
REPLICAS = Units(UnitSize(dp=2, pp=1), UnitSize(dp=2, pp=1))
# The same, and the encoders share the images of each microbatch.
SPREAD = replace(REPLICAS, spread=True)
# Two processes have the language model, the others encode for both.
LANES = Units(UnitSize(dp=1, pp=1, tp=2), UnitSize(dp=2, pp=1))
TOLERANCE = 1e-5
SAMPLES, STEP = 32, 16


class Texts(torch.utils.data.Dataset[Sample]):
    """Samples of different lengths, some without images."""

    def __init__(self) -> None:
        self._samples = make_samples(SAMPLES, 3, torch.float32)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Sample:
        return self._samples[index]


def costs(sample: Sample) -> dict[str, int]:
    return {"tiles": len(sample.pixels), "tokens": len(sample.ids)}


def collate(samples: Iterable[Sample]) -> dict[str, torch.Tensor]:
    every = list(samples)
    return {
        field: torch.cat([getattr(sample, name) for sample in every])
        for name, field in FIELDS.items()
    }


def microbatch_of(info: Any) -> Sample:
    """Return a whole microbatch as one sample, from its keys."""
    made = collate(Texts()[int(key)] for key in info.keys)
    return Sample(**{name: made[field] for name, field in FIELDS.items()})


def train(process: int, units: Units | None) -> dict[str, Any]:
    """Train two steps; return the largest error, the fields seen, and the keys of each step.

    `units`: None for a mesh of two stages and two replicas, between which images travel.
    """
    where: Any = make_mesh(2) if units is None else units
    model = make_model((2,), 2 if units is None else 1, torch.float32, merges=False)
    expected = copy.deepcopy(model)
    made: dict[str, Any]
    if units is None:
        at, first = where["pp"].get_local_rank(), [0, 2]
        mine = {at: model.stages[at]}
        dispatch = ImageDispatch(
            nn.Sequential(*model.encoders[0]), torch.zeros(1, INPUTS), reduction="sum"
        )
        made = {"encoders": TravellingImages("vision", dispatch)}
    else:
        first = [units.processes_of(rank)[0] for rank in range(units.backbone.ranks)]
        has_language = units.rank_of(process) < units.backbone.ranks
        divide_in(units, model.pieces())
        mine = {0: model.stages[0]} if has_language else {}
        (spec,) = specs_of(model, fields=FIELDS)
        made = {"encoders": [replace(spec, images={"tiles": 1})]}
    pipe = Pipeline(
        where, schedule="1f1b", stages=mine, hidden=HIDDEN, run=StageOptions(merge=merge),
        loss=StepLoss(total_loss, weigh="sample"), deadline_s=60, **made,
    )  # fmt: skip
    dispatched: dict[str, Any] = (
        {"images": Images("images")} if units is None or units.spread else {}
    )
    loader: DataLoader[Any, Any] = DataLoader(
        Texts(), collate_fn=collate, num_workers=1, shuffle=True, cost=costs, ranks=where,
        balance=Balance(samples_per_step=STEP, accumulate=2, **dispatched), fields=pipe.needs,
        multiprocessing_context="fork",  # the pool's own method starts clean processes: seconds
    )  # fmt: skip
    try:
        found: dict[str, Any] = {"error": 0.0, "fields": [], "keys": []}
        for step in loader.steps():
            result = pipe.step(step)
            found["fields"] += [sorted(batch) for batch in step.microbatches]
            # The microbatches that the language model's ranks were given, on every rank.
            given: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(given, step.infos)
            infos = [info for process in first for info in given[process]]
            wanted = reference(expected, [microbatch_of(info) for info in infos], STEP)
            beside = model.beside(expected)
            errors = errors_of(pipe, mine, expected.stages, beside, gradients=True)
            loss = abs(float(result.loss) - wanted) / wanted
            found["error"] = max(found["error"], loss, *errors.values())
            found["keys"].append(sorted(key for info in infos for key in info.keys))
            for piece in (*model.pieces(), *expected.pieces()):
                piece.zero_grad()
        return found
    finally:
        dist.barrier()
        loader.close()
        pipe.close()


def found_on(pool: Pool, units: Units | None) -> list[dict[str, Any]]:
    found = pool.run(train, units)
    for one in found:
        assert one["error"] <= TOLERANCE, found
        assert one["keys"] == found[0]["keys"]
    return found


def test_the_global_batch_is_that_of_the_seed_wherever_images_are_encoded(pool: Pool) -> None:
    travel, spread = (found_on(pool, units)[0] for units in (None, SPREAD))
    assert travel["keys"] == spread["keys"]
    assert not set(travel["keys"][0]) & set(travel["keys"][1])


@pytest.mark.parametrize(
    "units", [REPLICAS, pytest.param(LANES, id="lanes", marks=pytest.mark.long)]
)
def test_units_are_given_the_fields_that_they_need(pool: Pool, units: Units) -> None:
    found = found_on(pool, units)
    # 2 steps of 2 microbatches, and the encoders' ranks are told of both replicas'
    language, *encoders = found[0]["fields"], found[2]["fields"], found[3]["fields"]
    assert language == found[1]["fields"] == [["input_ids", "labels"]] * 4
    assert [len(one) for one in encoders] == [4 * units.backbone.dp] * 2
    # each microbatch's images go to one of them
    assert all(sorted(both) == [[], ["pixel_values"]] for both in zip(*encoders, strict=True))

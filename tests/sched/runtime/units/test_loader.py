"""Units fed by one balanced loader, which gives each rank the fields that it needs."""

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from counterpoise.loader import Balance, DataLoader
from counterpoise.sched.runtime import Pipeline, Units, UnitSize
from tests.sched.runtime.cases import gradient, relative, whole
from tests.sched.runtime.encoders.models import (
    Sample,
    make_model,
    make_samples,
    merge,
    reference,
    specs_of,
)
from tests.sched.runtime.encoders.processes import FIELDS
from tests.sched.runtime.models import HIDDEN, total_loss
from tests.sched.runtime.pool import Pool
from tests.sched.runtime.tensor_parallel import divide_in

pytestmark = pytest.mark.slow

# Ranks 0 and 1 have the language model each; 2 and 3 encode, each for both of them.
REPLICAS = Units(UnitSize(dp=2, pp=1), UnitSize(dp=2, pp=1))
# Two processes have the language model, the third one encodes for both.
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


def train(process: int, units: Units) -> dict[str, Any]:
    """Train two steps; return the largest errors of loss and gradients, and the fields seen."""
    model = make_model((2,), 1, torch.float32, merges=False)
    expected = copy.deepcopy(model)
    has_language = units.rank_of(process) < units.backbone.ranks
    divide_in(units, model.pieces())
    pipe = Pipeline(
        units, schedule="1f1b", stages={0: model.stages[0]} if has_language else {}, merge=merge,
        encoders=specs_of(model, fields=FIELDS), loss=total_loss, hidden=HIDDEN, weigh="sample",
        deadline_s=60,
    )  # fmt: skip
    loader: DataLoader[Any, Any] = DataLoader(
        Texts(), collate_fn=collate, num_workers=1, shuffle=True, cost=costs, topology=units,
        balance=Balance(samples_per_step=STEP, accumulate=2), fields=pipe.needs,
        multiprocessing_context="fork",  # the pool's own method starts clean processes: seconds
    )  # fmt: skip
    try:
        found: dict[str, Any] = {"loss": 0.0, "gradients": 0.0, "fields": []}
        for step in loader.steps():
            result = pipe.step(step)
            found["fields"] += [sorted(batch) for batch in step.microbatches]
            # The microbatches that the language model's ranks were given, on every rank.
            given: list[Any] = [None] * units.processes
            dist.all_gather_object(given, step.infos)
            language = [given[units.processes_of(r)[0]] for r in range(units.backbone.ranks)]
            samples = [microbatch_of(info) for infos in language for info in infos]
            wanted = reference(expected, samples, STEP)
            error = abs(float(result.loss) - wanted) / wanted
            mine, theirs = (
                one.stages[0] if has_language else torch.nn.ModuleList(one.encoders[0])
                for one in (model, expected)
            )
            pairs = list(zip(mine.parameters(), theirs.parameters(), strict=True))
            errors = [float(relative(whole(gradient(a)), gradient(b))) for a, b in pairs]
            found["loss"] = max(found["loss"], error)
            found["gradients"] = max(found["gradients"], *errors)
            for one in (mine, *expected.pieces()):
                one.zero_grad()
        return found
    finally:
        dist.barrier()
        loader.close()
        pipe.close()


def found_on(pool: Pool, units: Units) -> list[dict[str, Any]]:
    found = pool.run(train, units)
    for one in found:
        assert max(one["loss"], one["gradients"]) <= TOLERANCE, found
    return found


def test_units_train_on_what_one_loader_plans(pool: Pool) -> None:
    found = found_on(pool, REPLICAS)
    # 2 steps of 2 microbatches, and the encoders' ranks are told of both replicas'
    language, *encoders = found[0]["fields"], found[2]["fields"], found[3]["fields"]
    assert language == found[1]["fields"] == [["input_ids", "labels"]] * 4
    assert [len(one) for one in encoders] == [8, 8]
    # each microbatch's images go to one of them
    assert all(sorted(both) == [[], ["pixel_values"]] for both in zip(*encoders, strict=True))


@pytest.mark.long
def test_so_do_units_of_several_processes_a_rank(pool: Pool) -> None:
    found = found_on(pool, LANES)
    # 2 steps of 2 microbatches; the processes of a rank are given the same fields.
    assert found[0]["fields"] == found[1]["fields"] == [["input_ids", "labels"]] * 4
    encoders = found[2]["fields"], found[3]["fields"]
    assert all(sorted(both) == [[], ["pixel_values"]] for both in zip(*encoders, strict=True))

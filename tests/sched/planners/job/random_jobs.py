"""Random small jobs, of which all plans can be tried."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from counterpoise.sched.planners.job.layers import choices
from counterpoise.sched.planners.job.plan import BatchChoice, Ints, Job, ScheduleChoice, StepLoads
from counterpoise.sched.planners.job.pricing import Pricer
from counterpoise.sched.shapes import Device, Model
from counterpoise.sched.shapes.model import SubModel, TransformerLayer, Vocabulary

WORK = {"tokens": 1, "tiles": 300}


def a_model(rng: random.Random, has_encoder: bool) -> Model:
    """Return a language model of a few layers, behind an encoder of a few others."""
    hidden = 64 * rng.randint(4, 16)
    words = Vocabulary(hidden, 1000 * rng.randint(1, 60), tied=rng.random() < 0.3)
    layers = (TransformerLayer(hidden, causal=True),) * rng.randint(5, 9)
    language = SubModel("words", "language", layers, words)
    seen = TransformerLayer(64 * rng.randint(2, 24))
    encoder = SubModel(
        "eyes", "encoder", (seen,) * rng.randint(2, 4), projector=hidden * seen.hidden,
        unit="tiles", unit_tokens=rng.choice((64, 256)), handed_tokens=64,
        frozen=rng.random() < 0.2,
    )  # fmt: skip
    return Model("random", (encoder, language) if has_encoder else (language,))


def a_device(rng: random.Random) -> Device:
    """Return a device with links of any speed."""
    link, network = (10**9 * rng.choice((1, 5, 50)) for _ in range(2))
    return Device(
        flops_per_s=10**13,
        efficiency_percent=rng.randint(30, 70),
        link_bytes_per_s=link,
        network_bytes_per_s=network,
    )


def a_job(seed: int) -> Job:
    """Return a job for 8 to 16 GPUs; memory is tight in some, and some have no encoder."""
    rng = random.Random(seed)
    has_encoder = seed % 5 != 4
    model, count = a_model(rng, has_encoder), rng.choice((16, 24, 32))
    samples = []
    for _ in range(count):
        tokens = rng.randint(50, 900)
        tiles = rng.randint(0, 4) if has_encoder else 0
        samples.append({"tokens": tokens, "tiles": tiles, "token_pairs": tokens**2})
    total = {name: sum(one[name] for one in samples) for name in samples[0]}
    by_work = sorted(samples, key=lambda one: -sum(WORK[n] * one[n] for n in WORK))

    def loads(dp: int, batch: BatchChoice) -> StepLoads:
        groups = dp * batch.microbatches
        made = [
            {name: sum(one[name] for one in by_work[at::groups]) for name in total}
            for at in range(groups)
        ]
        rows = [made[rank::dp] for rank in range(dp)]
        heaviest = max(rows, key=lambda row: sum(WORK[n] * m[n] for m in row for n in WORK))
        most = {name: max(m[name] for m in made) for name in total}
        return StepLoads(tuple(heaviest), most=most)

    def arrange(name: str, ranks: int, forward: Ints, backward: Ints) -> list[int]:
        del name, ranks, backward
        order: list[int] = np.argsort(forward.sum(axis=0), kind="stable").tolist()
        return order

    placements = rng.choice((("first", "bubbles"), ("first", "units"), ("bubbles", "units")))
    schedules = [ScheduleChoice("1f1b"), ScheduleChoice("interleaved", 2), ScheduleChoice("zb-h1")]
    states = 18 * model.parameters
    return Job(
        model, a_device(rng), gpus=rng.choice((8, 8, 12, 16)),
        memory_bytes=int(states * rng.choice((0.4, 0.6, 1, 10))), batch=count, amounts=total,
        loads=loads, arrange=arrange if seed % 2 else None, tensor=(1, 2, 4), placements=placements,
        schedules=(*schedules, *([ScheduleChoice("1f1b-alg2")] if seed % 3 else [])),
    )  # fmt: skip


def every_plan(pricer: Pricer, keep: int) -> Iterator[tuple[Any, ...]]:
    """Yield all plans that the choices allow, with no thought of bounds."""
    made = choices(pricer, keep)

    def grow(chosen: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        if len(chosen) == len(made):
            yield chosen
            return
        for one in made[len(chosen)](chosen):
            yield from grow((*chosen, one))

    yield from grow(())

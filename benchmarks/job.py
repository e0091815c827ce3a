"""A plan made for four processes, executed: its step as simulated and as measured.

Layers sleep as long as the plan's model says, so that ranks run beside each other on any number of
cores; stages, program and microbatches are those that job.json holds. `--searches` times the
planning of large jobs instead.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from counterpoise.sched.planners.job.plan import ENCODER, SCHEDULES, BatchChoice, Job, StepLoads
from counterpoise.sched.planners.job.planner import plan_job
from counterpoise.sched.planners.job.pricing import Pricer
from counterpoise.sched.planners.job.schema import dump_job, job_file, read_job
from counterpoise.sched.runtime import Pipeline, StageOptions, split
from counterpoise.sched.shapes import (
    DEFAULT_DEVICE,
    DEVICES,
    Device,
    Model,
    ParallelLayout,
    SubModel,
    TransformerLayer,
    Vocabulary,
    layer_costs,
    read_model,
)
from counterpoise.tools.console.reporting import emit, make_table
from counterpoise.tools.inputs.models import memory_limit
from counterpoise.tools.plan.job_data import order_microbatches, read_samples

from .runtime.rank_processes import RankProcesses
from .runtime.sleeping import HIDDEN, SleepingStage

TOKENS, SAMPLES, RANKS = 16, 16, 4
_LAYER = TransformerLayer(64)
MODEL = Model(
    "sleeping",
    (
        SubModel("eyes", ENCODER, (_LAYER,) * 3, unit="tiles", unit_tokens=4, handed_tokens=4),
        SubModel("words", "language", (_LAYER,) * 6, Vocabulary(64, 512)),
    ),
)
# A layer takes some 15 ms of a microbatch, messages 0.2 ms.
DEVICE = Device(
    flops_per_s=2 * 10**8, encoder_percent=50, network_latency_ns=200_000, link_latency_ns=0
)
_SAMPLE = {"tokens": TOKENS, "tiles": 2, "token_pairs": TOKENS**2}


def make_job() -> Job:
    """Return a job of equal samples for four processes; one alone has too little memory."""

    def loads(dp: int, batch: BatchChoice) -> StepLoads:
        count = SAMPLES // (dp * batch.microbatches)
        one = {name: amount * count for name, amount in _SAMPLE.items()}
        return StepLoads((one,) * batch.microbatches, most=one)

    return Job(
        MODEL, DEVICE, RANKS, 18 * MODEL.parameters // 2, SAMPLES,
        {name: SAMPLES * amount for name, amount in _SAMPLE.items()}, loads, tensor=(1,),
        placements=("first",),
        schedules=tuple(one for one in SCHEDULES if one.name in ("1f1b", "zb-h1", "interleaved")),
    )  # fmt: skip


def write_job(path: Path) -> None:
    """Plan the job, and write its file."""
    pricer, answer = Pricer(make_job()), plan_job(make_job())
    path.write_text(json.dumps(dump_job(job_file(pricer, answer.best, {}))), "utf-8")


def sleeping_model(tokens: int, *, awake: bool = False) -> nn.Sequential:
    """Return the chain of layers, each of which sleeps its time for a microbatch, or is awake."""
    one = {name: amount * tokens // TOKENS for name, amount in _SAMPLE.items()}
    torch.manual_seed(0)
    made = []
    for cost in layer_costs(MODEL, DEVICE, ParallelLayout(), one):
        times = cost.forward_ns, cost.backward_ns - cost.weight_ns, cost.weight_ns
        made.append(SleepingStage(*((0 if awake else ns // tokens) for ns in times)))
    return nn.Sequential(*made)


def loss(output: Tensor, labels: Tensor) -> Tensor:
    """Return a sum over the microbatch."""
    return (output**2).sum() + 0 * labels.sum()


def make_step(path: Path, replica: int) -> SimpleNamespace:
    """Return a replica's microbatches, of as many tokens as the plan's."""
    plan = read_job(path)
    sizes, rng = plan.microbatches, torch.Generator().manual_seed(replica)
    every = plan.layout.dp * sum(one["tokens"] for one in sizes)
    infos = [
        SimpleNamespace(costs=dict(one), step_label_tokens=every, step_samples=SAMPLES)
        for one in sizes
    ]
    batches = [
        {"x": torch.rand(one["tokens"], HIDDEN, generator=rng), "labels": torch.ones(1)}
        for one in sizes
    ]
    return SimpleNamespace(microbatches=batches, infos=infos)


class JobRank:
    """A process of the job, which finds in the file all that it has to be."""

    def __init__(self, rank: int, path: str, awake: bool) -> None:
        plan = read_job(path)
        sizes = plan.layout.dp, plan.layout.pp
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "pp"))
        model = sleeping_model(plan.microbatches[0]["tokens"], awake=awake)
        stages = split(model, path, layers="", check=False)
        pp_rank = rank % plan.layout.pp
        own = {n: stages[n] for n, r in enumerate(plan.costs.placement) if r == pp_rank}
        self.pipe = Pipeline(
            mesh, schedule=plan, stages=own, hidden=HIDDEN, run=StageOptions(inputs=("x",)),
            loss=loss, deadline_s=60,
        )  # fmt: skip
        self._step = make_step(Path(path), rank // plan.layout.pp)

    def run(self, repeats: int) -> list[Any]:
        """Run some steps, and return their timelines."""
        found = []
        for _ in range(repeats):
            self.pipe.step(self._step)
            found.append(self.pipe.timeline())
        return found

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of this rank's stages after a step."""
        for parameter in self.pipe.parameters():
            parameter.grad = None
        self.pipe.step(self._step)
        named = (pair for module in self.pipe.modules() for pair in module.named_parameters())
        return {name: parameter.grad for name, parameter in named if parameter.grad is not None}


def search_rows(data: str | None) -> list[dict[str, Any]]:
    """Return the CPU seconds of `plan job`'s search for large clusters, and what it found.

    `data`: a table of costs; samples of 100 to 4,000 tokens and up to 12 tiles without one.
    """
    model, device, rows = read_model("internvit-6b+internlm2-20b"), DEVICES[DEFAULT_DEVICE], []
    with tempfile.TemporaryDirectory() as folder:
        if data is None:
            rng, data = np.random.default_rng(0), f"{folder}/costs.npz"
            tokens, tiles = (rng.integers(*ends, 10_000) for ends in ((100, 4000), (0, 13)))
            np.savez(data, tokens=tokens, tiles=tiles)
        for gpus, batch in ((1296, 1920), (10_000, 9600)):
            began = time.process_time()
            samples = read_samples(data, model, batch, 0, 1, Progress(disable=True))
            room = memory_limit(None, device)
            job = Job(
                model, device, gpus, room, batch, samples.amounts, samples.loads, order_microbatches
            )
            found = plan_job(job)
            rows.append(
                {
                    "gpus": gpus,
                    "batch": batch,
                    "cpu_s": round(time.process_time() - began, 2),
                    "step_s": found.best.step_ns / 1e9,
                    "bound_s": found.bound_ns / 1e9,
                    "plan": str(found.best.plan),
                }
            )
    return rows


@click.command("job")
@click.option("--repeats", default=5, show_default=True, help="Measured steps.")
@click.option("--searches", is_flag=True, help="Time the search for 1,296 and 10,000 GPUs instead.")
@click.option("--data", help="Table of costs of the searches.  [random samples]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(repeats: int, searches: bool, data: str | None, as_json: bool) -> None:
    """Run a plan from its job.json on four processes whose layers sleep."""
    if searches:
        rows = search_rows(data)
        table = make_table("search for a whole job's plan", "GPUs", "CPU, s", "step, s", "bound, s")
        for row in rows:
            table.add_row(*(str(row[name]) for name in ("gpus", "cpu_s", "step_s", "bound_s")))
        emit({"searches": rows}, as_json, table)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        write_job(path)
        plan = read_job(path)
        with RankProcesses(RANKS, JobRank, str(path), False) as ranks:
            timelines = ranks.call("run", repeats + 1)[0][1:]
    steps = [one.makespan_ns for one in timelines]
    middle = statistics.median_low(steps)
    report = {
        "layout": {name: getattr(plan.layout, name) for name in ("dp", "tp", "pp", "vpp")},
        "schedule": plan.schedule.name,
        "stages": [stage.layers for stage in plan.stages],
        "simulated_ms": plan.predicted.step_ns / 1e6,
        "measured_ms": [middle / 1e6, min(steps) / 1e6, max(steps) / 1e6],
        "ratio": middle / plan.predicted.step_ns,
    }
    table = make_table("a plan for four processes", "", "ms")
    table.add_row("simulated", f"{report['simulated_ms']:.1f}")
    table.add_row("measured", f"{middle / 1e6:.1f}")
    table.add_row("measured / simulated", f"{report['ratio']:.3f}")
    emit(report, as_json, table)

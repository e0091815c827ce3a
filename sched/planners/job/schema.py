"""`job.json`: a job's plan as one versioned file, which loader, units and pipeline read.

    {"version": 1,
     "layout": {"gpus": 16, "dp": 1, "tp": 2, "pp": 8, "vpp": 2, "cp": 1},
     "encoders": {"placement": "first"},
     "schedule": {"name": "zbv", "microbatches": 32, "options": {}},
     "stages": [{"stage": 0, "first_layer": 0, "layers": 5, "recompute": [0]}, ...],
     "limit_bytes": 73600000000,
     "units": {"backbone": {"dp": 1, "pp": 8, "tp": 2}, "encoder": {...}},
     "balance": {"version": 2, "budgets": {"tokens": 9000}, ...},
     "costs": {"placement": [0, 1, ...], "passes": {"F": [...], ...}, ...},
     "microbatches": [{"tokens": 8000, "tiles": 9, "token_pairs": 16000000}, ...],
     "predicted": {"step_ns": 1677000000, "memory_bytes": [...], "lost": {"bubbles": 0.1, ...}}}

`stages` and `limit_bytes` are what `plan job --only partition` and `recompute` write, `units` what
`orchestrate` does, `balance` what `Balance.save` does, and `costs` is a cost profile. With units
the stages are the language model's; with an encoder in front they are of the whole chain of layers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import numpy as np

from ...bubble_filling.filled_program import with_encoders
from ...ir.program import Program
from ...ir.registry import schedule
from ...ir.typed_json import Whole, read_json_file
from ...simulation.cost_profile import CostFunction, CostProfile, profile_costs
from ..stage_split import SplitPlan, StageLayers, make_split
from .plan import Floats
from .planner import PricedPlan
from .pricing import Pricer
from .steps import mean_encoder_times

Place = Literal["none", "first", "bubbles", "units"]
Size = Annotated[int, msgspec.Meta(ge=1)]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of the file."""


class LayoutSection(_Section, frozen=True):
    """The GPUs of the job, and of the pipeline of stages."""

    gpus: Size
    dp: Size
    tp: Size
    pp: Size
    vpp: Size = 1
    cp: Size = 1


class UnitSection(_Section, frozen=True):
    """The GPUs of a unit."""

    dp: Size
    pp: Size
    tp: Size


class EncoderSection(_Section, frozen=True):
    """Where the encoders are."""

    placement: Place = "none"


class ScheduleSection(_Section, frozen=True):
    """A registered schedule with its options, and the microbatches of a step."""

    name: str
    microbatches: Size
    options: Mapping[str, int] = {}


class Predicted(_Section, frozen=True):
    """What the plan promises: a step, the bytes of each rank, and shares of time by cause."""

    step_ns: Whole
    memory_bytes: tuple[Whole, ...] = ()
    lost: Mapping[str, float] = {}


class JobFile(_Section, frozen=True):
    """A plan as it is written. Called with ranks and microbatches it makes the program.

    So `Pipeline(mesh, schedule=read_job("job.json"), ...)` runs it. Raises ValueError for sections
    that contradict each other.
    """

    version: Literal[1]
    layout: LayoutSection
    schedule: ScheduleSection
    stages: Annotated[tuple[StageLayers, ...], msgspec.Meta(min_length=1)]
    costs: CostProfile
    predicted: Predicted
    encoders: EncoderSection = EncoderSection()
    limit_bytes: Whole | None = None
    units: Mapping[str, UnitSection] = {}
    balance: Mapping[str, Any] = {}
    microbatches: tuple[Mapping[str, Whole], ...] = ()

    def __post_init__(self) -> None:
        """Check that the sections fit together."""
        cut, sizes = self.split, self.layout
        if len(cut.stages) != sizes.pp * sizes.vpp:
            raise ValueError(
                f"{len(cut.stages)} stages for pp {sizes.pp} x vpp {sizes.vpp}; give "
                f"{sizes.pp * sizes.vpp}"
            )
        used = [unit.dp * unit.pp * unit.tp for unit in self.units.values()]
        gpus = sizes.cp * (sum(used) if used else sizes.dp * sizes.tp * sizes.pp)
        if gpus > sizes.gpus:
            raise ValueError(f"the plan uses {gpus} GPUs of {sizes.gpus}; give as many")
        if self.microbatches and len(self.microbatches) != self.schedule.microbatches:
            raise ValueError(
                f"{len(self.microbatches)} microbatches are described, a step has "
                f"{self.schedule.microbatches}; give all"
            )

    @property
    def split(self) -> SplitPlan:
        """Return the layers of each stage, and those to recompute."""
        return SplitPlan(self.stages, self.limit_bytes)

    def __call__(self, ranks: int, microbatches: int) -> Program:
        """Return the program of a pipeline. Raises ValueError for another number of ranks."""
        if ranks != self.layout.pp:
            raise ValueError(
                f"the plan has {self.layout.pp} pipeline ranks, the mesh {ranks}; make it with "
                f'"pp" of {self.layout.pp}, or plan for {ranks}'
            )
        options, name = dict(self.schedule.options), self.schedule.name
        program = schedule(name, ranks=ranks, microbatches=microbatches, **options)
        if self.encoders.placement != "bubbles":
            return program
        loads = [self.microbatches[n % len(self.microbatches)] for n in range(microbatches)]
        costs = profile_costs(self.costs, loads)
        return with_encoders(program, costs, [mean_encoder_times(costs)])


def read_job(path: str | Path) -> JobFile:
    """Return the plan in a file. Raises ValueError, with its name, for anything else."""
    return read_json_file(Path(path), JobFile)


def read_stages(plan: SplitPlan | str | Path) -> SplitPlan:
    """Return a split, also the one in the file of a job's plan, or of a planner of stages."""
    if isinstance(plan, SplitPlan):
        return plan
    kind = read_json_file(Path(plan), dict[str, Any])
    return read_job(plan).split if "layout" in kind else read_json_file(Path(plan), SplitPlan)


def dump_job(plan: JobFile) -> dict[str, Any]:
    """Return a plan for a JSON file, which `read_job` reads."""
    return dict(msgspec.to_builtins(plan))


def job_file(pricer: Pricer, answer: PricedPlan, balance: Mapping[str, Any]) -> JobFile:
    """Return the file of a plan. `balance`: the section of that name."""
    plan, job = answer.plan, pricer.job
    unit, encoder, chosen = plan.unit, plan.sizes.encoder, plan.schedule
    units = {"backbone": unit, "encoder": encoder} if encoder else {}
    return JobFile(
        1,
        LayoutSection(job.gpus, unit.dp, unit.tp, unit.pp, chosen.chunks, job.cp),
        ScheduleSection(chosen.name, plan.batch.microbatches, chosen.options),
        make_split(plan.stages, plan.recompute).stages,
        cost_profile(pricer, answer),
        Predicted(answer.step_ns, answer.memory_bytes, answer.lost),
        EncoderSection(cast(Place, plan.placement)),
        job.memory_bytes,
        {name: UnitSection(sizes.dp, sizes.pp, sizes.tp) for name, sizes in units.items()},
        balance,
        tuple(pricer.ordered_loads(plan)),
    )


def cost_profile(pricer: Pricer, answer: PricedPlan) -> CostProfile:
    """Return what a plan assumes of passes, as a measured profile says it."""
    priced, names = pricer.priced(answer.plan), tuple(pricer.job.amounts)

    def function(row: Floats) -> CostFunction:
        fixed, *rates = row.tolist()
        slopes = {name: round(1000 * rate) for name, rate in zip(names, rates, strict=True)}
        return CostFunction(max(0, round(fixed)), {n: v for n, v in slopes.items() if v > 0})

    stages = pricer.stage_rates(answer.plan)
    passes = {kind: tuple(map(function, rows)) for kind, rows in stages.items()}
    return CostProfile(
        placement=priced.program.placement,
        passes=passes | {"O": tuple(map(CostFunction, priced.optimizer_ns))},
        p2p_ns=int(np.max(priced.costs.p2p_ns)),
        collectives=dict(priced.costs.collective_ns),
        overlap=False,
    )

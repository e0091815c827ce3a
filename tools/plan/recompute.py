"""`counterpoise plan job --only recompute`: which layers of which stage to recompute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from rich.table import Table

from ...sched.ir.typed_json import Whole, read_json_file
from ...sched.planners.recompute import (
    Policy,
    Saving,
    Stage,
    Trial,
    all_or_nothing,
    exact_policies,
    modelled_stages,
    plan_recompute,
    savings,
)
from ...sched.planners.stage_split import balanced_partition, step_timer
from ...sched.shapes import Recompute, simulate_step
from ..console.reporting import make_table
from .chain import Chain, read_chain
from .question import Json, PlanAnswer, PlanQuestion

GB = 10**9


@dataclass(frozen=True, slots=True)
class _Measurements:
    """A file of measurements."""

    stages: Annotated[tuple[Stage, ...], msgspec.Meta(min_length=1)]
    trials: Annotated[tuple[Trial, ...], msgspec.Meta(min_length=1)]
    limit_bytes: Whole | None = None
    forward_ns: dict[str, Whole] = field(default_factory=dict)


class _Planned(NamedTuple):
    """Stages with their policies, and what is reported besides."""

    stages: Sequence[Stage]
    saving: Mapping[str, Saving]
    limit_bytes: int
    policies: Sequence[Policy]
    more: Json


def plan_recomputation(question: PlanQuestion) -> PlanAnswer:
    """Choose the layers to recompute: as few, and as cheap, as memory allows (OmniBal, 4.3).

    Memory comes from a model's shapes, or from measurements (recompute.md has the file).
    """
    if question.measured is None:
        planned = _plan_modelled(read_chain(question, largest=True), question.limit_bytes())
    elif question.model or question.parallel or question.data:
        raise ValueError(
            "--measured has stages and memory: leave out --model, --parallel and --data"
        )
    else:
        limit = None if question.memory_gb is None else question.limit_bytes()
        planned = _plan_measured(question.measured, limit)
    stages, policies, limit_bytes = planned.stages, planned.policies, planned.limit_bytes
    usual = [all_or_nothing(stage, planned.saving, limit_bytes) for stage in stages]
    policy = _policy(planned)
    report = {
        **policy,
        **planned.more,
        "recomputed_layers": sum(len(stage_policy.recompute) for stage_policy in policies),
        "all_or_nothing_layers": sum(len(stage_policy.recompute) for stage_policy in usual),
    }
    return PlanAnswer(report, [_table(planned, usual)], lambda: policy)


def _plan_modelled(chain: Chain, limit: int) -> _Planned:
    layers, device, sizes = chain.layers, chain.device, chain.layout.stages
    if not sizes:
        step = step_timer(layers, device, chain.layout)
        sizes = balanced_partition(layers, chain.stages, step)[0][0]
    cut = replace(chain.layout, stages=sizes)
    stages, saving = modelled_stages(layers, cut)
    policies = exact_policies(layers, cut, plan_recompute(stages, saving, limit))
    usual = [all_or_nothing(stage, saving, limit) for stage in stages]
    layouts: dict[str, Recompute] = {
        "plan": tuple(policy.recompute for policy in policies),
        "all_or_nothing": tuple(policy.recompute for policy in usual),
        "all": "all",
    }
    seconds = {}
    for name, recompute in layouts.items():
        again = replace(cut, recompute=recompute)
        seconds[name] = simulate_step([layers] * again.microbatches, device, again).total_ns / 1e9
    more = {"seconds_per_step": seconds, "device": device.origin}
    return _Planned(stages, saving, limit, policies, more)


def _plan_measured(path: Path, limit: int | None) -> _Planned:
    measurements = read_json_file(path, _Measurements)
    allowed = measurements.limit_bytes if limit is None else limit
    if allowed is None:
        raise ValueError(f"{path} has no limit_bytes; add it, or give --memory-gb")
    stages = measurements.stages
    for trial in measurements.trials:
        if trial.stage >= len(stages):
            raise ValueError(
                f"{path}: a trial is of stage {trial.stage}; there are {len(stages)}, from 0"
            )
    saving = savings(stages, measurements.trials, measurements.forward_ns)
    saved = {kind: kind_saving.saved_bytes for kind, kind_saving in saving.items()}
    policies = plan_recompute(stages, saving, allowed)
    return _Planned(stages, saving, allowed, policies, {"saved_bytes": saved})


def _policy(planned: _Planned) -> Json:
    """Return the policy file: each stage's layers, and those to recompute, from its first."""
    first = [0, *accumulate(len(stage.layers) for stage in planned.stages)]
    rows = enumerate(zip(planned.stages, planned.policies, strict=True))
    return {
        "limit_bytes": planned.limit_bytes,
        "stages": [
            {
                "stage": at,
                "first_layer": first[at],
                "layers": len(stage.layers),
                "recompute": list(policy.recompute),
                "predicted_bytes": policy.predicted_bytes,
            }
            for at, (stage, policy) in rows
        ],
    }


def _table(planned: _Planned, usual: Sequence[Policy]) -> Table:
    title = f"layers to recompute within {planned.limit_bytes / GB:.1f} GB a GPU"
    columns = ("layers", "live", "recompute", "all or nothing", "predicted GB")
    table = make_table(title, "stage", *columns)
    rows = zip(planned.stages, planned.policies, usual, strict=True)
    for at, (stage, policy, rough) in enumerate(rows):
        counts = (at, len(stage.layers), stage.live, len(policy.recompute), len(rough.recompute))
        table.add_row(*map(str, counts), f"{policy.predicted_bytes / GB:.2f}")
    return table

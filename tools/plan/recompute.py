"""`counterpoise plan recompute`: which layers of which stage to recompute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import click
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
from ...sched.planners.stage_split import BASELINES, Sizes, balanced_partition, step_timer
from ...sched.shapes import Device, Recompute, step_of
from ..console.reporting import emit, make_table, write_plan
from ..inputs.models import Setting, memory_limit, parse_sizes, with_model

GB = 10**9


@dataclass(frozen=True, slots=True)
class _Measurements:
    """A file of measurements."""

    stages: Annotated[tuple[Stage, ...], msgspec.Meta(min_length=1)]
    trials: Annotated[tuple[Trial, ...], msgspec.Meta(min_length=1)]
    limit_bytes: Whole | None = None
    forward_ns: dict[str, Whole] = field(default_factory=dict)


@click.command("recompute")
@with_model
@click.option("--layers", "sizes", metavar="N,N,...", help="Of each stage.  [default: balanced]")
@click.option(
    "--measured",
    type=click.Path(path_type=Path),
    help="Plan from this file of measurements instead of a model.",
)
@click.option("--memory-gb", type=float, help="GB of a GPU that may be used.  [92 % of the GPU]")
@click.option("--out", type=click.Path(path_type=Path), help="Write the policy here (JSON).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def recompute_command(
    setting: Setting | None,
    sizes: str | None,
    measured: Path | None,
    memory_gb: float | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Choose the layers to recompute: as few, and as cheap, as memory allows (OmniBal, 4.3).

    Memory comes from model shapes, or from measurements: {"limit_bytes": 74000000000, "forward_ns":
    {"vit": 7, "llm": 11}, "stages": [{"layers": ["vit", "vit", "llm"], "live": 4, "base_bytes":
    3000000000}, ...], "trials": [{"stage": 0, "kept": {"vit": 1}, "used_bytes": 3900000000}, ...]}.
    `base_bytes` is used with every layer recomputed, `used_bytes` with some kept. --out writes a
    policy that torch.utils.checkpoint can apply, as examples/recompute.py does.

    Example: counterpoise plan recompute --model internvit-6b+llama3-70b --tp 4 --dp 2 --pp 8
    """
    # Exactly one of the two sources of costs must be given.
    if setting is not None and measured is None:
        found = _modelled(setting, sizes, memory_limit(memory_gb, setting.device))
    elif measured is not None and setting is None:
        found = _measured(
            measured, None if memory_gb is None else memory_limit(memory_gb, Device())
        )
    else:
        raise ValueError("give either --model (or --costs), or --measured FILE")
    usual = [all_or_nothing(stage, found.saving, found.limit_bytes) for stage in found.stages]
    policy = _policy(found)
    write_plan(out, policy)
    counts = {
        "recomputed_layers": sum(len(one.recompute) for one in found.plan),
        "all_or_nothing_layers": sum(len(one.recompute) for one in usual),
    }
    emit({**policy, **found.more, **counts}, as_json, _table(found, usual))


@dataclass(frozen=True, slots=True)
class _Found:
    stages: Sequence[Stage]
    saving: Mapping[str, Saving]
    limit_bytes: int
    plan: Sequence[Policy]
    more: Mapping[str, object]


def _modelled(setting: Setting, sizes: str | None, limit: int) -> _Found:
    layers, device = setting.layers, setting.device
    chosen = parse_sizes(sizes, "--layers") if sizes else _balanced(setting)
    if len(chosen) != setting.stages:
        raise ValueError(f"--layers has {len(chosen)} stages, --pp says {setting.stages}")
    cut = replace(setting.layout, stages=chosen)
    stages, saving = modelled_stages(layers, cut)
    plan = exact_policies(layers, cut, plan_recompute(stages, saving, limit))
    usual = [all_or_nothing(stage, saving, limit) for stage in stages]
    layouts: dict[str, Recompute] = {
        "plan": tuple(one.recompute for one in plan),
        "all_or_nothing": tuple(one.recompute for one in usual),
        "all": "all",
    }
    seconds = {}
    for name, recompute in layouts.items():
        again = replace(cut, recompute=recompute)
        seconds[name] = step_of([layers] * again.microbatches, device, again).total_ns / 1e9
    more = {"seconds_per_step": seconds, "device": device.origin}
    return _Found(stages, saving, limit, plan, more)


def _measured(path: Path, limit: int | None) -> _Found:
    found = read_json_file(path, _Measurements)
    allowed = found.limit_bytes if limit is None else limit
    if allowed is None:
        raise ValueError(f"{path} has no limit_bytes; add it, or give --memory-gb")
    stages = found.stages
    for trial in found.trials:
        if trial.stage >= len(stages):
            raise ValueError(
                f"{path}: a trial is of stage {trial.stage}; there are {len(stages)}, from 0"
            )
    saving = savings(stages, found.trials, found.forward_ns)
    saved = {kind: one.saved_bytes for kind, one in saving.items()}
    plan = plan_recompute(stages, saving, allowed)
    return _Found(stages, saving, allowed, plan, {"saved_bytes": saved})


def _balanced(setting: Setting) -> Sizes:
    layers, stages = setting.layers, setting.stages
    step = step_timer(layers, setting.device, setting.layout)
    also = [method(layers, stages) for method in BASELINES.values()]
    return balanced_partition(layers, stages, step, also=also)[0][0]


def _policy(found: _Found) -> dict[str, Any]:
    """Return the policy file: each stage's layers, and those to recompute, from its first."""
    first = [0, *accumulate(len(stage.layers) for stage in found.stages)]
    return {
        "limit_bytes": found.limit_bytes,
        "stages": [
            {
                "stage": at,
                "first_layer": first[at],
                "layers": len(stage.layers),
                "recompute": list(policy.recompute),
                "predicted_bytes": policy.predicted_bytes,
            }
            for at, (stage, policy) in enumerate(zip(found.stages, found.plan, strict=True))
        ],
    }


def _table(found: _Found, usual: Sequence[Policy]) -> Table:
    title = f"layers to recompute within {found.limit_bytes / GB:.1f} GB a GPU"
    columns = ("layers", "live", "recompute", "all or nothing", "predicted GB")
    table = make_table(title, "stage", *columns)
    rows = zip(found.stages, found.plan, usual, strict=True)
    for at, (stage, policy, rough) in enumerate(rows):
        counts = (at, len(stage.layers), stage.live, len(policy.recompute), len(rough.recompute))
        table.add_row(*map(str, counts), f"{policy.predicted_bytes / GB:.2f}")
    return table

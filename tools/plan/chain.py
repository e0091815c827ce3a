"""A model's chain of layers on a given layout: what `--only partition` and `recompute` plan."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ...sched.ir.typed_json import Whole, read_json_file
from ...sched.planners.job.plan import BatchChoice
from ...sched.shapes import Device, LayerCost, ParallelLayout, layer_costs
from ..console.reporting import live_progress
from ..inputs.models import single
from ..inputs.programs import check_sizes
from .job_data import read_samples
from .question import PlanQuestion

MOST_LAYERS = 1000
MICROBATCHES = 32


@dataclass(frozen=True, slots=True)
class Chain:
    """The costs of a model's layers, and a layout whose stages are to be chosen, or are given."""

    layers: tuple[LayerCost, ...]
    layout: ParallelLayout
    device: Device

    @property
    def stages(self) -> int:
        """Return the number of stages, of all ranks."""
        return self.layout.pp * self.layout.vpp


class _LayerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A layer in a file of layers, `count` times; `parameters` are the whole layer's."""

    kind: str
    forward_ns: Whole
    backward_ns: Whole
    parameters: Whole
    output_bytes: Whole
    activation_bytes: Whole = 0
    input_bytes: Whole = 0
    working_bytes: Whole = 0
    count: Whole = 1

    def cost(self, tp: int) -> LayerCost:
        """Return the layer on one of tp GPUs."""
        fields = msgspec.structs.asdict(self)
        del fields["count"]
        # Its input is the size of its output, unless the file says otherwise.
        fields["input_bytes"] = self.input_bytes or min(self.output_bytes, self.activation_bytes)
        fields["parameters"] = -(-self.parameters // tp)
        return LayerCost(**fields, weight_ns=self.backward_ns // 2)


class _LayerFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    layers: Annotated[tuple[_LayerEntry, ...], msgspec.Meta(min_length=1)]


def read_chain(question: PlanQuestion, *, largest: bool = False) -> Chain:
    """Return the layers of a model for a microbatch, or those of a file of measured ones.

    A microbatch is the model's usual one, or with --data the mean of a step's, or the `largest`.
    Raises ValueError for a layout without pp, or with more stages than there are layers.
    """
    sizes = question.sizes()
    if "pp" not in sizes:
        raise ValueError(
            f"give --parallel with pp, such as tp=2,pp=8,dp=4; got {question.parallel!r}"
        )
    stages = sizes.pop("stages", ())
    named = {"sp": "sequence_parallel"}
    fields: dict[str, Any] = {
        named.get(name, name): single(name, values) for name, values in sizes.items()
    }
    vpp, microbatches = fields.get("vpp", 1), fields.setdefault("microbatches", MICROBATCHES)
    check_sizes(pp=fields["pp"], vpp=vpp, microbatches=microbatches)
    schedule = "interleaved" if vpp > 1 else "1f1b"
    layout = ParallelLayout(**fields, schedule=schedule, stages=stages)
    device = question.gpu
    layers = _find_layers(question, device, layout, largest)
    if layout.pp * vpp > len(layers):
        raise ValueError(
            f"pp {layout.pp} x vpp {vpp}: {question.model} has {len(layers)} layers, one a stage"
        )
    return Chain(layers, layout, device)


def _find_layers(
    question: PlanQuestion, device: Device, layout: ParallelLayout, largest: bool
) -> tuple[LayerCost, ...]:
    if question.has_measured("layers"):
        if question.data or question.frozen:
            raise ValueError("--model has measured layers: leave out --data and --frozen")
        return _read_layers(Path(str(question.model)), layout.tp)
    model = question.read_model()
    amounts = model.amounts()
    if question.data is not None:
        count = layout.dp * layout.microbatches
        batch = question.samples_per_step or count
        with live_progress() as progress:
            samples = read_samples(question.data, model, batch, question.seed, layout.cp, progress)
        amounts = {name: -(-total // count) for name, total in samples.amounts.items()}
        if largest:
            amounts = dict(samples.loads(layout.dp, BatchChoice(layout.microbatches)).most)
    return layer_costs(model, device, layout, amounts)


def _read_layers(path: Path, tp: int) -> tuple[LayerCost, ...]:
    entries = read_json_file(path, _LayerFile).layers
    if (count := sum(entry.count for entry in entries)) > MOST_LAYERS:
        raise ValueError(f"{path} has {count} layers, and {MOST_LAYERS} are planned at most")
    return tuple(layer for entry in entries for layer in [entry.cost(tp)] * entry.count)

"""Split a model into stages by a plan, with the recomputation that each layer needs.

A stage holds its modules under the names that they have in the model, so that checkpoints are the
whole model's, whatever the split.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...planners.stage_split import SplitPlan, read_split

# call(layer, hidden states, extras) -> what the layer returns
CallLayer = Callable[[nn.Module, Tensor, Mapping[str, Any]], Any]


def split(
    model: nn.Module,
    plan: SplitPlan | str | Path,
    *,
    layers: str | Sequence[str] = "layers",
    first: Sequence[str] = (),
    last: Sequence[str] = (),
    call: CallLayer | None = None,
) -> list[nn.Module]:
    """Return the stages of a model, by number; give each rank those that the schedule puts there.

    `plan`: a SplitPlan, or the file that `plan partition --out` or `plan recompute --out` wrote.
    `layers`: the names of the model's lists of layers, whose layers follow each other, such as
    "model.layers"; "" for a model that is a list itself. `first`, `last`: the names of modules
    before and after them, such as "model.embed_tokens" and "model.norm"; they take and return one
    tensor. `call`: how a layer is called; by default with the hidden states and the stage's extras
    by keyword. Where a layer returns several values the first are the hidden states. Raises
    ValueError for another number of layers than the plan's, and names that the model has not.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    >>> from counterpoise.sched.planners.stage_split import split_of
    >>> [list(stage.state_dict()) for stage in split(model, split_of((1, 2)), layers="")]
    [['0.weight', '0.bias'], ['2.weight', '2.bias']]
    """
    plan = plan if isinstance(plan, SplitPlan) else read_split(plan)
    names = _layer_names(model, [layers] if isinstance(layers, str) else layers, (*first, *last))
    if len(names) != plan.layers:
        raise ValueError(
            f"the lists hold {len(names)} layers, the plan {plan.layers}; plan for this model, or "
            "name the lists that hold all its layers"
        )
    stages: list[nn.Module] = []
    for stage in plan.stages:
        own = [names[number] for number in stage.numbers]
        again = frozenset(own[position] for position in stage.recompute)
        # What is around the layers belongs to the ends of the pipeline.
        front = first if stage.stage == 0 else ()
        back = last if stage.stage == len(plan.stages) - 1 else ()
        how = call or (lambda layer, x, extras: layer(x, **extras))
        stages.append(_SplitStage(model, front, own, back, again, how))
    return stages


def _layer_names(model: nn.Module, lists: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the names of all layers of some lists, in their order."""
    known = dict(model.named_modules())
    if missing := [name for name in (*lists, *others) if name not in known]:
        raise ValueError(
            f"the model has no {', '.join(missing)}; it has {', '.join(n for n in known if n)}"
        )
    return [
        f"{start}.{name}" if start else name
        for start in lists
        for name, _ in known[start].named_children()
    ]


class _SplitStage(nn.Module):
    """Some modules of a model under their names, run one after another."""

    def __init__(
        self,
        model: nn.Module,
        first: Sequence[str],
        layers: Sequence[str],
        last: Sequence[str],
        recompute: frozenset[str],
        call: CallLayer,
    ) -> None:
        super().__init__()
        self._first, self._layers, self._last = tuple(first), tuple(layers), tuple(last)
        self._recompute, self._call = recompute, call
        for name in (*first, *layers, *last):
            _hold(self, name, model.get_submodule(name))

    def forward(self, x: Tensor, **extras: Any) -> Tensor:
        """Run the modules on the stage's input."""
        for name in self._first:
            x = self.get_submodule(name)(x)
        for name in self._layers:
            layer = self.get_submodule(name)
            if name in self._recompute and torch.is_grad_enabled():
                found = checkpoint(self._call, layer, x, extras, use_reentrant=False)
            else:
                found = self._call(layer, x, extras)
            x = found if isinstance(found, Tensor) else found[0]
        for name in self._last:
            x = self.get_submodule(name)(x)
        return x


def _hold(stage: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module into a stage under its dotted name."""
    *outer, last = name.split(".")
    at = stage
    for part in outer:
        if part not in dict(at.named_children()):
            at.add_module(part, nn.Module())
        at = at.get_submodule(part)
    at.add_module(last, module)

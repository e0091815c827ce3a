"""Split a model into stages by a plan, with the recomputation that each layer needs.

A stage holds its modules under the names that they have in the model, so that checkpoints are the
whole model's, whatever the split.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...planners.job.schema import read_stages
from ...planners.stage_split import SplitPlan
from .checking import check_stages

# call(layer, hidden states, extras) -> what the layer returns
CallLayer = Callable[[nn.Module, Tensor, Mapping[str, Any]], Any]
# prepare(hidden states, extras) -> more extras
Prepare = Callable[[Tensor, Mapping[str, Any]], Mapping[str, Any]]


def split(
    model: nn.Module,
    plan: SplitPlan | str | Path,
    *,
    layers: str | Sequence[str] = "layers",
    first: Sequence[str] = (),
    last: Sequence[str] = (),
    call: CallLayer | None = None,
    calls: Mapping[str, CallLayer] | None = None,
    prepare: Prepare | None = None,
    finish: Callable[[Tensor], Tensor] | None = None,
    check: Mapping[str, Any] | Literal[False] | None = None,
) -> list[nn.Module]:
    """Return the stages of a model, by number; give each rank those that the schedule puts there.

    Args:
        model: The whole model.
        plan: A SplitPlan, or the file that `counterpoise plan job --out` wrote, also of a part.
        layers: The names of the lists of layers, which follow each other, such as "model.layers";
            "" for a model that is a list itself. Default "layers".
        first: The modules before the layers, such as "model.embed_tokens"; each takes and returns
            one tensor. Default: none.
        last: The same behind the layers, such as "model.norm".
        call: How a layer is called; default: with the hidden states and the stage's extras by
            keyword. Where a layer returns several values the first are the hidden states.
        calls: {name: how this module is called}, with what the model's forward does between them.
        prepare: Called once in each stage, behind `first`; its modules find what it returns among
            the extras.
        finish: What the loss of vocabulary passes does to logits, such as a softcap.
        check: A tiny microbatch, the input first, for which logits and gradients of the stages are
            compared with those of the model's forward; default: one is made. False for none.

    Raises ValueError for another number of layers than the plan's, names that the model has not, a
    difference, with the first module where it appears, and a weight of a stage that a module which
    is in none has, too. Pipeline sums the gradients of parameters that several stages have.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    >>> from counterpoise.sched.planners.stage_split import make_split
    >>> [list(stage.state_dict()) for stage in split(model, make_split((1, 2)), layers="")]
    [['0.weight', '0.bias'], ['2.weight', '2.bias']]
    """
    plan = read_stages(plan)
    names = _layer_names(model, [layers] if isinstance(layers, str) else layers, (*first, *last))
    if len(names) != plan.layers:
        raise ValueError(
            f"the lists hold {len(names)} layers, the plan {plan.layers}; plan for this model, or "
            "name the lists that hold all its layers"
        )
    held = [*first, *names, *last]
    if missing := sorted(set(calls or {}) - set(held)):
        raise ValueError(f"calls= names {', '.join(missing)}, which is in no stage")
    stages: list[_SplitStage] = []
    for stage in plan.stages:
        layer_names = [names[number] for number in stage.numbers]
        again = frozenset(layer_names[position] for position in stage.recompute)
        # What is around the layers belongs to the ends of the pipeline.
        front = first if stage.stage == 0 else ()
        back = last if stage.stage == len(plan.stages) - 1 else ()
        around: dict[str, CallLayer] = dict.fromkeys((*front, *back), _call_end)
        around |= dict.fromkeys(layer_names, call or _call_layer)
        around |= {name: how for name, how in (calls or {}).items() if name in around}
        split_stage = _SplitStage(model, (*front, *layer_names, *back), again, around)
        split_stage.prepare, split_stage.front = prepare, len(front)
        stages.append(split_stage)
    _find_ties(model, stages)
    if check is not False:
        check_stages(model, stages, held, check, finish)
    return [*stages]


def _call_end(module: nn.Module, x: Tensor, extras: Mapping[str, Any]) -> Any:
    del extras
    return module(x)


def _call_layer(layer: nn.Module, x: Tensor, extras: Mapping[str, Any]) -> Any:
    return layer(x, **extras)


def _find_ties(model: nn.Module, stages: Sequence["_SplitStage"]) -> None:
    """Tell each stage which of its parameters others have, too.

    Raises ValueError for one that a module has which is in no stage.
    """
    names: dict[nn.Parameter, dict[int, str]] = {}
    for number, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            names.setdefault(parameter, {})[number] = name
    inside = {module for stage in stages for module in stage.modules()}
    for where, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if module not in inside and parameter in names:
                tied = next(iter(names[parameter].values()))
                raise ValueError(
                    f"{tied} is tied to {where}.{name}, which is in no stage and would train "
                    "apart; put both into stages (first=, last=), or neither, and divide both in "
                    "vocabulary passes: VocabParallel(lm_head, embedding)"
                )
    for name_by_stage in names.values():
        if len(name_by_stage) > 1:
            for number, name in name_by_stage.items():
                stages[number].ties[name_by_stage[min(name_by_stage)]] = name, tuple(name_by_stage)


def with_ties(
    parameters: Mapping[str, nn.Parameter] | None,
    stages: Mapping[int, nn.Module],
    placement: Sequence[int],
) -> dict[str, nn.Parameter]:
    """Return shared parameters with those that stages of a split have on other ranks, too.

    `parameters`: shared already, by names of their own. `placement`: the rank of each stage.
    """
    shared_parameters = dict(parameters or {})
    known = {id(parameter) for parameter in shared_parameters.values()}
    for part in (part for stage in stages.values() for part in stage.modules()):
        for shared, (name, numbers) in part.ties.items() if isinstance(part, _SplitStage) else ():
            parameter = part.get_parameter(name)
            if len({placement[n] for n in numbers}) > 1 and id(parameter) not in known:
                shared_parameters[shared] = parameter
    return shared_parameters


def _layer_names(model: nn.Module, lists: Sequence[str], around: Sequence[str]) -> list[str]:
    """Return the names of all layers of some lists, in their order."""
    known = dict(model.named_modules())
    if missing := [name for name in (*lists, *around) if name not in known]:
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
        names: Sequence[str],
        recompute: frozenset[str],
        calls: Mapping[str, CallLayer],
    ) -> None:
        super().__init__()
        self._names, self._recompute, self._calls = tuple(names), recompute, dict(calls)
        # By a name that is one in all stages: the parameter's here, and the stages that have it.
        self.ties: dict[str, tuple[str, tuple[int, ...]]] = {}
        # What is called behind the first modules.
        self.prepare: Prepare | None = None
        self.front = 0
        for name in names:
            hold(self, name, model.get_submodule(name))

    def forward(self, x: Tensor, **extras: Any) -> Tensor:
        """Run the modules on the stage's input."""
        for at, name in enumerate(self._names):
            if at == self.front and self.prepare is not None:
                extras = {**extras, **self.prepare(x, extras)}
            module, call = self.get_submodule(name), self._calls[name]
            if name in self._recompute and torch.is_grad_enabled():
                output = checkpoint(call, module, x, extras, use_reentrant=False)
            else:
                output = call(module, x, extras)
            x = output if isinstance(output, Tensor) else output[0]
        return x


def hold(stage: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module into a stage under its dotted name."""
    *outer, last = name.split(".")
    at = stage
    for part in outer:
        if part not in dict(at.named_children()):
            at.add_module(part, nn.Module())
        at = at.get_submodule(part)
    at.add_module(last, module)

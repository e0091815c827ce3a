"""A generator: what a user says of it, and the part of the model that runs its passes.

GF makes the microbatch's loss of the states that an edge brings from the last stage, which come
detached; GB runs back from it, and the gradient of the states goes to the last stage's backward
along another edge. A microbatch with nothing to generate calls no module: no states travel, and the
gradient that the last stage waits for is empty.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ...ir.program import Pass, Program
from ...transforms.generator_passes import has_generator
from ..compiled import Value
from ..gradients import refuse_sharded
from ..parts import Given, Made, StepData, TensorSpec, count_tokens, gradient_or_zeros
from ..settings import WEIGHTS, StageOptions, weigh_microbatch
from .calling import StateCapture, Take, call_module, find_layer


@dataclass(frozen=True, slots=True)
class GeneratorSpec:
    """A second head that learns from the language model's last hidden states, such as a decoder.

    Args:
        name: In messages and checkpoints, the same on every rank.
        module: Called with the states and the fields `inputs` of a microbatch, returns its loss,
            the *sum* over what it generates; None on ranks that do not run it.
        tokens: The states of a microbatch, by cost ({"pictures": 16}) or as a function of its info;
            for 0 the module is not called.
        width: Of a state, so states are (tokens, width).
        inputs: The fields that the module gets; default: none.
        take: Called with the last hidden states and the microbatch's fields on this rank, returns
            the states; default: they are the hidden states.
        marks: The fields that `take` reads; default: none.
        states: The layer in the last stage's module whose output the hidden states are; default:
            the stage's output, as with vocabulary passes.
        weigh: What a microbatch's loss counts in the step's: "token", "sample", or a function of
            its info; default "sample".
        trainable: False freezes the module; gradients go through it. Default True.
        dtype: The precision of the states; default torch.float32.
        module_name: What checkpoints call the module; default `generators.NAME`.

    Raises ValueError for another `weigh`, and for sharded modules.
    """

    name: str
    module: nn.Module | None
    tokens: Mapping[str, int] | Callable[[Any], int]
    width: int
    inputs: tuple[str, ...] = ()
    take: Take | None = None
    marks: tuple[str, ...] = ()
    states: str = ""
    weigh: str | Callable[[Any], float] = "sample"
    trainable: bool = True
    dtype: torch.dtype = torch.float32
    module_name: str = ""

    def __post_init__(self) -> None:
        """Freeze what is not to be trained. Raises ValueError for sharded modules."""
        if isinstance(self.weigh, str) and self.weigh not in WEIGHTS:
            raise ValueError(
                f"the generator {self.name!r} weighs by {self.weigh!r}; give "
                f"{', '.join(map(repr, WEIGHTS))}, or a function of a microbatch's info"
            )
        if self.module is None:
            return
        refuse_sharded(self.module, f"the generator {self.name!r}", "with nothing to generate")
        if not self.trainable:
            self.module.requires_grad_(False)

    def states_spec(self, info: Any) -> TensorSpec:
        """Return the states of a microbatch; their gradient is alike. Raises ValueError."""
        count = count_tokens(f"the generator {self.name!r}", self.tokens, info)
        return TensorSpec((count, self.width), self.dtype)


class _Kept(NamedTuple):
    """The states, if their gradient is wanted, and where the loss' gradient enters the graph."""

    states: Tensor | None
    edge: GradientEdge | None


@dataclass(eq=False, slots=True)
class GeneratorPart:
    """Runs a generator's passes on one rank. `options`: as for stages."""

    program: Program
    rank: int
    generator: GeneratorSpec
    options: StageOptions = field(default_factory=StageOptions)
    kinds: frozenset[str] = frozenset()
    # The microbatches that this rank generates.
    generated: frozenset[int] = frozenset()
    _data: StepData = field(default_factory=lambda: StepData((), ()))
    _losses: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find out whether this rank runs the generator. Raises ValueError without its module."""
        row = self.program.ranks[self.rank]
        self.generated = frozenset(item.microbatch for item in row if item.kind == "GF")
        if self.generated:
            self.kinds = frozenset(("GF", "GB"))
            if self.generator.module is None:
                raise ValueError(
                    f"the generator {self.generator.name!r} runs on this rank; give its module, "
                    "not None"
                )

    def edge_specs(self, infos: Sequence[Any]) -> dict[Value, TensorSpec]:
        """Return the sizes of states and their gradients. `infos`: None of what is not here."""
        specs = {}
        for item in (p for row in self.program.ranks for p in row if p.kind == "GF"):
            if (info := infos[item.microbatch]) is not None:
                spec = self.generator.states_spec(info)
                specs[_states(self.program, item)] = spec
                specs[Value("X_GB", item.stage, item.microbatch)] = spec
        return specs

    def begin_step(self, data: StepData) -> None:
        """Take the step's microbatches."""
        self._data, self._losses = data, []

    def run_pass(self, pass_: Pass, reads: Given) -> Made:
        """Run one GF or GB."""
        if pass_.kind == "GF":
            return {"generator": self._forward(pass_, reads)}
        generated: _Kept = reads["generator"]
        if generated.edge is not None:
            torch.autograd.backward([generated.edge])
        if generated.states is None:
            return {}
        return {"X_GB": gradient_or_zeros(generated.states)}

    def finish_step(self) -> Tensor | None:
        """Return the sum of the weighted losses, None on ranks that generate nothing."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).sum() if losses else None

    def _forward(self, pass_: Pass, reads: Given) -> _Kept:
        needs_gradient, module = self._data.input_gradient[-1], self.generator.module
        states = reads[_states(self.program, pass_).name][0]
        states = states.detach().requires_grad_(needs_gradient)
        if 0 in states.shape or module is None:
            return _Kept(states if needs_gradient else None, None)
        microbatch = self._data.microbatches[pass_.microbatch]
        inputs = [states, *(microbatch.fields[name] for name in self.generator.inputs)]
        with torch.set_grad_enabled(self._data.training):
            loss = call_module(module, inputs, {}, self.options, pass_)
            if loss.dim():
                raise ValueError(
                    f"the generator {self.generator.name!r} returned a loss of shape "
                    f"{tuple(loss.shape)}; return the sum over what it generates"
                )
            loss = loss * weigh_microbatch(self.generator.weigh, microbatch.info)
        self._losses.append(loss.detach())
        edge = get_gradient_edge(loss) if loss.requires_grad else None
        return _Kept(states if needs_gradient else None, edge)


def _states(program: Program, item: Pass) -> Value:
    """Return the value that brings a generator's pass its states: the last stage's."""
    return Value("X_F", program.stages - 1, item.microbatch)


@dataclass(frozen=True, slots=True)
class RankGenerator:
    """The generator, if there is one. `ranks`: those that run it, in the program's numbering."""

    spec: GeneratorSpec | None
    rank: int
    ranks: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return the generator's name, "" without one."""
        return "" if self.spec is None else self.spec.name

    def named_modules(self) -> dict[str, nn.Module]:
        """Return the module if this rank runs it, by its name in the whole model."""
        if (spec := self.spec) is None or self.rank not in self.ranks or spec.module is None:
            return {}
        return {spec.module_name or f"generators.{spec.name}": spec.module}

    def saved_elsewhere(self) -> frozenset[str]:
        """Return the module's name if a rank before this one has a copy, and saves it."""
        return frozenset(self.named_modules() if self.rank != min(self.ranks, default=0) else ())

    def fields(self, rank: int, last: int, *, generates: bool = True) -> set[str]:
        """Return the fields that a rank needs for it. `last`: the rank of the last stage."""
        if self.spec is None:
            return set()
        names = set(self.spec.inputs) if generates and rank in self.ranks else set[str]()
        return names | (set(self.spec.marks) if rank == last else set())

    def capture(self, last: nn.Module | None) -> StateCapture | None:
        """Return how states are taken from the last stage's module. Raises ValueError."""
        if self.spec is None or last is None:
            return None
        states = self.spec.states
        layer = find_layer(last, "states", states, "last") if states else None
        return StateCapture(self.spec.take, layer)


def rank_generator(spec: GeneratorSpec | None, program: Program, rank: int) -> RankGenerator:
    """Return the generator of a rank. Raises ValueError for passes without a generator."""
    if spec is None and has_generator(program):
        raise ValueError(
            f"the schedule {program.name!r} has a generator's passes; give generator= the "
            "GeneratorSpec that they run"
        )
    ranks = (at for at, row in enumerate(program.ranks) if any(p.kind == "GF" for p in row))
    return RankGenerator(spec, rank, tuple(ranks))

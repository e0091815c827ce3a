"""Run F, B, I and W of a rank's stages, each an `nn.Module`, with autograd.

F keeps the input, if its gradient is wanted, and the edge of the graph where the output's gradient
will enter; not the output, whose memory is free once it has been sent. Without anything to train at
or before a stage, F makes no graph and backward passes do nothing. The features that edges bring to
an F are leaves of its graph, and their gradients a result of the backward.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ...ir.kinds import BACKWARD
from ...ir.program import Pass, Program
from ..compiled import Value
from ..gradients import begin_step, last_backward
from ..parts import Given, Joint, Made, MicrobatchData, StepData, gradient_or_zeros, pack
from ..settings import NOTHING, StageOptions, StepLoss
from .calling import Merging, StateCapture, call_module, grad_mode
from .deferral import DeferredGradients, defer_linear_layers, deferring


class _Kept(NamedTuple):
    """The tensors that a backward needs.

    `input`, `features`: if their gradients are wanted. `ends`: where gradients enter the graph, of
    the output or losses, and of a generator's states; each with the gradient, or the names of what
    may bring it.
    """

    input: Tensor | None
    features: tuple[Tensor, ...]
    ends: tuple[tuple[GradientEdge, Tensor | Sequence[str]], ...]


@dataclass(eq=False, slots=True)
class Stages:
    """The stages of one rank, as a part of the executor.

    `program`: says which barriers lead into and out of the model. `modules_by_stage`: this rank's.
    `options`, `loss`: as of Pipeline. `joints`: where encoders' features enter. `merging`: what
    becomes of them. `capture`: how a generator's states are taken from the last stage. `own`: the
    microbatches that they run, all by default. `travelling`: the name of features that come before
    the passes.
    """

    program: Program
    modules_by_stage: Mapping[int, nn.Module]
    options: StageOptions
    loss: StepLoss = field(default_factory=StepLoss)
    joints: Mapping[tuple[int, int], Joint] = field(default_factory=dict)
    merging: Merging | None = None
    capture: StateCapture | None = None
    kinds: frozenset[str] = frozenset("FBIW")
    own: range | None = None
    travelling: str = ""
    _data: StepData = field(default_factory=lambda: StepData((), ()))
    _losses: list[Tensor] = field(default_factory=list)
    _split: frozenset[tuple[int, int]] = frozenset()
    _last: Mapping[int, int] = field(default_factory=dict)
    # The names of what brings the first stage's input, and the gradient of the last one's output.
    _entries: tuple[str, ...] = ()
    _exits: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Make the linear layers able to defer, where the program has passes that do."""
        self._split = frozenset(
            (item.stage, item.microbatch)
            for row in self.program.ranks
            for item in row
            if item.kind == "W" and self.options.split
        )
        # The microbatch of each stage's last backward, in which FSDP2 reduces.
        own = range(self.program.microbatches) if self.own is None else self.own
        self._last = {
            item.stage: item.microbatch
            for row in self.program.ranks
            for item in row
            if item.kind in BACKWARD and item.microbatch in own
        }
        self._entries = ("F", *_before(self.program, "first", ["F"]))
        self._exits = ("B", *_before(self.program, "last", BACKWARD))
        for stage, module in self.modules_by_stage.items():
            if any(one == stage for one, _ in self._split):
                defer_linear_layers(module)

    def begin_step(self, data: StepData) -> None:
        """Take the step's microbatches."""
        self._data, self._losses = data, []
        for module in self.modules_by_stage.values():
            begin_step(module)

    def run_pass(self, what: Pass, given: Given) -> Made:
        """Run one F, B, I or W."""
        if what.kind == "F":
            return self._forward(what, given)
        if what.kind == "W":
            given["weight"].compute()
            return {}
        return self._backward(what, given)

    def finish_step(self) -> Tensor | None:
        """Return the sum of the weighted losses, None on ranks without the last stage."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).sum() if losses else None

    def _forward(self, what: Pass, given: Given) -> Made:
        microbatch = self._data.microbatches[what.microbatch]
        wanted = self._data.input_gradient[what.stage]
        # Whether anything is trained at or before this stage.
        trained = self._data.input_gradient[what.stage + 1]
        x = _first(given, self._entries)
        if x is not None:
            x = x.detach().requires_grad_(wanted)
        joint = self.joints.get((what.stage, what.microbatch))
        features = joint.features(given) if joint is not None else []
        # Their gradients are taken when all passes are over, not as a result of this backward.
        early = self._early(what)
        is_last = what.stage == self.program.stages - 1
        with grad_mode(trained), deferring() if self._splits(what) else NOTHING:
            whole = features if joint is None else joint.joined(features)
            output = self._call(what, x, [*whole, *early], microbatch)
            states = self._states(what, output, microbatch)
            losses = self._compute_losses(output, microbatch) if is_last else []
        made: dict[str, Any] = {"F": output.detach()}
        ends: list[tuple[Tensor, Tensor | Sequence[str]]]
        ends = [(loss, torch.ones_like(loss)) for loss in losses]
        if not is_last or self.loss.function is None:
            advice = "give Pipeline the hidden states' true shape and precision"
            spec = (microbatch.ends if is_last else None) or microbatch.hidden
            spec.check(output, f"{what} made", advice)
            ends.append((output, self._exits))
        if states is not None:
            made["X_F"] = states.detach()
            ends.append((states, ("X_GB",)))
        edges = tuple((get_gradient_edge(end), found) for end, found in ends if end.requires_grad)
        returned = tuple(tensor for tensor in features if tensor.requires_grad)
        made["activation"] = _Kept(x if wanted else None, returned, edges)
        return made

    def _compute_losses(self, output: Tensor, microbatch: MicrobatchData) -> list[Tensor]:
        """Return what a microbatch adds to the step's loss: an auxiliary loss, and the main one."""
        found, fields, loss = list[Tensor](), microbatch.fields, self.loss
        if loss.auxiliary is not None:
            found.append(loss.auxiliary(fields) * microbatch.weight)
        if loss.function is not None:
            labels = [fields[name] for name in loss.labels]
            with self.options.cast(output):
                found.append(loss.function(output, *labels) * microbatch.weight)
        self._losses += [part.detach() for part in found]
        return found

    def _states(self, what: Pass, output: Tensor, microbatch: MicrobatchData) -> Tensor | None:
        """Return what a generator takes of a microbatch, if one waits for it."""
        spec = self._data.edges.get(Value("X_F", what.stage, what.microbatch))
        if spec is None or self.capture is None:
            return None
        if 0 in spec.shape:
            return spec.empty(output.device)
        return self.capture.states(output, microbatch.fields, spec)

    def _call(
        self,
        what: Pass,
        x: Tensor | None,
        features: Sequence[Tensor],
        microbatch: MicrobatchData,
    ) -> Tensor:
        fields = microbatch.fields
        inputs = [x] if x is not None else [fields[name] for name in self.options.inputs]
        extras = {name: fields[name] for name in self.options.extras}
        module: Callable[..., Tensor] = self.modules_by_stage[what.stage]
        if features and self.merging is not None:
            joint = self.joints.get((what.stage, what.microbatch))
            names = (self.travelling,) if joint is None else joint.names
            module = self.merging.around(module, names, fields, embedded=x is not None)
        if self.capture is not None and what.stage == self.program.stages - 1:
            self.capture.expect()
        return call_module(module, [*inputs, *features], extras, self.options, what)

    def _early(self, what: Pass) -> list[Tensor]:
        """Return the features of a first stage's microbatch that came before the passes."""
        found = None if what.stage else self._data.features.get(what.microbatch)
        return [] if found is None else [found]

    def _backward(self, what: Pass, given: Given) -> Made:
        kept: _Kept = given["activation"]
        pending = DeferredGradients()
        if kept.ends:
            edges, gradients = [edge for edge, _ in kept.ends], list[Tensor]()
            for _, found in kept.ends:
                gradient = found if isinstance(found, Tensor) else _first(given, found)
                if gradient is None:
                    raise RuntimeError(f"{what} has no gradient of its output; check the program")
                gradients.append(gradient)
            if self._last[what.stage] == what.microbatch:
                last_backward(self.modules_by_stage[what.stage])
            if self._splits(what):
                pending.backward(edges, gradients)
            else:
                torch.autograd.backward(edges, gradients)
        made: dict[str, Any] = {"weight": pending}
        if kept.input is not None:
            made["B"] = gradient_or_zeros(kept.input)
        if kept.features:
            made[f"X_{what.kind}"] = pack([gradient_or_zeros(leaf) for leaf in kept.features])
        return made

    def _splits(self, what: Pass) -> bool:
        """Return whether a W computes the weight gradients of a pass' microbatch."""
        return (what.stage, what.microbatch) in self._split


def _before(program: Program, where: str, kinds: Iterable[str]) -> list[str]:
    """Return the names of the barriers that passes at the model's first or last stage wait for."""
    passes = {(where, name) for name in kinds}
    return [barrier.name for barrier in program.barriers if passes & set(barrier.before)]


def _first(given: Given, names: Iterable[str]) -> Tensor | None:
    """Return the first value of these names that there is; of an edge's, the only one."""
    found: Any = next((given[name] for name in names if name in given), None)
    first: Tensor | None = found[0] if isinstance(found, tuple) else found
    return first

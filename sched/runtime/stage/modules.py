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

    `input`, `features`: if their gradients are wanted. `root_edges`: of the output or losses and a
    generator's states, where gradients enter; each with the gradient, or the names of its sources.
    """

    input: Tensor | None
    features: tuple[Tensor, ...]
    root_edges: Sequence[tuple[GradientEdge, Tensor | Sequence[str]]]


@dataclass(eq=False, slots=True)
class Stages:
    """The stages of one rank, as a part of the executor.

    `program`: says which barriers lead into and out of the model. `modules_by_stage`: this rank's.
    `options`, `loss`: as of Pipeline. `joints`: where encoders' features enter, by stage and
    microbatch. `merging`: puts features into the embeddings. `capture`: how a generator's states
    are taken from the last stage. `kinds`: those of the passes that they run. `microbatches`: those
    that they run, all by default. `travelling_name`: of features that come before the passes.
    """

    program: Program
    modules_by_stage: Mapping[int, nn.Module]
    options: StageOptions
    loss: StepLoss = field(default_factory=StepLoss)
    joints: Mapping[tuple[int, int], Joint] = field(default_factory=dict)
    merging: Merging | None = None
    capture: StateCapture | None = None
    kinds: frozenset[str] = frozenset("FBIW")
    microbatches: range | None = None
    travelling_name: str = ""
    _data: StepData = field(default_factory=lambda: StepData((), ()))
    _losses: list[Tensor] = field(default_factory=list)
    # Stage and microbatch of those whose weight gradients a W computes.
    _deferred_passes: frozenset[tuple[int, int]] = frozenset()
    _last_backward_by_stage: Mapping[int, int] = field(default_factory=dict)
    # The names of what brings the first stage's input, and the gradient of the last one's output.
    _entries: tuple[str, ...] = ()
    _exits: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Make the linear layers able to defer, where the program has passes that do."""
        self._deferred_passes = frozenset(
            (item.stage, item.microbatch)
            for row in self.program.ranks
            for item in row
            if item.kind == "W" and self.options.split
        )
        # The microbatch of each stage's last backward, in which FSDP2 reduces.
        microbatches = self.microbatches or range(self.program.microbatches)
        self._last_backward_by_stage = {
            item.stage: item.microbatch
            for row in self.program.ranks
            for item in row
            if item.kind in BACKWARD and item.microbatch in microbatches
        }
        self._entries = ("F", *_before(self.program, "first", ["F"]))
        self._exits = ("B", *_before(self.program, "last", BACKWARD))
        for stage, module in self.modules_by_stage.items():
            if any(split_stage == stage for split_stage, _ in self._deferred_passes):
                defer_linear_layers(module)

    def begin_step(self, data: StepData) -> None:
        """Take the step's microbatches."""
        self._data, self._losses = data, []
        for module in self.modules_by_stage.values():
            begin_step(module)

    def run_pass(self, pass_: Pass, reads: Given) -> Made:
        """Run one F, B, I or W."""
        if pass_.kind == "F":
            return self._forward(pass_, reads)
        if pass_.kind == "W":
            reads["weight"].compute()
            return {}
        return self._backward(pass_, reads)

    def finish_step(self) -> Tensor | None:
        """Return the sum of the weighted losses, None on ranks without the last stage."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).sum() if losses else None

    def _forward(self, pass_: Pass, reads: Given) -> Made:
        microbatch = self._data.microbatches[pass_.microbatch]
        needs_gradient = self._data.input_gradient[pass_.stage]
        # Whether anything is trained at or before this stage.
        trained = self._data.input_gradient[pass_.stage + 1]
        hidden = _first_present(reads, self._entries)
        if hidden is not None:
            hidden = hidden.detach().requires_grad_(needs_gradient)
        joint = self.joints.get((pass_.stage, pass_.microbatch))
        features = joint.features(reads) if joint is not None else []
        # Their gradients are taken when all passes are over, not as a result of this backward.
        travelling = None if pass_.stage else self._data.features.get(pass_.microbatch)
        is_last = pass_.stage == self.program.stages - 1
        is_deferred = (pass_.stage, pass_.microbatch) in self._deferred_passes
        with grad_mode(trained), deferring() if is_deferred else NOTHING:
            stage_features = [*(features if joint is None else joint.joined(features))]
            stage_features += [] if travelling is None else [travelling]
            output = self._call_stage(pass_, hidden, stage_features, microbatch.fields)
            states = self._take_states(pass_, output, microbatch)
            losses = self._compute_losses(output, microbatch) if is_last else []
        writes: dict[str, Any] = {"F": output.detach()}
        roots: list[tuple[Tensor, Tensor | Sequence[str]]]
        roots = [(loss, torch.ones_like(loss)) for loss in losses]
        if not is_last or self.loss.function is None:
            advice = "give Pipeline the hidden states' true shape and precision"
            spec = (microbatch.ends if is_last else None) or microbatch.hidden
            spec.check(output, f"{pass_} made", advice)
            roots.append((output, self._exits))
        if states is not None:
            writes["X_F"] = states.detach()
            roots.append((states, ("X_GB",)))
        edges = [(get_gradient_edge(root), source) for root, source in roots if root.requires_grad]
        trained_features = tuple(tensor for tensor in features if tensor.requires_grad)
        writes["activation"] = _Kept(hidden if needs_gradient else None, trained_features, edges)
        return writes

    def _compute_losses(self, output: Tensor, microbatch: MicrobatchData) -> list[Tensor]:
        """Return what a microbatch adds to the step's loss: an auxiliary loss, and the main one."""
        losses, fields, loss = list[Tensor](), microbatch.fields, self.loss
        if loss.auxiliary is not None:
            losses.append(loss.auxiliary(fields) * microbatch.weight)
        if loss.function is not None:
            labels = [fields[name] for name in loss.labels]
            with self.options.cast(output):
                losses.append(loss.function(output, *labels) * microbatch.weight)
        self._losses += [part.detach() for part in losses]
        return losses

    def _take_states(
        self, pass_: Pass, output: Tensor, microbatch: MicrobatchData
    ) -> Tensor | None:
        """Return what a generator takes of a microbatch, if one waits for it."""
        spec = self._data.edges.get(Value("X_F", pass_.stage, pass_.microbatch))
        if spec is None or self.capture is None:
            return None
        if 0 in spec.shape:
            return spec.empty(output.device)
        return self.capture.states(output, microbatch.fields, spec)

    def _call_stage(
        self, pass_: Pass, hidden: Tensor | None, features: list[Tensor], fields: Mapping[str, Any]
    ) -> Tensor:
        inputs = [hidden] if hidden is not None else [fields[name] for name in self.options.inputs]
        extras = {name: fields[name] for name in self.options.extras}
        module: Callable[..., Tensor] = self.modules_by_stage[pass_.stage]
        if features and self.merging is not None:
            joint = self.joints.get((pass_.stage, pass_.microbatch))
            names = (self.travelling_name,) if joint is None else joint.names
            module = self.merging.around(module, names, fields, embedded=hidden is not None)
        if self.capture is not None and pass_.stage == self.program.stages - 1:
            self.capture.expect()
        return call_module(module, [*inputs, *features], extras, self.options, pass_)

    def _backward(self, pass_: Pass, reads: Given) -> Made:
        saved: _Kept = reads["activation"]
        pending = DeferredGradients()
        if saved.root_edges:
            edges, gradients = [edge for edge, _ in saved.root_edges], list[Tensor]()
            for _, source in saved.root_edges:
                gradient = source if isinstance(source, Tensor) else _first_present(reads, source)
                if gradient is None:
                    raise RuntimeError(f"{pass_} has no gradient of its output; check the program")
                gradients.append(gradient)
            if self._last_backward_by_stage[pass_.stage] == pass_.microbatch:
                last_backward(self.modules_by_stage[pass_.stage])
            if (pass_.stage, pass_.microbatch) in self._deferred_passes:
                pending.backward(edges, gradients)
            else:
                torch.autograd.backward(edges, gradients)
        writes: dict[str, Any] = {"weight": pending}
        if saved.input is not None:
            writes["B"] = gradient_or_zeros(saved.input)
        if saved.features:
            writes[f"X_{pass_.kind}"] = pack([gradient_or_zeros(leaf) for leaf in saved.features])
        return writes


def _before(program: Program, where: str, kinds: Iterable[str]) -> list[str]:
    """Return the names of the barriers that passes at the model's first or last stage wait for."""
    passes = {(where, name) for name in kinds}
    return [barrier.name for barrier in program.barriers if passes & set(barrier.before)]


def _first_present(reads: Given, names: Iterable[str]) -> Tensor | None:
    """Return the first value of these names that there is; of an edge's, the only one."""
    present: Any = next((reads[name] for name in names if name in reads), None)
    tensor: Tensor | None = present[0] if isinstance(present, tuple) else present
    return tensor

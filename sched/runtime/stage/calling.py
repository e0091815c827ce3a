"""Call a module as a pass does, and hook its layers: features go in, a generator's states come out.

Where the first stage's input is the embeddings already (input passes make them), features are
merged before its module is called. Where its module embeds by itself, a hook on that layer puts the
merged tensor in place of what the layer returns. The last stage's module often ends with the layer
that makes logits, so the hidden states are inside of it; a hook on the layer that makes them keeps
them for the moment. The model stays as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from ...ir.program import Pass
from ..parts import TensorSpec
from ..settings import NOTHING, Merge, StageOptions


def grad_mode(enabled: bool) -> AbstractContextManager[Any]:
    """Return the context in which autograd records or not; most passes need no change."""
    return NOTHING if enabled == torch.is_grad_enabled() else torch.set_grad_enabled(enabled)


def run_module(
    module: Callable[..., Any],
    inputs: Sequence[Tensor],
    extras: Mapping[str, Any],
    options: StageOptions,
) -> Any:
    """Return what a module makes of its inputs, whatever that is."""
    with options.cast(inputs[0]):
        if options.recompute and torch.is_grad_enabled():
            return checkpoint(partial(module, **extras), *inputs, use_reentrant=False)
        return module(*inputs, **extras)


def call_module(
    module: Callable[..., Any],
    inputs: Sequence[Tensor],
    extras: Mapping[str, Tensor],
    options: StageOptions,
    pass_: Pass,
) -> Tensor:
    """Return what a module makes of its inputs. Raises TypeError if it is no plain tensor."""
    return plain_tensor(run_module(module, inputs, extras, options), pass_)


def plain_tensor(output: Any, pass_: Pass) -> Tensor:
    """Return what the module of a pass has made. Raises TypeError if it is no plain tensor."""
    if not isinstance(output, Tensor):
        raise TypeError(
            f"the module of {pass_} returned a {type(output).__name__}; return one tensor, such as "
            "the hidden states, and give other stages what they need as fields"
        )
    if isinstance(output, DTensor):
        raise TypeError(
            f"the module of {pass_} returned a DTensor; end it with a layer that gives whole local "
            "tensors, such as RowwiseParallel() or ColwiseParallel(output_layouts=Replicate())"
        )
    return output


# take(hidden states, fields of the microbatch) -> states of the generator
Take = Callable[[Tensor, Mapping[str, Any]], Tensor]


@dataclass(eq=False, slots=True)
class StateCapture:
    """Takes a generator's states from one rank's last stage.

    `take`: makes them of the hidden states; without, they are the hidden states. `layer`: inside
    the stage's module, None where the stage's output is meant.
    """

    take: Take | None = None
    layer: nn.Module | None = None
    _expected: bool = False
    _hidden: Tensor | None = None

    def __post_init__(self) -> None:
        """Hook the layer."""
        if self.layer is not None:
            self.layer.register_forward_hook(self._keep)

    def expect(self) -> None:
        """Keep what the layer makes next; not when a backward calls it again to recompute."""
        self._expected, self._hidden = True, None

    def states(self, output: Tensor, fields: Mapping[str, Any], spec: TensorSpec) -> Tensor:
        """Return the states of the microbatch whose stage has just made `output`.

        Raises RuntimeError if the layer was not called, and ValueError for states of another size.
        """
        hidden = output if self.layer is None else self._hidden
        self._expected, self._hidden = False, None
        if hidden is None:
            raise RuntimeError(
                "the last stage did not call the layer that the generator's states come from; name "
                "one that it calls, with states= of the GeneratorSpec"
            )
        states = hidden if self.take is None else self.take(hidden, fields)
        advice = (
            "give GeneratorSpec the true tokens, width and precision, and with take= those states "
            "alone"
        )
        spec.check(states, "the generator's states are", advice)
        return states

    def _keep(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        del layer, inputs
        if self._expected:
            self._expected, self._hidden = False, output


@dataclass(eq=False, slots=True)
class Merging:
    """Merges features into the embeddings of one rank's stages.

    `layer`: the embedding inside the stage's module, None where the embeddings are its input.
    """

    merge: Merge
    layer: nn.Module | None = None
    _features: Mapping[str, Tensor] | None = None
    _fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Hook the embedding."""
        if self.layer is not None:
            self.layer.register_forward_hook(self._replace)

    def around(
        self,
        module: Callable[..., Tensor],
        names: Sequence[str],
        fields: Mapping[str, Any],
        *,
        embedded: bool,
    ) -> Callable[..., Tensor]:
        """Return a function of a stage's inputs and the features, to call in place of the module.

        `embedded`: whether the input is the embeddings. It raises RuntimeError if the module does
        not use the embedding.
        """

        def call(*inputs: Tensor, **extras: Any) -> Tensor:
            arguments, tensors = inputs[: -len(names)], inputs[-len(names) :]
            features = dict(zip(names, tensors, strict=True))
            if embedded:
                return module(self.merge(arguments[0], features, fields), *arguments[1:], **extras)
            self._features, self._fields = features, fields
            try:
                output = module(*arguments, **extras)
                if self._features is not None:
                    raise RuntimeError(
                        "the first stage did not call its embedding, so nothing was merged; name "
                        "the layer whose output is merged: run=StageOptions(embedding=...)"
                    )
            finally:
                self._features, self._fields = None, {}
            return output

        return call

    def _replace(self, layer: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        """Return the merged embeddings the first time that the layer is called in a pass."""
        del layer, inputs
        features, self._features = self._features, None
        return None if features is None else self.merge(output, features, self._fields)


def find_layer(module: nn.Module, option: str, name: str, which: str) -> nn.Module:
    """Return a layer of a stage's module by the name that an option gives. Raises ValueError."""
    named = dict(module.named_modules())
    if name not in named:
        raise ValueError(
            f"{option}={name!r} is no layer of the {which} stage, which has "
            f"{', '.join(known for known in named if known)}"
        )
    layer: nn.Module = named[name]
    return layer


def make_merging(
    options: StageOptions, first: nn.Module | None, *, embedded: bool
) -> Merging | None:
    """Return how a rank merges features, None without `merge`, where the stage does it by itself.

    `first`: the first stage's module, None on other ranks. `embedded`: whether it is called with
    the embeddings. Raises ValueError for an embedding that is not in it.
    """
    merge, embedding = options.merge, options.embedding
    if merge is None or first is None:
        return None
    if embedded:  # input passes of vocabulary parallelism have made them
        return Merging(merge)
    if embedding:
        return Merging(merge, find_layer(first, "embedding", embedding, "first"))
    # Without a name it must be clear which layer is meant.
    named = dict(first.named_modules())
    names = [name for name, layer in named.items() if isinstance(layer, nn.Embedding)]
    if len(names) != 1:
        raise ValueError(
            f"the first stage has {len(names)} nn.Embedding ({', '.join(names) or 'none'}); name "
            "the layer whose output features are merged into: run=StageOptions(embedding=...)"
        )
    return Merging(merge, named[names[0]])

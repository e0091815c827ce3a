"""Put encoders' features among the embeddings of a stage.

Where the first stage's input is the embeddings already (input passes make them), they are merged
before its module is called. Where its module embeds by itself, a hook on that layer puts the merged
tensor in place of what the layer returns, so that the model stays as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

# merge(embeddings, features by encoder, fields of the microbatch) -> embeddings
Merge = Callable[[Tensor, Mapping[str, Tensor], Mapping[str, Any]], Tensor]


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

        `embedded`: whether the input is the embeddings. It may be called again to recompute. It
        raises RuntimeError if the module does not use the embedding exactly once.
        """

        def call(*inputs: Tensor, **extras: Any) -> Tensor:
            given, found = inputs[: -len(names)], inputs[-len(names) :]
            features = dict(zip(names, found, strict=True))
            if embedded:
                return module(self.merge(given[0], features, fields), *given[1:], **extras)
            self._features, self._fields = features, fields
            try:
                output = module(*given, **extras)
                if self._features is not None:
                    raise RuntimeError(
                        "the first stage did not call its embedding, so nothing was merged; name "
                        "the layer whose output is to be merged with embedding="
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


def merging_for(
    merge: Merge | None, embedding: str, first: nn.Module | None, *, embedded: bool
) -> Merging | None:
    """Return how a rank merges features, None without `merge`, where the stage does it by itself.

    `first`: the first stage's module, None on other ranks. `embedded`: whether it is called with
    the embeddings. Raises ValueError if the embedding is not found in it.
    """
    if merge is None or first is None:
        return None
    if embedded:  # input passes of vocabulary parallelism have made them
        return Merging(merge)
    named = dict(first.named_modules())
    if embedding:
        if embedding not in named:
            raise ValueError(
                f"embedding={embedding!r} is no layer of the first stage, which has "
                f"{', '.join(name for name in named if name)}"
            )
        return Merging(merge, named[embedding])
    # Without a name it must be clear which layer is meant.
    found = [name for name, layer in named.items() if isinstance(layer, nn.Embedding)]
    if len(found) != 1:
        raise ValueError(
            f"the first stage has {len(found)} nn.Embedding ({', '.join(found) or 'none'}); name "
            "the layer whose output features are merged into with embedding="
        )
    return Merging(merge, named[found[0]])

"""Write a split of layers in the forms of other frameworks: Megatron's string, module names.

Megatron-LM and Megatron-Bridge take `pipeline_model_parallel_layout`, a string with a letter for
each layer, E embedding, t transformer, m multi-token prediction, L loss, and | between stages, in
model order. `t*3` and `(tt|)*4` repeat. torchtitan and NeMo Automodel take
`module_fqns_per_model_part`, a list of the names of each stage's modules.

All of them keep an image encoder whole, on the first stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from ..shapes import ENCODER, LayerCost, merged
from .stage_split import Sizes


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """A framework's names of a model's modules: before, within, and behind the layers.

    `layer`: with {} for the number. `encoder`: the image encoder's, in front of `first`. `shared`:
    modules that all stages need.
    """

    first: tuple[str, ...]
    layer: str
    last: tuple[str, ...]
    encoder: str
    shared: tuple[str, ...] = ()


TORCHTITAN = ModuleNames(("tok_embeddings",), "layers.{}", ("norm", "lm_head"), "vision_encoder")
AUTOMODEL = ModuleNames(
    ("model.embed_tokens",),
    "model.layers.{}",
    ("model.norm", "lm_head"),
    "model.visual",
    ("model.rotary_emb",),
)


def merge_encoder(layers: Sequence[LayerCost]) -> tuple[LayerCost, ...]:
    """Return the layers with the encoder's as one layer in front, so that no split cuts it.

    >>> vision = LayerCost("encoder", 2, 4, 10, 8)
    >>> merged = merge_encoder([vision, vision, LayerCost("language", 3, 6, 20, 9)])
    >>> [(layer.kind, layer.forward_ns) for layer in merged]
    [('encoder', 4), ('language', 3)]
    """
    encoder = [layer for layer in layers if layer.kind == ENCODER]
    if not encoder:
        return tuple(layers)
    return (merged(encoder), *(layer for layer in layers if layer.kind != ENCODER))


def decoder_layers(layers: Sequence[LayerCost], sizes: Sizes) -> Sizes:
    """Return the language model's layers of each stage of a split.

    Raises ValueError if a stage other than the first has encoder layers.

    >>> layers = merge_encoder([LayerCost("encoder", 2, 4, 10, 8)] * 3)
    >>> decoder_layers([*layers, *[LayerCost("language", 3, 6, 20, 9)] * 4], (2, 3))
    (1, 3)
    """
    counts = []
    for stage, (start, end) in enumerate(pairwise(accumulate(sizes, initial=0))):
        decoders = [layer for layer in layers[start:end] if layer.kind != ENCODER]
        if stage and len(decoders) < end - start:
            raise ValueError(
                f"stage {stage} has encoder layers; the frameworks keep the encoder whole on the "
                "first stage: split with --whole-encoder"
            )
        counts.append(len(decoders))
    return tuple(counts)


def megatron_layout(decoders: Sequence[int]) -> str:
    """Return Megatron's `pipeline_model_parallel_layout`.

    `decoders`: transformer layers of each stage, in model order (with virtual stages, pp x vpp of
    them). Raises ValueError for negative counts and for an empty stage between the first and the
    last.

    >>> megatron_layout([3, 2, 2, 2, 0])
    'Et*3|(tt|)*3L'
    """
    _check(decoders)
    if len(decoders) == 1:
        return f"E{_repeat('t', decoders[0])}L"
    inner = [
        f"({stage}|)*{count}" if count > 1 else f"{stage}|"
        for size, run in groupby(decoders[1:-1])
        for stage, count in [(_repeat("t", size), len(list(run)))]
    ]
    last = _repeat("t", decoders[-1])
    return f"E{_repeat('t', decoders[0])}|{''.join(inner)}{last}L"


def _repeat(letter: str, count: int) -> str:
    return letter * count if count < 3 else f"{letter}*{count}"


def _check(decoders: Sequence[int]) -> None:
    if not decoders or min(decoders) < 0:
        raise ValueError(f"got {list(decoders)} layers a stage; give 0 or more")
    if 0 in decoders[1:-1]:
        raise ValueError(
            f"stage {list(decoders).index(0, 1)} of {list(decoders)} has no layers; only the first "
            "and the last may do without"
        )


def module_names(
    decoders: Sequence[int], names: ModuleNames = TORCHTITAN, *, encoder: bool = False
) -> list[list[str]]:
    """Return `module_fqns_per_model_part`: the names of each stage's modules.

    `encoder`: whether the model has an image encoder. Raises ValueError as `megatron_layout`.

    >>> module_names([1, 2])
    [['tok_embeddings', 'layers.0'], ['layers.1', 'layers.2', 'norm', 'lm_head']]
    """
    _check(decoders)
    bounds = list(pairwise(accumulate(decoders, initial=0)))
    parts = [[names.layer.format(number) for number in range(*bound)] for bound in bounds]
    parts[0][:0] = [*([names.encoder] if encoder else []), *names.first]
    parts[-1] += names.last
    return [[*part, *names.shared] for part in parts]

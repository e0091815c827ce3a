"""The description of a family: what a model's forward does between its modules, as data.

A forward of transformers looks up words, makes masks and rotary embeddings, calls one layer after
another, a norm, and the head. Families differ in names, and in what they do in between: scales,
learned positions, windows, routers' losses. A name is of a module inside `base`, or of the model
for the head; a number is a function of the config, since released models differ in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

# What a number is read from: the config of the part that has the layers.
OfConfig = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class DecoderFamily:
    """A causal language model, as its forward calls its modules.

    `base`: the module that holds the others but the head. `words`: the embedding. `positions`:
    learned ones, added to the words. `dropout`: called on their sum. `rotary`: makes position
    embeddings, once for all layers or, with `rotary_by_type`, for each of config.layer_types.
    `window`: whether config.sliding_window is every layer's, where the config has no layer_types.
    `axes`: of positions, 3 for M-RoPE's time, height and width. `scale_words`: multiplies the
    embeddings. `scale_logits`: multiplies the logits. `softcap`: of the logits, None for none.
    `routers`: whether the load balancing loss of config.output_router_logits is its forward's.
    """

    base: str = "model"
    words: str = "embed_tokens"
    positions: str = ""
    dropout: str = ""
    layers: str = "layers"
    norm: str = "norm"
    head: str = "lm_head"
    rotary: str = "rotary_emb"
    rotary_by_type: bool = False
    window: bool = False
    axes: int = 1
    scale_words: OfConfig = lambda _: 1.0
    scale_logits: OfConfig = lambda _: 1.0
    softcap: OfConfig = lambda _: None
    routers: bool = False


# features(what holds the encoder's modules, *fields) -> (tokens, width)
Features = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class ImageFamily:
    """A model that merges an encoder's features into the words of a language model.

    `base`: the module that has the encoder and the language model. `encoder`: its modules that
    make features, projector included. `language`: the language model's name in it. `decoder`: its
    description; None for that of its config's model_type. `inputs`: the fields that `features` is
    called with after the model, which then holds the encoder's modules alone. `tokens`: from the
    config, a function of a microbatch's info, or costs, that count features (see EncoderSpec).
    `stacked`: from the config, how many more features a token has, which are added to the hidden
    states after each of the first layers (DeepStack).
    """

    encoder: tuple[str, ...]
    features: Features
    tokens: Callable[[Any], Mapping[str, int] | Callable[[Any], int]]
    base: str = "model"
    language: str = "language_model"
    decoder: DecoderFamily | None = None
    inputs: tuple[str, ...] = ("pixel_values",)
    stacked: OfConfig = lambda _: 0


Family = DecoderFamily | ImageFamily

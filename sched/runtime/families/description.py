"""The description of a family: what a model's forward does between its modules, as data.

A forward of transformers looks up words, makes masks and rotary embeddings, calls one layer after
another, a norm, and the head. Families differ in names, and in what they do in between: scales,
learned positions, windows, routers' losses. A name is of a module inside `base`, or of the model
for the head; a number is a function of the config, since released models differ in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

# What a number is read from: the config of the part that has the layers.
OfConfig = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class DecoderFamily:
    """A causal language model, as its forward calls its modules.

    Args:
        base: The module that holds the others but the head; default "model".
        words: The embedding; default "embed_tokens".
        positions: Learned ones, added to the words; default: none.
        dropout: Called on their sum; default: none.
        layers: The list of layers; default "layers".
        norm: Behind the last layer; default "norm".
        head: The output layer; default "lm_head".
        rotary: Makes position embeddings, once for all layers; default "rotary_emb".
        rotary_by_type: True if it makes them for each of config.layer_types; default False.
        window: True if config.sliding_window is every layer's, where the config has no layer_types.
        axes: Of positions: 3 for M-RoPE's time, height and width; default 1.
        scale_words: Of the config, what multiplies the embeddings; default 1.
        scale_logits: Of the config, what multiplies the logits; default 1.
        softcap: Of the config, the logits' soft cap; default None: they have none.
        routers: True if its forward adds the load balancing loss of config.output_router_logits.
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
# constants(**fields) -> what each layer of an encoder is called with by keyword
Constants = Callable[..., Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ImageFamily:
    """A model that merges an encoder's features into the words of a language model.

    Args:
        encoder: Modules of `base` that make features, projector included.
        features: Makes features (tokens, width) of the model, which then holds the encoder's
            modules alone, and the fields `inputs`.
        tokens: Of the config, a function of a microbatch's info, or costs, that count features (see
            EncoderSpec).
        base: The module that has the encoder and the language model; default "model".
        language: The language model's name in it; default "language_model".
        decoder: Its description; default: that of its config's model_type.
        inputs: Names of fields; default ("pixel_values",).
        stacked: Of the config, how many more features a token has, added to the hidden states after
            each of the first layers (DeepStack); default 0.
        layered: Of the encoder's one module, its layers, and what makes their constants
            (EncoderSpec's prepare) of the fields `inputs[1:]`; default: it is one layer.
    """

    encoder: tuple[str, ...]
    features: Features
    tokens: Callable[[Any], Mapping[str, int] | Callable[[Any], int]]
    base: str = "model"
    language: str = "language_model"
    decoder: DecoderFamily | None = None
    inputs: tuple[str, ...] = ("pixel_values",)
    stacked: OfConfig = lambda _: 0
    layered: Callable[[Any], tuple[list[nn.Module], Constants]] | None = None


Family = DecoderFamily | ImageFamily

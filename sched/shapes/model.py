"""A model as cost models see it: modules of transformer layers, with exact parameter counts.

Work is counted in floating point operations (a multiply-add is two), after Narayanan et al., 2021:
a GPT layer's forward over s tokens of width h is 24 s h^2 for its matrix products and 4 s^2 h for
attention; a vocabulary of V costs 2 s h V. A causal layer looks at half of the pairs of tokens.

A microbatch is a mapping of amounts, as everywhere here: "tokens" of the language model,
"token_pairs" (the sum of its sequences' squared lengths) and each module's own unit ("tiles",
"clips"). What is left out: the work of patch embeddings, sliding windows (pairs are full), routing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby

LANGUAGE, ENCODER, GENERATOR = "language", "encoder", "generator"
Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TransformerLayer:
    """A transformer layer. Widths of 0 are the usual: `inner` 4 h, `key_values` 2 h, `query` h.

    `hidden`: the width h. `inner`: of the MLP (of one expert). `matrices`: of the MLP, 2, or 3 if
    it is gated. `key_values`: keys and values together (less than 2 h with grouped queries).
    `query`: heads x head size. `value`: of attention's output, `query` by default. `projections`:
    weights of attention's matrices if they are not those of these widths (latent or cross).
    `experts` of which each token takes `active`; `shared`: the width of the MLP for every token
    beside them. `vectors`: parameters that are no matrices (biases, norms, scales).
    `rms`: its norms are RMS norms, which plain PyTorch code keeps a normalized copy for.
    """

    hidden: int
    inner: int = 0
    matrices: int = 2
    key_values: int = 0
    query: int = 0
    value: int = 0
    projections: int = 0
    experts: int = 0
    active: int = 0
    shared: int = 0
    causal: bool = False
    vectors: int = 0
    rms: bool = False

    def __post_init__(self) -> None:
        """Fill in the usual widths. Raises ValueError for sizes that contradict each other."""
        usual = {"inner": 4 * self.hidden, "key_values": 2 * self.hidden, "query": self.hidden}
        for name, width in usual.items():
            object.__setattr__(self, name, getattr(self, name) or width)
        object.__setattr__(self, "value", self.value or self.query)
        if self.hidden < 1 or min(getattr(self, name) for name in self.__slots__) < 0:
            raise ValueError(f"{self}: give widths of 1 or more")
        if not self.experts >= self.active >= min(1, self.experts):
            raise ValueError(f"{self.active} of {self.experts} experts are active; give 1 to all")

    @property
    def attention(self) -> int:
        """Return the weights of attention's matrices: queries, keys and values, output."""
        return self.projections or self.hidden * (self.query + self.key_values + self.value)

    def _mlp(self, experts: int) -> int:
        router = self.hidden * self.experts
        widths = experts * self.inner + self.shared
        return self.matrices * self.hidden * widths + router

    @property
    def weights(self) -> int:
        """Return the parameters of its matrices."""
        return self.attention + self._mlp(self.experts or 1)

    @property
    def parameters(self) -> int:
        """Return all of its parameters."""
        return self.weights + self.vectors

    @property
    def active_weights(self) -> int:
        """Return the parameters of the matrices that one token is multiplied with."""
        return self.attention + self._mlp(self.active or 1)

    @property
    def active_inner(self) -> int:
        """Return the width of the MLP as one token sees it."""
        return (self.active or 1) * self.inner + self.shared

    def forward_flops(self, *, tokens: int, pairs: int) -> int:
        """Return the operations of a forward; `pairs`: the sum of the sequences' squared lengths.

        >>> flops = 24 * 10 * 1024**2 + 4 * 100 * 1024
        >>> TransformerLayer(1024).forward_flops(tokens=10, pairs=100) == flops
        True
        """
        return 2 * self.active_weights * tokens + self.attention_flops(pairs)

    def attention_flops(self, pairs: int) -> int:
        """Return the operations of scores and values alone, half of them if causal."""
        return 2 * (self.query + self.value) * pairs // (2 if self.causal else 1)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """An input embedding and an output layer of `size` words, each of width `hidden`.

    `tied`: both are one matrix.
    """

    hidden: int
    size: int
    tied: bool = False

    @property
    def parameters(self) -> int:
        """Return the parameters of one of the two."""
        return self.hidden * self.size

    @property
    def total(self) -> int:
        """Return the parameters of both, once if they are tied."""
        return self.parameters * (1 if self.tied else 2)

    def forward_flops(self, tokens: int) -> int:
        """Return the operations of the output layer's forward; its backward has twice as many."""
        return 2 * tokens * self.parameters


@dataclass(frozen=True, slots=True)
class SubModel:
    """A part of a model: an encoder, the language model or a generator.

    `layers`: in order. `front`, `back`: parameters before and after them (patches and positions,
    final norms, pooling); `projector`: of what hands an encoder's features on, trained even if
    the part is frozen. Of one `unit` of input (a tile, a clip) an encoder makes `unit_tokens`, and
    hands `handed_tokens` on; it arrives as `unit_bytes`. `unit_flops`: of one layer and unit where
    that cannot be said by tokens (a U-Net's), 0 elsewhere.
    """

    name: str
    kind: str
    layers: tuple[TransformerLayer, ...]
    vocabulary: Vocabulary | None = None
    front: int = 0
    back: int = 0
    projector: int = 0
    unit: str = "tokens"
    unit_tokens: int = 1
    handed_tokens: int = 0
    unit_bytes: int = 0
    unit_flops: int = 0
    frozen: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a part without layers, or with an unknown kind."""
        if not self.layers:
            raise ValueError(f"{self.name} has no layers; give one or more")
        if self.kind not in (ENCODER, LANGUAGE, GENERATOR) or self.unit_tokens < 1:
            raise ValueError(f"{self.name}: {self.kind} of {self.unit_tokens} tokens a unit")

    @property
    def hidden(self) -> int:
        """Return the width of its layers."""
        return self.layers[0].hidden

    @property
    def parameters(self) -> int:
        """Return all of its parameters."""
        words = self.vocabulary.total if self.vocabulary else 0
        ends = self.front + self.back + self.projector
        return sum(layer.parameters for layer in self.layers) + words + ends

    def tokens(self, amounts: Amounts) -> int:
        """Return the tokens of this part in a microbatch."""
        return amounts.get(self.unit, 0) * self.unit_tokens

    def pairs(self, amounts: Amounts) -> int:
        """Return the pairs of tokens of this part: within sequences, or within units."""
        if self.kind == LANGUAGE:
            return amounts.get("token_pairs", amounts["tokens"] ** 2)
        return amounts.get(self.unit, 0) * self.unit_tokens**2

    def handed(self, amounts: Amounts) -> int:
        """Return the tokens that this part hands on in a microbatch."""
        return amounts.get(self.unit, 0) * (self.handed_tokens or self.unit_tokens)

    def layer_flops(self, layer: TransformerLayer, amounts: Amounts) -> int:
        """Return the operations of a layer's forward."""
        if self.unit_flops:
            return self.unit_flops * amounts.get(self.unit, 0)
        return layer.forward_flops(tokens=self.tokens(amounts), pairs=self.pairs(amounts))

    def forward_flops(self, amounts: Amounts) -> int:
        """Return the operations of a forward of the whole part."""
        # Few layers differ; a thousand equal ones are counted once.
        runs = ((layer, len(list(run))) for layer, run in groupby(self.layers))
        flops = sum(count * self.layer_flops(layer, amounts) for layer, count in runs)
        words = self.vocabulary.forward_flops(self.tokens(amounts)) if self.vocabulary else 0
        return flops + words + 2 * self.projector * self.handed(amounts)


@dataclass(frozen=True, slots=True)
class Model:
    """A model: encoders in order, one language model, at most one generator after it.

    `usual`: a typical microbatch of it, for commands that are given none.
    """

    name: str
    parts: tuple[SubModel, ...]
    usual: tuple[tuple[str, int], ...] = (("tokens", 4096),)

    def __post_init__(self) -> None:
        """Raise ValueError for parts in another order, or two of one name."""
        kinds = [part.kind for part in self.parts]
        order = [ENCODER, LANGUAGE, GENERATOR]
        if not kinds or kinds != sorted(kinds, key=order.index) or kinds.count(LANGUAGE) > 1:
            raise ValueError(
                f"{self.name} is {', '.join(kinds) or 'empty'}; give encoders, then one language "
                "model, then at most one generator"
            )
        if len({part.name for part in self.parts}) < len(kinds) or kinds.count(GENERATOR) > 1:
            raise ValueError(f"{self.name}: parts need names of their own, and one generator")

    @property
    def parameters(self) -> int:
        """Return all of its parameters."""
        return sum(part.parameters for part in self.parts)

    @property
    def layers(self) -> int:
        """Return the number of layers of all parts."""
        return sum(len(part.layers) for part in self.parts)

    @property
    def encoders(self) -> tuple[SubModel, ...]:
        """Return the encoders."""
        return tuple(part for part in self.parts if part.kind == ENCODER)

    @property
    def language(self) -> SubModel:
        """Return the language model. Raises ValueError if there is none."""
        for part in self.parts:
            if part.kind == LANGUAGE:
                return part
        raise ValueError(f"{self.name} has no language model; name it with one, ENCODER+LANGUAGE")

    def only(self, *names: str) -> "Model":
        """Return the model of these parts alone, such as an encoder on GPUs of its own."""
        return replace(self, parts=tuple(part for part in self.parts if part.name in names))

    def freeze(self, *names: str) -> "Model":
        """Return the model with these parts frozen. Raises ValueError for an unknown name."""
        if unknown := set(names) - {part.name for part in self.parts}:
            have = ", ".join(part.name for part in self.parts)
            raise ValueError(f"cannot freeze {min(unknown)!r}; {self.name} has {have}")
        frozen = (replace(part, frozen=part.frozen or part.name in names) for part in self.parts)
        return replace(self, parts=tuple(frozen))

    def forward_flops(self, amounts: Amounts) -> int:
        """Return the operations of a forward of all parts."""
        return sum(part.forward_flops(amounts) for part in self.parts)

    def amounts(self, **counts: int | None) -> dict[str, int]:
        """Return a microbatch: the usual one with what is given instead.

        Without "token_pairs" the tokens are one sequence. Raises ValueError for amounts below 0.
        """
        amounts = dict(self.usual) | {name: n for name, n in counts.items() if n is not None}
        if min(amounts.values()) < 0:
            raise ValueError(f"a microbatch of {amounts}; give amounts of 0 or more")
        amounts.setdefault("token_pairs", amounts["tokens"] ** 2)
        return amounts

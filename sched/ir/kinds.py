"""The registry of kinds of passes: what a pass of each kind needs, takes and frees.

Checker, lowering and simulator know kinds only from this table, so a kind that is registered
(`register_kind`) works everywhere. Needs that differ between programs, such as the barriers of the
vocabulary passes and the neighbours of encoders, are part of the program (`Barrier`, `Edge`).

Two families of kinds are known by rule, since programs decide how many of them there are: EF_A,
EF_B ... EF_AA and EB_A ... are the layers of an encoder, and SEND_X_EF_B and RECV_X_EF_B carry the
result of an EF_B to the ranks that an edge of the program leads to.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

Scope = Literal["stage", "rank"]
Role = Literal["compute", "continuation", "send", "receive"]
Where = Literal["same", "previous", "next"]


@dataclass(frozen=True, slots=True)
class Need:
    """A pass needs one of these kinds, for the same microbatch, at a stage relative to its own.

    At the model's ends (`previous` of stage 0, `next` of the last stage) nothing is needed.
    `required`: whether the pass must exist; if not, it is waited for where it does. `result`:
    whether its result is read although it leaves buffers, which are what a pass of the same stage
    reads otherwise.
    """

    kinds: tuple[str, ...]
    where: Where
    required: bool = True
    result: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of pass.

    Args:
        name: As in the text form of its passes.
        description: In a few words.
        scope: "stage" or "rank": what its passes' stage number is; default "stage".
        role: "compute" (the default) for passes of a schedule; lowering adds the others, which take
            no time of the rank unless the costs have any.
        needs: What a pass waits for; default: nothing.
        takes: Buffers that a pass takes when it starts; their sizes are part of the costs.
        frees: Buffers that are gone when it ends.
        once: True if it is done once a step, without a microbatch; default False.
        leaves: Buffers that it has made of those when it ends.
        reads: Buffers that it needs and a later pass frees.
    """

    name: str
    description: str
    scope: Scope = "stage"
    role: Role = "compute"
    needs: tuple[Need, ...] = ()
    takes: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()
    once: bool = False
    leaves: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


BACKWARD = ("B", "I")
_FORWARD = (Need(("F",), "previous"),)
_BACKWARD = (Need(("F",), "same"), Need(BACKWARD, "next"))


def _after(kind: str) -> tuple[Need, ...]:
    return (Need((kind,), "same"),)


_KINDS = (
    Kind("F", "forward", needs=_FORWARD, takes=("activation",)),
    Kind(
        "B", "backward", needs=_BACKWARD, takes=("recomputed",), frees=("activation", "recomputed")
    ),
    # As it works back through the layers, what it saves for W takes the place of activations.
    Kind(
        "I",
        "input gradient",
        needs=_BACKWARD,
        takes=("recomputed",),
        frees=("activation", "recomputed"),
        leaves=("weight",),
    ),
    Kind("W", "weight gradient", needs=_after("I"), frees=("weight",)),
    # Vocabulary parallelism, Algorithms 1 and 2 (MLSys 2025, section 4).
    # Algorithm 2 multiplies early, and keeps the products until the barrier's continuation.
    Kind("S", "output layer up to the local softmax", "rank", takes=("logits", "early")),
    Kind("T", "output layer's gradients", "rank", needs=_after("S"), frees=("logits",)),
    Kind(
        "C",
        "continuation of a barrier: rescale, start the reduction",
        "rank",
        "continuation",
        needs=_after("S"),
        frees=("early",),
    ),
    # Its naive form has three passes, F1, F2 and B in the paper's Figure 4.
    Kind("L", "logits and their maximum", "rank", takes=("logits",)),
    Kind("E", "exponentials and their sum", "rank", needs=_after("L"), reads=("logits",)),
    Kind("G", "softmax and gradients", "rank", needs=_after("E"), frees=("logits",)),
    Kind("IF", "input embedding, forward", "rank", takes=("words",)),
    Kind("IB", "input embedding, backward", "rank", needs=_after("IF"), frees=("words",)),
    Kind("EF", "encoder forward", "rank", takes=("encoder",)),
    Kind("EB", "encoder backward", "rank", needs=_after("EF"), frees=("encoder",)),
    Kind("GF", "generator forward, with its loss", "rank", takes=("generator",)),
    Kind("GB", "generator backward", "rank", needs=_after("GF"), frees=("generator",)),
    # Done once a step.
    Kind("UNSHARD", "gather the parameters", once=True),
    Kind("RESHARD", "drop the gathered parameters", once=True),
    Kind("REDUCE_GRAD", "reduce the gradients", once=True),
    Kind("O", "optimizer", scope="rank", once=True),
    # Added by lowering.
    Kind("SEND_F", "send activations to the next stage", role="send", needs=_after("F")),
    Kind("RECV_F", "receive activations from the previous stage", role="receive"),
    Kind("SEND_B", "send gradients to the previous stage", role="send"),
    Kind("RECV_B", "receive gradients from the next stage", role="receive"),
)
_REGISTRY: dict[str, Kind] = {kind.name: kind for kind in _KINDS}
_LAYER = re.compile(r"(EF|EB)_([A-Z]+)")
_MESSAGE = re.compile(r"(SEND|RECV)_X_([A-Z_]+)")


def kind(name: str) -> Kind:
    """Return the registered kind of that name. Raises ValueError for an unknown one.

    >>> kind("W").frees
    ('weight',)
    """
    if registered := _REGISTRY.get(name) or _by_rule(name):
        return registered
    known = " ".join(_REGISTRY)
    raise ValueError(f"unknown kind {name!r}; known are {known} (register_kind adds)")


def is_kind(name: str) -> bool:
    """Return whether a kind of that name is registered, or known by rule.

    >>> is_kind("EF_A"), is_kind("SEND_X_EF_A"), is_kind("SEND_X_QQ")
    (True, True, False)
    """
    return name in _REGISTRY or _by_rule(name) is not None


def is_staged(name: str) -> bool:
    """Return whether the stage of this kind's passes is a model stage rather than a rank."""
    return is_kind(name) and kind(name).scope == "stage"


def is_ranked(name: str) -> bool:
    """Return whether passes of this kind are divided over the ranks, as vocabulary passes are."""
    return is_kind(name) and kind(name).scope == "rank"


def is_compute(name: str) -> bool:
    """Return whether this kind's passes belong to a schedule, and are not added by lowering."""
    return is_kind(name) and kind(name).role == "compute"


def layer_kind(direction: str, layer: int) -> str:
    """Return the kind of an encoder layer's forward ("EF") or backward ("EB").

    >>> layer_kind("EF", 0), layer_kind("EB", 27)
    ('EF_A', 'EB_AB')
    """
    letters, remaining = "", layer + 1
    while remaining:
        remaining, digit = divmod(remaining - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return f"{direction}_{letters}"


def layer_number(name: str) -> int:
    """Return the number on its rank of the layer whose pass a kind is.

    >>> layer_number("EF"), layer_number("EF_A"), layer_number("EB_AB")
    (0, 0, 27)
    """
    number = 0
    for letter in name[3:]:
        number = 26 * number + ord(letter) - ord("A") + 1
    return max(0, number - 1)


@cache
def _by_rule(name: str) -> Kind | None:
    """Return the kind of an encoder layer, or of the message of an edge, if the name is one."""
    if layer := _LAYER.fullmatch(name):
        return _layer(layer[1], layer[2])
    message = _MESSAGE.fullmatch(name)
    if message is None or not is_kind(message[2]):
        return None
    carried = kind(message[2])
    # Both ends are named by the pass whose result they carry, so a RECV is on another rank.
    if message[1] == "SEND":
        purpose = f"send the result of {carried.name} along the program's edges"
        return Kind(name, purpose, carried.scope, "send", needs=_after(carried.name))
    return Kind(name, f"receive the result of {carried.name}", carried.scope, "receive")


def _layer(direction: str, letters: str) -> Kind:
    """Return the kind of an encoder layer: it follows the one below, or backward the one above.

    Its buffer, `encoder_A` and so on, is what its forward saves for its backward.
    """
    name, buffer = f"{direction}_{letters}", (f"encoder_{letters}",)
    number = layer_number(name)
    if direction == "EF":
        needs = (Need((layer_kind("EF", number - 1),), "same", result=True),) if number else ()
        return Kind(name, f"encoder layer {letters} forward", "rank", needs=needs, takes=buffer)
    # Only the program knows which layer is the topmost.
    above = Need((layer_kind("EB", number + 1),), "same", required=False)
    forward = Need((f"EF_{letters}",), "same")
    purpose = f"encoder layer {letters} backward"
    return Kind(name, purpose, "rank", needs=(forward, above), frees=buffer)


def kinds() -> tuple[Kind, ...]:
    """Return all registered kinds."""
    return tuple(_REGISTRY.values())


def register_kind(new: Kind) -> Kind:
    """Add a kind. Raises ValueError if the name is taken or is not capitals and underscores."""
    if not new.name.replace("_", "").isalpha() or new.name != new.name.upper():
        raise ValueError(f"kind {new.name!r} cannot be written in a pass; use capitals, such as EF")
    if _REGISTRY.get(new.name, new) != new:
        raise ValueError(f"kind {new.name!r} is registered already; choose another name")
    _REGISTRY[new.name] = new
    _by_rule.cache_clear()  # it may have found that no such kind is sent
    return new

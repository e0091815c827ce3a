"""The registry of kinds of passes: what a pass of each kind needs, takes and frees.

Checker, lowering and simulator know kinds only from this table, so a kind that is registered
(`register_kind`) works everywhere. Needs that differ between programs, such as the barriers of the
vocabulary passes, are part of the program (`Barrier`).
"""

from dataclasses import dataclass
from typing import Literal

Scope = Literal["stage", "rank"]
Role = Literal["compute", "continuation", "send", "receive"]
Where = Literal["same", "previous", "next"]


@dataclass(frozen=True, slots=True)
class Need:
    """A pass needs one of these kinds, for the same microbatch, at a stage relative to its own.

    At the model's ends (`previous` of stage 0, `next` of the last stage) nothing is needed.
    """

    kinds: tuple[str, ...]
    where: Where


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of pass.

    `scope`: its stage number is a model stage or a rank. `takes` and `frees` name buffers that a
    pass takes when it starts and frees when it ends; their sizes are part of the costs. `once`:
    done once a step, so its passes have no microbatch. `role`: compute passes belong to a
    schedule; lowering adds the others, which take no time of the rank unless the costs have any.
    """

    name: str
    description: str
    scope: Scope = "stage"
    role: Role = "compute"
    needs: tuple[Need, ...] = ()
    takes: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()
    once: bool = False


BACKWARD = ("B", "I")
_FORWARD = (Need(("F",), "previous"),)
_BACKWARD = (Need(("F",), "same"), Need(BACKWARD, "next"))


def _rank(
    name: str,
    description: str,
    needs: tuple[Need, ...] = (),
    takes: tuple[str, ...] = (),
    frees: tuple[str, ...] = (),
) -> Kind:
    return Kind(name, description, "rank", needs=needs, takes=takes, frees=frees)


def _after(kind: str) -> tuple[Need, ...]:
    return (Need((kind,), "same"),)


_KINDS = (
    Kind("F", "forward", needs=_FORWARD, takes=("activation",)),
    Kind("B", "backward", needs=_BACKWARD, frees=("activation",)),
    Kind("I", "input gradient", needs=_BACKWARD, takes=("weight",), frees=("activation",)),
    Kind("W", "weight gradient", needs=_after("I"), frees=("weight",)),
    # Vocabulary parallelism, Algorithms 1 and 2 (MLSys 2025, section 4).
    _rank("S", "output layer up to the local softmax", takes=("logits",)),
    _rank("T", "output layer's gradients", needs=_after("S"), frees=("logits",)),
    Kind(
        "C",
        "continuation of a barrier: rescale, start the reduction",
        "rank",
        "continuation",
        needs=_after("S"),
    ),
    # Its naive form has three passes, F1, F2 and B in the paper's Figure 4.
    _rank("L", "logits and their maximum", takes=("logits",)),
    _rank("E", "exponentials and their sum", needs=_after("L")),
    _rank("G", "softmax and gradients", needs=_after("E"), frees=("logits",)),
    _rank("IF", "input embedding, forward"),
    _rank("IB", "input embedding, backward", needs=_after("IF")),
    _rank("EF", "encoder forward", takes=("encoder",)),
    _rank("EB", "encoder backward", needs=_after("EF"), frees=("encoder",)),
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


def kind(name: str) -> Kind:
    """Return the registered kind of that name. Raises ValueError for an unknown one.

    >>> kind("W").frees
    ('weight',)
    """
    try:
        return _REGISTRY[name]
    except KeyError:
        known = " ".join(_REGISTRY)
        raise ValueError(f"unknown kind {name!r}; known are {known} (register_kind adds)") from None


def is_kind(name: str) -> bool:
    """Return whether a kind of that name is registered."""
    return name in _REGISTRY


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
    return new

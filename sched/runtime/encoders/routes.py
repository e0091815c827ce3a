"""Find out from a program's edges what its encoder passes work on, and what each edge carries.

Encoders number the microbatches by themselves; the edge to a stage's F says which of the language
model's microbatches one is. An edge carries one of two things: features (or their gradient), where
an encoder meets the language model, and hidden states (or their gradient) between two ranks of an
encoder. The gradients of several encoders' features leave a B as one value.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...ir.kinds import BACKWARD
from ...ir.program import Edge, Pass, Program
from ..compiled import Value
from ..parts import Joint
from .placement import EncoderPlacement, is_encoder


@dataclass(frozen=True, slots=True)
class EncoderRoutes:
    """The routes of features and gradients that a program's edges describe.

    `number`: by the encoders' number of a microbatch, that of the language model. `features`: by
    encoder and its microbatch. `gradients`: by value, the encoders whose features' gradients it is.
    `hidden`: by value that goes from one rank of an encoder to the next, the encoder. `backward`:
    all backwards. `with_input_gradient`: those whose input gradient a layer below waits for.
    """

    number: Mapping[int, int]
    features: Mapping[tuple[int, int], Value]
    gradients: Mapping[Value, tuple[int, ...]]
    hidden: Mapping[Value, int]
    backward: frozenset[Pass]
    with_input_gradient: frozenset[Pass]


def find_routes(program: Program, placement: EncoderPlacement) -> EncoderRoutes:
    r"""Return the routes of a program's encoders. Raises ValueError for edges that do not fit.

    >>> from counterpoise.sched import parse_program
    >>> from .placement import place_encoders
    >>> text = "placement: 0\nmicrobatches: 2\nedges: 0EF1->0F0\n0: 0EF1 0F0 0F1"
    >>> program = parse_program(text)
    >>> find_routes(program, place_encoders(program, [1])).number
    {1: 0}
    """
    passes = {pass_ for row in program.ranks for pass_ in row}
    # Everything below takes for granted that edges join what follows each other.
    for edge in program.edges:
        _check_edge(edge, placement)
    number = _numbers(program, placement, {pass_ for pass_ in passes if is_encoder(pass_, "EF")})
    inside = [edge.source for edge in program.edges if all(map(is_encoder, edge))]
    backward = {pass_ for pass_ in passes if is_encoder(pass_, "EB")}
    reached = {_key(pass_, placement) for pass_ in backward}
    return EncoderRoutes(
        number=number,
        features={
            (_encoder(source, placement), source.microbatch): edge_value(source)
            for source, _ in _features(program)
        },
        gradients=_gradients(program, placement),
        hidden={edge_value(source): _encoder(source, placement) for source in inside},
        backward=frozenset(backward),
        with_input_gradient=frozenset(b for b in backward if _below(_key(b, placement)) in reached),
    )


def find_joints(
    program: Program, placement: EncoderPlacement, names: Sequence[str]
) -> dict[tuple[int, int], Joint]:
    """Return where features enter the language model, by stage and microbatch.

    `names`: of the encoders; one, if these are its parts. Raises ValueError if some are missing.
    """
    takes: dict[tuple[int, int], dict[int, str]] = {}
    for source, target in _features(program):
        brought = takes.setdefault((target.stage, target.microbatch), {})
        brought[_encoder(source, placement)] = f"X_{source.kind}"
    returned = {
        (source.stage, source.microbatch, _encoder(target, placement))
        for source, target in program.edges
        if source.kind in BACKWARD
    }
    joints = {}
    for place, brought in takes.items():
        if missing := [name for n, name in enumerate(names) if n not in brought]:
            raise ValueError(
                f"{Pass(place[0], 'F', place[1])} gets no features of {', '.join(missing)}; add an "
                "edge from the last layer's EF"
            )
        encoders = range(len(placement.share))
        back = tuple((*place, encoder) in returned for encoder in encoders)
        takes_here = tuple(brought[encoder] for encoder in encoders)
        # Parts of one encoder are joined in their order, whatever that of the edges is.
        order = tuple([*brought].index(encoder) for encoder in encoders) if placement.part else ()
        joints[place] = Joint(tuple(names), takes_here, back, order)
    return joints


def edge_value(source: Pass) -> Value:
    """Return the value that edges take from a pass."""
    return Value(f"X_{source.kind}", source.stage, source.microbatch)


def _features(program: Program) -> Iterator[Edge]:
    """Yield the edges from encoders to the language model."""
    return (e for e in program.edges if e.target.kind == "F" and is_encoder(e.source, "EF"))


def _gradients(program: Program, placement: EncoderPlacement) -> dict[Value, tuple[int, ...]]:
    encoders_by_value: dict[Value, set[int]] = {}
    for source, target in program.edges:
        if source.kind in BACKWARD:
            encoders_by_value.setdefault(edge_value(source), set()).add(_encoder(target, placement))
    return {value: tuple(sorted(encoders)) for value, encoders in encoders_by_value.items()}


def _encoder(pass_: Pass, placement: EncoderPlacement) -> int:
    return placement.layer(pass_).encoder


def _key(pass_: Pass, placement: EncoderPlacement) -> tuple[int, int, int]:
    """Return encoder, layer and microbatch of a pass."""
    place = placement.layer(pass_)
    return place.encoder, place.number, pass_.microbatch


def _below(key: tuple[int, int, int]) -> tuple[int, int, int]:
    return key[0], key[1] - 1, key[2]


def _check_edge(edge: Edge, placement: EncoderPlacement) -> None:
    """Raise ValueError for an edge that joins passes which do not follow each other."""
    source, target = edge
    if is_encoder(source) and is_encoder(target):
        # Backwards go down.
        low, high = edge if is_encoder(source, "EF") else edge[::-1]
        below = _below(_key(high, placement)) == _key(low, placement)
        fits = source.kind[:2] == target.kind[:2] and below
    elif is_encoder(source, "EF"):
        fits = target.kind == "F" and placement.is_last(source)
    elif is_encoder(target, "EB"):
        fits = source.kind in BACKWARD and placement.is_last(target)
    else:
        fits = not (is_encoder(source) or is_encoder(target))
    if not fits:
        raise ValueError(
            f"the edge {edge} leads neither from a layer of an encoder to its next one, nor from "
            "its last one to an F, nor from a B or I back to it; fill the schedule again"
        )


def _numbers(
    program: Program, placement: EncoderPlacement, forwards: Iterable[Pass]
) -> dict[int, int]:
    number: dict[int, int] = {}
    taken: dict[tuple[Pass, int], Pass] = {}
    for source, target in _features(program):
        at = target, _encoder(source, placement)
        if taken.setdefault(at, source) != source:
            raise ValueError(
                f"{target} gets features from {taken[at]} and from {source}; give each F the "
                "features of one pass of each encoder"
            )
        if number.setdefault(source.microbatch, target.microbatch) != target.microbatch:
            raise ValueError(
                f"the encoders' microbatch {source.microbatch} is {number[source.microbatch]} and "
                f"{target.microbatch} of the language model; give each of them one number"
            )
    for pass_ in sorted(forwards):
        if pass_.microbatch not in number:
            raise ValueError(f"{pass_} leads to no F; add an edge from the encoder's last layer")
    return number

"""Find out from a program's edges what its encoder passes work on, and what each edge carries.

Encoders number the microbatches by themselves; the edge to a stage's F says which of the language
model's microbatches one is. An edge carries one of two things: features (or their gradient), where
an encoder meets the language model, and hidden states (or their gradient) between two ranks of an
encoder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...ir.kinds import BACKWARD, layer_kind
from ...ir.passes import Pass
from ...ir.program import Edge, Program
from ..compiled.ops import Value
from ..parts.step_data import TensorSpec
from .layers import EncoderLayers


@dataclass(frozen=True, slots=True)
class EncoderRoutes:
    """The routes of features and gradients that a program's edges describe.

    `number`: by the encoders' number of a microbatch, that of the language model. `features`,
    `hidden`: by value that edges carry, the language model's number of the microbatch. `entries`:
    the forwards that take fields and no result. `wanted`: the backwards whose input gradient a
    layer below waits for. `backward`: all backwards.
    """

    number: Mapping[int, int]
    features: Mapping[Value, int]
    hidden: Mapping[Value, int]
    entries: frozenset[Pass]
    wanted: frozenset[Pass]
    backward: frozenset[Pass]

    def specs(self, layers: EncoderLayers, infos: Sequence[Any]) -> dict[Value, TensorSpec]:
        """Return the size of everything that edges carry in a step."""
        features = {v: layers.features_spec(infos[number]) for v, number in self.features.items()}
        hidden = {v: layers.hidden_spec(infos[number]) for v, number in self.hidden.items()}
        return features | hidden


def find_routes(program: Program) -> EncoderRoutes:
    r"""Return the routes of a program's encoders.

    Raises ValueError if a microbatch's features reach no F, or F of two microbatches, or if an F
    gets features from two encoder passes.

    >>> from counterpoise.sched import parse_program
    >>> text = "placement: 0\nmicrobatches: 2\nedges: 0EF1->0F0\n0: 0EF1 0F0 0F1"
    >>> find_routes(parse_program(text)).number
    {1: 0}
    """
    items = {item for row in program.ranks for item in row}
    forwards, backward = ({p for p in items if _is(p, way)} for way in ("EF", "EB"))
    number = _numbers(program, forwards)
    inside = [edge for edge in program.edges if all(_is(end, "E") for end in edge)]
    features = _features(program)
    hidden = {_value(source): number[source.microbatch] for source, _ in inside}
    # What has a layer below it: on its own rank, or on another one along an edge.
    upper = {item for item in items if _below(item) in items}
    hops_from, hops_to = {edge.source for edge in inside}, {edge.target for edge in inside}
    return EncoderRoutes(
        number=number,
        features=features,
        # What goes to both has the features' size.
        hidden={value: hidden[value] for value in hidden.keys() - features.keys()},
        entries=frozenset(forwards - upper - hops_to),
        wanted=frozenset(backward & (upper | hops_from)),
        backward=frozenset(backward),
    )


def _features(program: Program) -> dict[Value, int]:
    """Return the values that go between encoders and the language model, with its numbers."""
    joints = [e for e in program.edges if e.target.kind == "F" or e.source.kind in BACKWARD]
    return {_value(edge.source): _joined(edge) for edge in joints}


def entry_ranks(program: Program) -> frozenset[int]:
    """Return the ranks that need an encoder's fields: those on which encoders begin."""
    return frozenset(item.stage for item in find_routes(program).entries)


def layer_number(kind: str) -> int:
    """Return the number of the layer whose pass a kind is.

    >>> layer_number("EF"), layer_number("EF_A"), layer_number("EB_AB")
    (0, 0, 27)
    """
    number = 0
    for letter in kind[3:]:
        number = 26 * number + ord(letter) - ord("A") + 1
    return max(0, number - 1)


def _is(item: Pass, direction: str) -> bool:
    """Return whether a pass is an encoder's: "EF", "EB", or "E" for both."""
    return item.kind[:2] in ("EF", "EB") and item.kind.startswith(direction)


def _below(item: Pass) -> Pass | None:
    """Return the same pass of the layer below on the same rank, None for others and the lowest."""
    layer = layer_number(item.kind) if _is(item, "E") else 0
    return replace(item, kind=layer_kind(item.kind[:2], layer - 1)) if layer else None


def _value(source: Pass) -> Value:
    return Value(f"X_{source.kind}", source.stage, source.microbatch)


def _joined(edge: Edge) -> int:
    """Return the language model's number of the microbatch of an edge to or from it."""
    return (edge.target if edge.target.kind == "F" else edge.source).microbatch


def _numbers(program: Program, forwards: set[Pass]) -> dict[int, int]:
    number: dict[int, int] = {}
    taken: dict[Pass, Pass] = {}
    for source, target in program.edges:
        if target.kind != "F" or not _is(source, "EF"):
            continue
        if taken.setdefault(target, source) != source:
            raise ValueError(
                f"{target} gets features from {taken[target]} and from {source}; give each F the "
                "features of one encoder pass"
            )
        if number.setdefault(source.microbatch, target.microbatch) != target.microbatch:
            raise ValueError(
                f"the encoders' microbatch {source.microbatch} is {number[source.microbatch]} and "
                f"{target.microbatch} of the language model; give each of them one number"
            )
    for item in sorted(forwards):
        if item.microbatch not in number:
            raise ValueError(f"{item} leads to no F; add an edge from the encoder's last layer")
    return number

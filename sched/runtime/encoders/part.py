"""The encoder layers of a rank as a part of the model that the executor runs.

EF keeps its input, if a layer below waits for its gradient, and the edge of its graph; EB starts
there. A layer without an EB in the program makes no graph. Features reach the language model
detached, so that a stage's backward ends at them; their gradient comes back along an edge. A
microbatch without features is not encoded: most encoders do not take none, and nothing is learnt.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ...ir.program import Pass, Program
from ...transforms.training import without_encoder_backward
from ..compiled import Value
from ..parts import Given, Joint, Made, StepData, TensorSpec, gradient_or_zeros, unpack
from ..stage.calling import Calling, call_module
from .placement import EncoderPlacement, EncoderSpec, LayerPlace, is_encoder, place_encoders
from .routes import EncoderRoutes, find_joints, find_routes, value_of
from .spread import parts_of, rows_of_part


@dataclass(frozen=True, slots=True)
class _Kept:
    """The input of EB, if its gradient is wanted, and where the output's gradient enters."""

    input: Tensor | None
    edge: GradientEdge | None


@dataclass(eq=False, slots=True)
class EncoderPart:
    """Runs the encoder passes of one rank.

    `program`: says which they are, and what they take. `calling`: as for stages. `names`: of the
    features, by default the encoders'. `replicas`: of the language model in the program. Raises
    ValueError for edges and joints that do not fit.
    """

    program: Program
    rank: int
    encoders: Sequence[EncoderSpec]
    placement: EncoderPlacement
    calling: Calling = field(default_factory=Calling)
    names: tuple[str, ...] = ()
    replicas: int = 1
    kinds: frozenset[str] = frozenset()
    routes: EncoderRoutes = field(init=False)
    joints: Mapping[tuple[int, int], Joint] = field(init=False)
    _data: StepData = field(default_factory=lambda: StepData((), ()))
    # By encoder and its microbatch: the features, and the value that brings their gradient.
    _made: Mapping[tuple[int, int], Value] = field(default_factory=dict)
    _packed: Mapping[tuple[int, int], Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find out what the passes work on, and compare them with the layers."""
        self.routes = find_routes(self.program, self.placement)
        names = self.names or [encoder.name for encoder in self.encoders]
        self.joints = find_joints(self.program, self.placement, names)
        self._made = {(encoder, v.microbatch): v for v, encoder in self.routes.features.items()}
        encoded = {number: own for own, number in self.routes.number.items()}
        self._packed = {
            (encoder, encoded[value.microbatch]): value
            for value, several in self.routes.gradients.items()
            for encoder in several
        }
        row = self.program.ranks[self.rank]
        self.kinds = frozenset(item.kind for item in row if is_encoder(item))
        _refuse_mixed(self.routes, self.encoders)

    def edge_specs(self, infos: Sequence[Any]) -> dict[Value, TensorSpec]:
        """Return the sizes of what edges carry in a step of microbatches with these infos."""
        return self.routes.specs(self.encoders, infos, self.replicas if self.placement.part else 0)

    def encoded(self) -> frozenset[int]:
        """Return the microbatches whose fields this rank encodes, as the language model has them.

        Ranks further up in an encoder pipeline are handed what those before have made.
        """
        row = (item for item in self.program.ranks[self.rank] if is_encoder(item, "EF"))
        first = (item for item in row if self.placement.layer(item).number == 0)
        return frozenset(self.routes.number[item.microbatch] for item in first)

    def begin_step(self, data: StepData) -> None:
        """Take the step's microbatches."""
        self._data = data

    def run_pass(self, what: Pass, given: Given) -> Made:
        """Run one layer's EF or EB."""
        place = self.placement.layer(what)
        features = self._made[place.encoder, what.microbatch]
        if 0 in self._data.edges[features].shape:
            return self._nothing(what, place)
        if is_encoder(what, "EF"):
            return self._forward(what, place, given)
        return self._backward(what, place, given)

    def finish_step(self) -> Tensor | None:
        """Return None: encoders have no loss."""
        return None

    def _nothing(self, what: Pass, place: LayerPlace) -> Made:
        """Return what a microbatch without features makes: what another rank waits for, empty."""
        value = value_of(what)
        if value not in self._data.edges:
            return {}
        module = layer_of(self.encoders[place.encoder], place.number)
        near = next((p.device for p in module.parameters()), torch.device("cpu"))
        return {value.name: self._data.edges[value].empty(near).zero_()}

    def _forward(self, what: Pass, place: LayerPlace, given: Given) -> Made:
        spec = self.encoders[place.encoder]
        back = Pass(what.stage, f"EB{what.kind[2:]}", what.microbatch)
        x = None
        if place.number == 0:
            fields = self._data.microbatches[self.routes.number[what.microbatch]].fields
            inputs = [self._rows(fields[name], name, place, what) for name in spec.inputs]
        else:
            x = _result(given, "EF", along_edge=place.lowest)
            x = x.detach().requires_grad_(back in self.routes.wanted)
            inputs = [x]
        with torch.set_grad_enabled(back in self.routes.backward):
            output = call_module(layer_of(spec, place.number), inputs, {}, self.calling, what)
        # What edges carry has the size that other ranks were promised.
        if (promised := self._data.edges.get(value_of(what))) is not None:
            advice = "give EncoderSpec the true tokens, width, hidden and precision"
            promised.check(output, f"{what} made", advice)
        edge = get_gradient_edge(output) if output.requires_grad else None
        kept = _Kept(x if back in self.routes.wanted else None, edge)
        result = output.detach()
        return {what.kind: result, f"X_{what.kind}": result, f"encoder{what.kind[2:]}": kept}

    def _rows(self, field: Tensor, name: str, place: LayerPlace, what: Pass) -> Tensor:
        """Return the rows of a field that this rank encodes: all, but of a spread encoder's."""
        if not self.placement.part:
            return field
        every = range(len(self.encoders))
        sizes = [self._data.edges[self._made[one, what.microbatch]].shape[0] for one in every]
        own = place.encoder
        return rows_of_part(field, name, sum(sizes[:own]), sizes[own], sum(sizes))

    def _backward(self, what: Pass, place: LayerPlace, given: Given) -> Made:
        kept: _Kept = given[f"encoder{what.kind[2:]}"]
        if kept.edge is not None:
            torch.autograd.backward([kept.edge], [self._gradient(what, place, given)])
        if kept.input is None:
            return {}
        found = gradient_or_zeros(kept.input)
        return {what.kind: found, f"X_{what.kind}": found}

    def _gradient(self, what: Pass, place: LayerPlace, given: Given) -> Tensor:
        """Return the gradient of a layer's result."""
        if not self.placement.is_last(what):
            return _result(given, "EB", along_edge=place.highest)
        # From the language model, with the gradients of the other encoders' features.
        value = self._packed[place.encoder, what.microbatch]
        several = self.routes.gradients[value]
        shapes = [self._data.edges[self._made[one, what.microbatch]].shape for one in several]
        packed: Tensor = given[value.name][0]
        return unpack(packed, shapes, several.index(place.encoder))


def refuse_without_backward(part: EncoderPart) -> None:
    """Raise ValueError if a layer of a rank is trained and its passes have no backward."""
    for item in part.program.ranks[part.rank]:
        back = Pass(item.stage, f"EB{item.kind[2:]}", item.microbatch)
        if not is_encoder(item, "EF") or back in part.routes.backward:
            continue
        place = part.placement.layer(item)
        spec = part.encoders[place.encoder]
        if any(p.requires_grad for p in layer_of(spec, place.number).parameters()):
            raise ValueError(
                f"layer {place.number} of the encoder {spec.name!r} is trained, but the schedule "
                f"has no {back}; freeze it, or fill a schedule with that layer trained"
            )


def layer_of(spec: EncoderSpec, number: int) -> nn.Module:
    """Return a layer of this rank. Raises ValueError if the rank was not given it."""
    module = spec.modules[number]
    if module is None:
        raise ValueError(
            f"the schedule runs layer {number} of the encoder {spec.name!r} on this rank; give its "
            "module, not None"
        )
    return module


def _result(given: Given, direction: str, *, along_edge: bool) -> Tensor:
    """Return the result of the layer beside this one: on this rank, or that an edge brings."""
    start = f"X_{direction}" if along_edge else direction
    found: Any = next(value for name, value in given.items() if name.startswith(start))
    tensor: Tensor = found[0] if along_edge else found
    return tensor


def _refuse_mixed(routes: EncoderRoutes, encoders: Sequence[EncoderSpec]) -> None:
    """Raise ValueError if gradients that travel as one value differ in precision."""
    for several in routes.gradients.values():
        kinds = {encoders[encoder].dtype for encoder in several}
        if len(kinds) > 1:
            names = ", ".join(f"{encoders[e].name}: {encoders[e].dtype}" for e in several)
            raise ValueError(f"encoders that are trained have one precision, got {names}")


@dataclass(frozen=True, slots=True)
class RankEncoders:
    """All encoders, and which of their layers this rank runs; empty for models without any.

    `names`: of their features. `specs`: of one that is spread, its parts.
    """

    specs: tuple[EncoderSpec, ...]
    rank: int
    placement: EncoderPlacement = field(default_factory=EncoderPlacement)
    names: tuple[str, ...] = ()

    def layers(self) -> Iterator[tuple[EncoderSpec, int, nn.Module]]:
        """Yield encoder, number and module of each layer that this rank runs."""
        for encoder, spec in enumerate(self.specs):
            for number in self.placement.on_rank(self.rank, encoder):
                yield spec, number, layer_of(spec, number)

    def named_modules(self) -> dict[str, nn.Module]:
        """Return the layers that this rank runs, by names that are the same on all ranks."""
        return {spec.layer_name(number): module for spec, number, module in self.layers()}

    def saved_elsewhere(self) -> frozenset[str]:
        """Return the names of layers of which a rank before this one has a copy, and saves it."""
        own = self.placement.position.get(self.rank)
        before = [at for rank, at in self.placement.position.items() if rank < self.rank]
        return frozenset(self.named_modules() if own in before else ())

    def trained(self) -> dict[str, dict[int, bool]]:
        """Return for each encoder which of the layers that this rank runs are trained."""
        found: dict[str, dict[int, bool]] = {spec.name: {} for spec in self.specs}
        for spec, number, module in self.layers():
            found[spec.name][number] = any(p.requires_grad for p in module.parameters())
        return found

    def fields(self, rank: int) -> set[str]:
        """Return the fields that a rank needs: those on which encoders begin, their inputs."""
        if self.placement.position.get(rank) != 0:
            return set()
        return {name for spec in self.specs for name in spec.inputs}

    def placed(self, program: Program) -> EncoderPlacement:
        """Return the placement for another program. Raises ValueError if layers are elsewhere."""
        layers, parts = [len(spec.modules) for spec in self.specs], bool(self.placement.part)
        found = place_encoders(program, layers, parts=parts)
        # A program with few microbatches may leave out whole encoder pipelines.
        known = self.placement
        if found.width != known.width or not found.position.items() <= known.position.items():
            raise ValueError(
                f"with {program.microbatches} microbatches the schedule {program.name!r} puts "
                "encoder layers on other ranks than when the pipeline was made; make the pipeline "
                "with a schedule that always puts them on the same ones"
            )
        return known


def rank_encoders(
    specs: Sequence[EncoderSpec], program: Program, rank: int, parts: int = 0
) -> RankEncoders:
    """Return the encoders of a rank. `parts`: into which units spread one, 0 for none.

    Raises ValueError for two of one name, and as placing does.
    """
    counts = Counter(spec.name for spec in specs)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ValueError(f"two encoders are called {twice[0]!r}; give each a name of its own")
    names = tuple(spec.name for spec in specs)
    specs = parts_of(specs, parts) if parts else specs
    layers = [len(spec.modules) for spec in specs]
    placement = place_encoders(program, layers, parts=parts > 0)
    return RankEncoders(tuple(specs), rank, placement, names)


def trained_program(
    program: Program, placement: EncoderPlacement, lowest: Sequence[int | None]
) -> Program:
    """Return the program without the backward that no gradient needs.

    `lowest`: of each encoder the lowest layer that is trained on any rank, None if it is frozen.
    """

    def unwanted(item: Pass) -> bool:
        place = placement.layer(item)
        first = lowest[place.encoder]
        return first is None or place.number < first

    return without_encoder_backward(program, unwanted)

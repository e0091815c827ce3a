"""The encoder layers of a rank as a part of the model that the executor runs.

EF keeps its inputs, if a layer below waits for their gradients, and the edges of its graph; EB
starts there. A layer without an EB in the program makes no graph. Several tensors that a layer
hands on cross ranks as one flat tensor. Features reach the language model detached; their gradient
comes back along an edge. A microbatch without features is not encoded: most encoders do not take
none.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed.tensor import DTensor

from ...ir.program import Pass, Program
from ...transforms.training import without_encoder_backward
from ..compiled import Value
from ..parts import Given, Joint, Made, StepData, TensorSpec, gradient_or_zeros, pack, unpack
from ..settings import StageOptions
from ..stage.agreement import is_trained
from ..stage.calling import plain_tensor, run_module
from .placement import EncoderPlacement, EncoderSpec, LayerPlace, is_encoder, place_encoders
from .routes import EncoderRoutes, find_joints, find_routes, value_of
from .spread import part_specs, parts_of, rows_of_part


@dataclass(frozen=True, slots=True)
class _Kept:
    """The inputs of EB whose gradients are wanted, and where those of the results enter."""

    inputs: tuple[Tensor, ...]
    edges: tuple[GradientEdge | None, ...]


def layer_of(spec: EncoderSpec, number: int) -> nn.Module:
    """Return a layer of this rank. Raises ValueError if the rank was not given it."""
    module = spec.modules[number]
    if module is None:
        raise ValueError(
            f"the schedule runs layer {number} of the encoder {spec.name!r} on this rank; give its "
            "module, not None"
        )
    return module


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

    def named_modules(self) -> list[tuple[str, nn.Module]]:
        """Return the layers that this rank runs, after what their tensors' names begin with."""
        return [(spec.layer_name(number), module) for spec, number, module in self.layers()]

    def saved_elsewhere(self) -> frozenset[str]:
        """Return the names of layers of which a rank before this one has a copy, and saves it."""
        own = self.placement.position.get(self.rank)
        before = [at for rank, at in self.placement.position.items() if rank < self.rank]
        return frozenset(name for name, _ in self.named_modules() if own in before)

    def divided(self) -> bool:
        """Return whether tensor parallelism divides a layer that this rank runs."""
        every = (p for _, _, module in self.layers() for p in module.parameters())
        return any(isinstance(parameter, DTensor) for parameter in every)

    def trained(self) -> dict[str, dict[int, bool]]:
        """Return for each encoder which of the layers that this rank runs are trained."""
        found: dict[str, dict[int, bool]] = {spec.name: {} for spec in self.specs}
        for spec, number, module in self.layers():
            found[spec.name][number] = is_trained([module])
        return found

    def fields(self, rank: int) -> set[str]:
        """Return the fields that a rank needs: extras, and where encoders begin, their inputs."""
        if rank not in self.placement.position:
            return set()
        extras = {name for spec in self.specs for name in spec.extras}
        if self.placement.position[rank] != 0:
            return extras
        return {name for spec in self.specs for name in spec.inputs} | extras

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


@dataclass(eq=False, slots=True)
class EncoderPart:
    """Runs the encoder passes of one rank.

    `program`: says which they are, and what they take. `options`: as for stages. `replicas`: of the
    language model in the program. Raises ValueError for edges and joints that do not fit.
    """

    program: Program
    own: RankEncoders
    options: StageOptions = field(default_factory=StageOptions)
    replicas: int = 1
    kinds: frozenset[str] = frozenset()
    # The microbatches that this rank encodes, as the language model numbers them.
    encoded: frozenset[int] = frozenset()
    routes: EncoderRoutes = field(init=False)
    joints: Mapping[tuple[int, int], Joint] = field(init=False)
    _data: StepData = field(default_factory=lambda: StepData((), ()))
    # By encoder and its microbatch, the value that brings the gradient of its features.
    _packed: Mapping[tuple[int, int], Value] = field(default_factory=dict)
    # A value that goes between its ranks; all of them are alike.
    _hidden: Mapping[tuple[int, int], Value] = field(default_factory=dict)
    # By encoder and its microbatch, until its last layer here has been run: what layers get beside.
    _constants: dict[tuple[int, int], Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find out what the passes work on, and compare them with the layers."""
        self.routes = find_routes(self.program, self.own.placement)
        self.joints = find_joints(self.program, self.own.placement, self.own.names)
        encoded = {number: own for own, number in self.routes.number.items()}
        self._packed = {
            (encoder, encoded[value.microbatch]): value
            for value, several in self.routes.gradients.items()
            for encoder in several
        }
        hidden = self.routes.hidden.items()
        self._hidden = {(encoder, value.microbatch): value for value, encoder in hidden}
        row = [item for item in self.program.ranks[self.own.rank] if is_encoder(item)]
        self.kinds = frozenset(item.kind for item in row)
        self.encoded = frozenset(
            self.routes.number[item.microbatch] for item in row if is_encoder(item, "EF")
        )
        _refuse_mixed(self.routes, self.own.specs)

    def edge_specs(self, infos: Sequence[Any]) -> dict[Value, TensorSpec]:
        """Return the size of all that edges carry. `infos`: None of what does not come here."""
        found, routes = {}, self.routes
        # Of each microbatch, by encoder.
        features = [
            () if info is None else tuple(each.features_spec(info) for each in self.own.specs)
            for info in infos
        ]
        if self.own.placement.part:
            features = part_specs(self.own.specs, infos, self.replicas)
        for (encoder, microbatch), value in routes.features.items():
            number = routes.number[microbatch]
            if infos[number] is not None:
                found[value] = features[number][encoder]
        for value, encoder in routes.hidden.items():
            if (info := infos[routes.number[value.microbatch]]) is not None:
                found[value] = self.own.specs[encoder].hidden_spec(info)
        for value, several in routes.gradients.items():
            if infos[value.microbatch] is None:
                continue
            # The gradients of several encoders' features travel as one flat tensor.
            parts = [features[value.microbatch][encoder] for encoder in several]
            size = sum(width * tokens for tokens, width in (part.shape for part in parts))
            found[value] = parts[0] if len(parts) == 1 else TensorSpec((size,), parts[0].dtype)
        return found

    def begin_step(self, data: StepData) -> None:
        """Take the step's microbatches."""
        self._data, self._constants = data, {}

    def run_pass(self, what: Pass, given: Given) -> Made:
        """Run one layer's EF or EB."""
        place = self.own.placement.layer(what)
        features = self.routes.features[place.encoder, what.microbatch]
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
        module = layer_of(self.own.specs[place.encoder], place.number)
        near = next((p.device for p in module.parameters()), torch.device("cpu"))
        return {value.name: self._data.edges[value].empty(near).zero_()}

    def _forward(self, what: Pass, place: LayerPlace, given: Given) -> Made:
        spec = self.own.specs[place.encoder]
        back = Pass(what.stage, f"EB{what.kind[2:]}", what.microbatch)
        wanted = back in self.routes.wanted
        fields = self._data.microbatches[self.routes.number[what.microbatch]].fields
        constants = self._prepared(what, place, fields)
        if place.number == 0:
            inputs = tuple(self._rows(fields[name], name, place, what) for name in spec.inputs)
        else:
            below = self._beside(what, place, given, along_edge=place.lowest)
            inputs = tuple(tensor.detach().requires_grad_(wanted) for tensor in below)
        with torch.set_grad_enabled(back in self.routes.backward):
            module = layer_of(spec, place.number)
            made = _several(run_module(module, inputs, constants, self.options), what)
        if self.own.placement.is_last(what) and len(made) > 1:
            raise TypeError(
                f"{what}, of the last layer of the encoder {spec.name!r}, returned {len(made)} "
                "tensors; return one, the features: those for several layers of the language "
                "model beside each other, (tokens, width)"
            )
        edges = tuple(get_gradient_edge(one) if one.requires_grad else None for one in made)
        kept = _Kept(inputs if wanted else (), edges)
        result = tuple(tensor.detach() for tensor in made)
        return {**self._handed(what, result), f"encoder{what.kind[2:]}": kept}

    def _prepared(
        self, what: Pass, place: LayerPlace, fields: Mapping[str, Tensor]
    ) -> Mapping[str, Any]:
        """Return what a layer gets by keyword, made once for a microbatch and encoder."""
        spec, key = self.own.specs[place.encoder], (place.encoder, what.microbatch)
        if key not in self._constants:
            extras = {n: self._rows(fields[n], n, place, what) for n in spec.extras}
            with torch.no_grad():
                found = extras if spec.prepare is None else spec.prepare(**extras)
            self._constants[key] = found
        # Nobody else here asks for those of a microbatch after its highest layer.
        return self._constants.pop(key) if place.highest else self._constants[key]

    def _handed(self, what: Pass, result: tuple[Tensor, ...]) -> dict[str, Any]:
        """Return the results of a pass for the layer beside it, here and along an edge."""
        promised = self._data.edges.get(value_of(what))
        if promised is None:
            return {what.kind: result}
        # What edges carry has the size that other ranks were promised.
        shapes = tuple(tuple(tensor.shape) for tensor in result)
        if shapes != (parts := promised.parts or (promised.shape,)):
            raise ValueError(
                f"{what} made {_listed(shapes)}, the plan says {_listed(parts)}; give EncoderSpec "
                "the true tokens and width, and as hidden= the shape, or a list of the shapes, of "
                "what it hands to another rank"
            )
        packed = pack(result).flatten() if promised.parts else result[0]
        promised.check(packed, f"{what} made", "give EncoderSpec the true precision")
        return {what.kind: result, f"X_{what.kind}": packed}

    def _beside(
        self, what: Pass, place: LayerPlace, given: Given, *, along_edge: bool
    ) -> tuple[Tensor, ...]:
        """Return the results of the layer beside: on this rank, or that an edge brings."""
        start = f"X_{what.kind[:2]}" if along_edge else what.kind[:2]
        found: Any = next(value for name, value in given.items() if name.startswith(start))
        if not along_edge:
            return found  # type: ignore[no-any-return]
        parts = self._data.edges[self._hidden[place.encoder, what.microbatch]].parts
        whole: Tensor = found[0]
        return tuple(unpack(whole, parts, n) for n in range(len(parts))) if parts else (whole,)

    def _rows(self, field: Tensor, name: str, place: LayerPlace, what: Pass) -> Tensor:
        """Return the rows of a field that this rank encodes: all, but of a spread encoder's."""
        if not self.own.placement.part:
            return field
        every = range(len(self.own.specs))
        sizes = [
            self._data.edges[self.routes.features[one, what.microbatch]].shape[0] for one in every
        ]
        own = place.encoder
        return rows_of_part(field, name, sum(sizes[:own]), sizes[own], sum(sizes))

    def _backward(self, what: Pass, place: LayerPlace, given: Given) -> Made:
        kept: _Kept = given[f"encoder{what.kind[2:]}"]
        gradients = self._gradient(what, place, given)
        pairs = zip(kept.edges, gradients, strict=True)
        both = [(edge, found) for edge, found in pairs if edge is not None]
        if both:
            torch.autograd.backward([edge for edge, _ in both], [found for _, found in both])
        if not kept.inputs:
            return {}
        return self._handed(what, tuple(map(gradient_or_zeros, kept.inputs)))

    def _gradient(self, what: Pass, place: LayerPlace, given: Given) -> tuple[Tensor, ...]:
        """Return the gradients of a layer's results."""
        if not self.own.placement.is_last(what):
            return self._beside(what, place, given, along_edge=place.highest)
        # From the language model, with the gradients of the other encoders' features.
        value = self._packed[place.encoder, what.microbatch]
        several = self.routes.gradients[value]
        shapes = [
            self._data.edges[self.routes.features[one, what.microbatch]].shape for one in several
        ]
        packed: Tensor = given[value.name][0]
        return (unpack(packed, shapes, several.index(place.encoder)),)


def refuse_without_backward(part: EncoderPart) -> None:
    """Raise ValueError if a layer of a rank is trained and its passes have no backward."""
    for item in part.program.ranks[part.own.rank]:
        back = Pass(item.stage, f"EB{item.kind[2:]}", item.microbatch)
        if not is_encoder(item, "EF") or back in part.routes.backward:
            continue
        place = part.own.placement.layer(item)
        spec = part.own.specs[place.encoder]
        if is_trained([layer_of(spec, place.number)]):
            raise ValueError(
                f"layer {place.number} of the encoder {spec.name!r} is trained, but the schedule "
                f"has no {back}; freeze it, or fill a schedule with that layer trained"
            )


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes)) or "nothing"


def _several(made: Any, what: Pass) -> tuple[Tensor, ...]:
    """Return what a layer has made, one tensor or several. Raises TypeError for anything else."""
    found = tuple(plain_tensor(one, what) for one in (made if isinstance(made, tuple) else (made,)))
    if wrong := [one.dtype for one in found if not one.is_floating_point()]:
        raise TypeError(
            f"{what} hands a tensor of {wrong[0]} to the next layer; what is constant for a "
            "microbatch is made by prepare= of EncoderSpec, on every rank"
        )
    return found


def _refuse_mixed(routes: EncoderRoutes, encoders: Sequence[EncoderSpec]) -> None:
    """Raise ValueError if gradients that travel as one value differ in precision."""
    for several in routes.gradients.values():
        kinds = {encoders[encoder].dtype for encoder in several}
        if len(kinds) > 1:
            names = ", ".join(f"{encoders[e].name}: {encoders[e].dtype}" for e in several)
            raise ValueError(f"encoders that are trained have one precision, got {names}")


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

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
from ...transforms.training import drop_encoder_backward
from ..compiled import Value
from ..parts import Given, Joint, Made, StepData, TensorSpec, gradient_or_zeros, pack, unpack
from ..settings import StageOptions
from ..stage.agreement import is_trained
from ..stage.calling import plain_tensor, run_module
from .placement import EncoderPlacement, EncoderSpec, LayerPlace, is_encoder, place_encoders
from .routes import EncoderRoutes, edge_value, find_joints, find_routes
from .spread import part_rows, part_specs, split_encoder


@dataclass(frozen=True, slots=True)
class _Saved:
    """The inputs of EB whose gradients are wanted, and where those of the results enter."""

    inputs: tuple[Tensor, ...]
    edges: tuple[GradientEdge | None, ...]


def require_layer(spec: EncoderSpec, number: int) -> nn.Module:
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
                yield spec, number, require_layer(spec, number)

    def named_modules(self) -> list[tuple[str, nn.Module]]:
        """Return the layers that this rank runs, after what their tensors' names begin with."""
        return [(spec.layer_name(number), module) for spec, number, module in self.layers()]

    def saved_elsewhere(self) -> frozenset[str]:
        """Return the names of layers of which a rank before this one has a copy, and saves it."""
        position = self.placement.position.get(self.rank)
        before = [at for rank, at in self.placement.position.items() if rank < self.rank]
        return frozenset(name for name, _ in self.named_modules() if position in before)

    def divided(self) -> bool:
        """Return whether tensor parallelism divides a layer that this rank runs."""
        parameters = (p for _, _, module in self.layers() for p in module.parameters())
        return any(isinstance(parameter, DTensor) for parameter in parameters)

    def trained(self) -> dict[str, dict[int, bool]]:
        """Return for each encoder which of the layers that this rank runs are trained."""
        trained: dict[str, dict[int, bool]] = {spec.name: {} for spec in self.specs}
        for spec, number, module in self.layers():
            trained[spec.name][number] = is_trained([module])
        return trained

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
        placed = place_encoders(program, layers, parts=parts)
        # A program with few microbatches may leave out whole encoder pipelines.
        known = self.placement
        if placed.width != known.width or not placed.position.items() <= known.position.items():
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
    specs = split_encoder(specs, parts) if parts else specs
    placement = place_encoders(program, [len(spec.modules) for spec in specs], parts=parts > 0)
    return RankEncoders(tuple(specs), rank, placement, names)


@dataclass(eq=False, slots=True)
class EncoderPart:
    """Runs the encoder passes of one rank.

    `program`: says which they are, and what they take. `options`: as for stages. `replicas`: of the
    language model in the program. Raises ValueError for edges and joints that do not fit.
    """

    program: Program
    encoders: RankEncoders
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
        self.routes = find_routes(self.program, self.encoders.placement)
        self.joints = find_joints(self.program, self.encoders.placement, self.encoders.names)
        encoded = {number: microbatch for microbatch, number in self.routes.number.items()}
        self._packed = {
            (encoder, encoded[value.microbatch]): value
            for value, several in self.routes.gradients.items()
            for encoder in several
        }
        hidden = self.routes.hidden.items()
        self._hidden = {(encoder, value.microbatch): value for value, encoder in hidden}
        row = [pass_ for pass_ in self.program.ranks[self.encoders.rank] if is_encoder(pass_)]
        self.kinds = frozenset(pass_.kind for pass_ in row)
        self.encoded = frozenset(
            self.routes.number[pass_.microbatch] for pass_ in row if is_encoder(pass_, "EF")
        )
        _refuse_mixed(self.routes, self.encoders.specs)

    def edge_specs(self, infos: Sequence[Any]) -> dict[Value, TensorSpec]:
        """Return the size of all that edges carry. `infos`: None of what does not come here."""
        specs, routes = {}, self.routes
        # Of each microbatch, by encoder.
        features = [
            () if info is None else tuple(spec.features_spec(info) for spec in self.encoders.specs)
            for info in infos
        ]
        if self.encoders.placement.part:
            features = part_specs(self.encoders.specs, infos, self.replicas)
        for (encoder, microbatch), value in routes.features.items():
            number = routes.number[microbatch]
            if infos[number] is not None:
                specs[value] = features[number][encoder]
        for value, encoder in routes.hidden.items():
            if (info := infos[routes.number[value.microbatch]]) is not None:
                specs[value] = self.encoders.specs[encoder].hidden_spec(info)
        for value, several in routes.gradients.items():
            if infos[value.microbatch] is None:
                continue
            # The gradients of several encoders' features travel as one flat tensor.
            parts = [features[value.microbatch][encoder] for encoder in several]
            size = sum(width * tokens for tokens, width in (part.shape for part in parts))
            specs[value] = parts[0] if len(parts) == 1 else TensorSpec((size,), parts[0].dtype)
        return specs

    def begin_step(self, data: StepData) -> None:
        """Take the step's microbatches."""
        self._data, self._constants = data, {}

    def run_pass(self, pass_: Pass, values: Given) -> Made:
        """Run one layer's EF or EB."""
        place = self.encoders.placement.layer(pass_)
        if 0 in self._features_shape(place.encoder, pass_.microbatch):
            return self._nothing(pass_, place)
        if is_encoder(pass_, "EF"):
            return self._forward(pass_, place, values)
        return self._backward(pass_, place, values)

    def finish_step(self) -> Tensor | None:
        """Return None: encoders have no loss."""
        return None

    def _features_shape(self, encoder: int, microbatch: int) -> tuple[int, ...]:
        """Return the shape of an encoder's features of one of its microbatches."""
        return self._data.edges[self.routes.features[encoder, microbatch]].shape

    def _nothing(self, pass_: Pass, place: LayerPlace) -> Made:
        """Return what a microbatch without features makes: what another rank waits for, empty."""
        value = edge_value(pass_)
        if value not in self._data.edges:
            return {}
        module = require_layer(self.encoders.specs[place.encoder], place.number)
        near = next((p.device for p in module.parameters()), torch.device("cpu"))
        return {value.name: self._data.edges[value].empty(near).zero_()}

    def _forward(self, pass_: Pass, place: LayerPlace, values: Given) -> Made:
        spec = self.encoders.specs[place.encoder]
        back = Pass(pass_.stage, f"EB{pass_.kind[2:]}", pass_.microbatch)
        is_needed = back in self.routes.with_input_gradient
        fields = self._data.microbatches[self.routes.number[pass_.microbatch]].fields
        constants = self._prepared(pass_, place, fields)
        if place.number == 0:
            inputs = tuple(self._rows(fields[name], name, place, pass_) for name in spec.inputs)
        else:
            below = self._beside(pass_, place, values, along_edge=place.lowest)
            inputs = tuple(tensor.detach().requires_grad_(is_needed) for tensor in below)
        # A layer whose backward is no pass makes no graph.
        with torch.set_grad_enabled(back in self.routes.backward):
            module = require_layer(spec, place.number)
            outputs = _several(run_module(module, inputs, constants, self.options), pass_)
        if self.encoders.placement.is_last(pass_) and len(outputs) > 1:
            raise TypeError(
                f"{pass_}, of the last layer of the encoder {spec.name!r}, returned {len(outputs)} "
                "tensors; return one, the features: those for several layers of the language "
                "model beside each other, (tokens, width)"
            )
        edges = tuple(
            get_gradient_edge(output) if output.requires_grad else None for output in outputs
        )
        saved = _Saved(inputs if is_needed else (), edges)
        result = tuple(tensor.detach() for tensor in outputs)
        return {**self._handed(pass_, result), f"encoder{pass_.kind[2:]}": saved}

    def _prepared(
        self, pass_: Pass, place: LayerPlace, fields: Mapping[str, Tensor]
    ) -> Mapping[str, Any]:
        """Return what a layer gets by keyword, made once for a microbatch and encoder."""
        spec, key = self.encoders.specs[place.encoder], (place.encoder, pass_.microbatch)
        if key not in self._constants:
            extras = {n: self._rows(fields[n], n, place, pass_) for n in spec.extras}
            with torch.no_grad():
                constants = extras if spec.prepare is None else spec.prepare(**extras)
            self._constants[key] = constants
        # After its highest layer no pass here asks for those of a microbatch.
        return self._constants.pop(key) if place.highest else self._constants[key]

    def _handed(self, pass_: Pass, result: tuple[Tensor, ...]) -> dict[str, Any]:
        """Return the results of a pass for the layer beside it, here and along an edge."""
        promised = self._data.edges.get(edge_value(pass_))
        if promised is None:
            return {pass_.kind: result}
        # What edges carry has the size that other ranks were promised.
        shapes = tuple(tuple(tensor.shape) for tensor in result)
        if shapes != (parts := promised.parts or (promised.shape,)):
            raise ValueError(
                f"{pass_} made {_listed(shapes)}, the plan says {_listed(parts)}; give EncoderSpec "
                "the true tokens and width, and as hidden= the shape, or a list of the shapes, of "
                "what it hands to another rank"
            )
        packed = pack(result).flatten() if promised.parts else result[0]
        promised.check(packed, f"{pass_} made", "give EncoderSpec the true precision")
        return {pass_.kind: result, f"X_{pass_.kind}": packed}

    def _beside(
        self, pass_: Pass, place: LayerPlace, values: Given, *, along_edge: bool
    ) -> tuple[Tensor, ...]:
        """Return the results of the layer beside: on this rank, or that an edge brings."""
        start = f"X_{pass_.kind[:2]}" if along_edge else pass_.kind[:2]
        results: Any = next(value for name, value in values.items() if name.startswith(start))
        if not along_edge:
            return results  # type: ignore[no-any-return]
        parts = self._data.edges[self._hidden[place.encoder, pass_.microbatch]].parts
        whole: Tensor = results[0]
        return tuple(unpack(whole, parts, n) for n in range(len(parts))) if parts else (whole,)

    def _rows(self, field: Tensor, name: str, place: LayerPlace, pass_: Pass) -> Tensor:
        """Return the rows of a field that this rank encodes: all, but of a spread encoder's."""
        if not self.encoders.placement.part:
            return field
        part, parts = place.encoder, range(len(self.encoders.specs))
        sizes = [self._features_shape(number, pass_.microbatch)[0] for number in parts]
        return part_rows(field, name, sum(sizes[:part]), sizes[part], sum(sizes))

    def _backward(self, pass_: Pass, place: LayerPlace, values: Given) -> Made:
        saved: _Saved = values[f"encoder{pass_.kind[2:]}"]
        pairs = zip(saved.edges, self._gradient(pass_, place, values), strict=True)
        both = [(edge, gradient) for edge, gradient in pairs if edge is not None]
        if both:
            torch.autograd.backward([edge for edge, _ in both], [gradient for _, gradient in both])
        if not saved.inputs:
            return {}
        return self._handed(pass_, tuple(map(gradient_or_zeros, saved.inputs)))

    def _gradient(self, pass_: Pass, place: LayerPlace, values: Given) -> tuple[Tensor, ...]:
        """Return the gradients of a layer's results."""
        if not self.encoders.placement.is_last(pass_):
            return self._beside(pass_, place, values, along_edge=place.highest)
        # From the language model, with the gradients of the other encoders' features.
        value = self._packed[place.encoder, pass_.microbatch]
        several = self.routes.gradients[value]
        shapes = [self._features_shape(encoder, pass_.microbatch) for encoder in several]
        packed: Tensor = values[value.name][0]
        return (unpack(packed, shapes, several.index(place.encoder)),)


def refuse_without_backward(part: EncoderPart) -> None:
    """Raise ValueError if a layer of a rank is trained and its passes have no backward."""
    for pass_ in part.program.ranks[part.encoders.rank]:
        back = Pass(pass_.stage, f"EB{pass_.kind[2:]}", pass_.microbatch)
        if not is_encoder(pass_, "EF") or back in part.routes.backward:
            continue
        place = part.encoders.placement.layer(pass_)
        spec = part.encoders.specs[place.encoder]
        if is_trained([require_layer(spec, place.number)]):
            raise ValueError(
                f"layer {place.number} of the encoder {spec.name!r} is trained, but the schedule "
                f"has no {back}; freeze it, or fill a schedule with that layer trained"
            )


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes)) or "nothing"


def _several(output: Any, pass_: Pass) -> tuple[Tensor, ...]:
    """Return what a layer has made, one tensor or several. Raises TypeError for anything else."""
    outputs = output if isinstance(output, tuple) else (output,)
    tensors = tuple(plain_tensor(tensor, pass_) for tensor in outputs)
    if wrong := [tensor.dtype for tensor in tensors if not tensor.is_floating_point()]:
        raise TypeError(
            f"{pass_} hands a tensor of {wrong[0]} to the next layer; what is constant for a "
            "microbatch is made by prepare= of EncoderSpec, on every rank"
        )
    return tensors


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

    def unwanted(pass_: Pass) -> bool:
        place = placement.layer(pass_)
        first = lowest[place.encoder]
        return first is None or place.number < first

    return drop_encoder_backward(program, unwanted)

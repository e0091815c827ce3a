"""What each layer of a model costs one GPU for a microbatch: the chain that every planner cuts.

`layer_costs` makes it from shapes; a file of measured layers gives the same (`tools/inputs`).
The vocabulary is part of the language model's first and last layer, a projector of its encoder's
last. Times are roofline figures of the device, TP's collectives included.

Bytes are Korthikanti et al. (2022), section 4, without dropout, and with attention that keeps no
scores: a layer keeps the inputs of its two norms and of what follows them (4 h a token, divided by
TP only with sequence parallelism), and, divided by TP, queries, keys, values, attention's output,
and the MLP's inner tensors: 2 of its width, 3 if it is gated. Plain PyTorch (`fused` False) keeps a
normalized copy with each RMS norm and the gate's activation too. A frozen layer keeps no inputs of
matrices; one with nothing to train before it keeps nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from .device import Device
from .layout import ParallelLayout
from .model import ENCODER, GENERATOR, LANGUAGE, Amounts, Model, SubModel, TransformerLayer

_INDEX_BYTES = 8


@dataclass(frozen=True, slots=True)
class LayerCost:
    """A layer's costs on one GPU for one microbatch.

    `backward_ns`: without recomputation; `weight_ns`: its part that makes weight gradients.
    `recompute_ns`: what recomputing the layer repeats (-1: the whole forward). `parameters`:
    held by the GPU; `frozen`: those of them that are not trained. `output_bytes`: handed on.
    `activation_bytes`: kept by a forward; `input_bytes`: kept if it is recomputed.
    `logits_bytes`: kept in either case by an output layer. `working_bytes`, `loss_bytes`: what a
    backward of the layer, and of the output layer, needs beside what is kept.
    `delivered_bytes`: of a microbatch as the loader brings it here.
    """

    kind: str
    forward_ns: int
    backward_ns: int
    parameters: int
    output_bytes: int
    activation_bytes: int = 0
    input_bytes: int = 0
    weight_ns: int = 0
    recompute_ns: int = -1
    frozen: int = 0
    working_bytes: int = 0
    logits_bytes: int = 0
    loss_bytes: int = 0
    delivered_bytes: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for negative numbers."""
        if self.recompute_ns == -1:
            object.__setattr__(self, "recompute_ns", self.forward_ns)
        for name in self.__slots__[1:]:
            if getattr(self, name) < 0:
                raise ValueError(
                    f"a {self.kind} layer has {name} {getattr(self, name)}; give 0 or more"
                )

    @property
    def trained(self) -> int:
        """Return the parameters that have gradients."""
        return self.parameters - self.frozen


@dataclass(frozen=True, slots=True)
class _Setting:
    """What the costs of a part's layers depend on; tokens of one context-parallel rank."""

    device: Device
    layout: ParallelLayout
    percent: int
    tokens: int

    def compute_ns(self, flops: int) -> int:
        return self.device.compute_ns(flops, self.percent) // (self.layout.tp * self.layout.cp)

    def sync_ns(self, hidden: int) -> int:
        """Return a pass's collectives: two all-gathers and two reduce-scatters."""
        size = self.layout.activation_bytes * self.tokens * hidden
        return 4 * self.device.gather_ns(size, self.layout.tp)

    def bytes(self, whole: int, divided: int = 0) -> int:
        """Return bytes of activations of these widths. `whole`: divided only by SP."""
        tp, wide = self.layout.tp, self.layout.activation_bytes * self.tokens
        shared = whole if not self.layout.sequence_parallel else 0
        return wide * shared + -(-wide * (divided + whole - shared) // tp)


def layer_costs(
    model: Model, device: Device, layout: ParallelLayout, amounts: Amounts
) -> tuple[LayerCost, ...]:
    """Return the costs of a model's layers, in order, for a microbatch of these amounts.

    >>> from .named import read_model
    >>> model = read_model("internvit-6b+internlm2-20b")
    >>> len(layer_costs(model, Device(), ParallelLayout(tp=8), model.amounts(tiles=9)))
    93
    """
    costs: list[LayerCost] = []
    carried, is_reached = 0, False
    is_joined = any(part.kind == LANGUAGE for part in model.parts)
    for part in model.parts:
        trains = not part.frozen
        # Encoders stand beside each other: no gradients pass from one to another.
        passes = trains or (is_reached and part.kind != ENCODER)
        row = _part_costs(part, device, layout, amounts, trains, passes)
        is_reached = is_reached or trains or part.projector > 0
        if part.kind == ENCODER and is_joined:
            # Behind an encoder its features travel on, through the layers of the next one.
            row = [replace(cost, output_bytes=cost.output_bytes + carried) for cost in row]
            carried += _handed_bytes(part, model.language.hidden, layout, amounts)
            row[-1] = replace(row[-1], output_bytes=carried)
        costs += row
    # A microbatch is delivered as its units, and three tensors of tokens.
    units = sum(part.unit_bytes * amounts.get(part.unit, 0) for part in model.encoders)
    tokens = 3 * _INDEX_BYTES * amounts.get("tokens", 0)
    return (replace(costs[0], delivered_bytes=units + tokens), *costs[1:])


def output_layer(
    model: Model, device: Device, layout: ParallelLayout, amounts: Amounts
) -> LayerCost:
    """Return the output layer's cost where the vocabulary is spread: one rank's part of it."""
    part, wide = model.language, replace(layout, tp=layout.tp * layout.pp)
    words = part.vocabulary
    if words is None:
        raise ValueError(f"{model.name} has no vocabulary")
    setting = _Setting(device, wide, _percent(part, device), -(-part.tokens(amounts) // wide.cp))
    ns = setting.compute_ns(words.forward_flops(part.tokens(amounts)))
    logits, loss = _logits_bytes(setting, words.size)
    weight, frozen = (0, words.total) if part.frozen else (ns, 0)
    return LayerCost(
        "vocabulary", ns, ns + weight, -(-words.total // wide.tp), 0, weight_ns=weight,
        logits_bytes=logits, loss_bytes=loss, frozen=-(-frozen // wide.tp),
    )  # fmt: skip


def _percent(part: SubModel, device: Device) -> int:
    by_kind = {ENCODER: device.encoder_percent, GENERATOR: device.generator_percent}
    return by_kind.get(part.kind, device.efficiency_percent)


def _part_costs(
    part: SubModel,
    device: Device,
    layout: ParallelLayout,
    amounts: Amounts,
    trains: bool,
    passes: bool,
) -> list[LayerCost]:
    """Return a part's layers. `passes`: whether gradients go through it to what is trained."""
    tokens = -(-part.tokens(amounts) // layout.cp)
    setting = _Setting(device, layout, _percent(part, device), tokens)
    seen = {
        layer: _layer_cost(part, layer, setting, amounts, trains, passes)
        for layer in dict.fromkeys(part.layers)
    }
    row = [seen[layer] for layer in part.layers]
    row[0] = _grown(row[0], part.front, trains, layout)
    row[-1] = _grown(row[-1], part.back, trains, layout)
    if part.projector:
        ns = setting.compute_ns(2 * part.projector * part.handed(amounts))
        row[-1] = _grown(row[-1], part.projector, True, layout, (ns, 2 * ns, ns))
    words = part.vocabulary
    if words is not None and not layout.spread_vocabulary:
        row[0] = _grown(row[0], words.parameters, trains, layout)
        # A tied output layer on another stage holds a copy of the embedding (Megatron-LM).
        is_copied = not words.tied or layout.pp * layout.vpp > 1
        ns = setting.compute_ns(words.forward_flops(part.tokens(amounts)))
        times = ns, (2 if trains else 1) * ns * passes, ns * trains
        more = words.parameters if is_copied else 0
        row[-1] = _grown(row[-1], more, trains, layout, times)
        logits, loss = _logits_bytes(setting, words.size)
        copied = part.layers[-1].rms and not layout.fused
        norm = setting.bytes((3 if copied else 2) * part.hidden)
        row[-1] = replace(row[-1], logits_bytes=(logits + norm) * passes, loss_bytes=loss)
    return row


def _layer_cost(
    part: SubModel,
    layer: TransformerLayer,
    setting: _Setting,
    amounts: Amounts,
    trains: bool,
    passes: bool,
) -> LayerCost:
    layout = setting.layout
    flops = part.layer_flops(layer, amounts)
    attention = 0 if part.unit_flops else layer.attention_flops(part.pairs(amounts))
    forward, weight = setting.compute_ns(flops), setting.compute_ns(flops - attention)
    sync = setting.sync_ns(layer.hidden)
    # Gradients of inputs: as much as the forward, and attention's twice.
    inputs = 2 * forward - weight + sync if passes else 0
    weight_ns = weight if trains else 0
    # Vectors of MLPs and attention may be divided too, but are few.
    held = -(-layer.weights // layout.tp) + layer.vectors
    activations, working = _kept_bytes(layer, setting, trains)
    return LayerCost(
        part.kind, forward + sync, inputs + weight_ns, held, setting.bytes(layer.hidden),
        activations * passes, setting.bytes(layer.hidden) * passes, weight_ns,
        recompute_ns=(forward + sync) * passes, frozen=0 if trains else held,
        working_bytes=working * passes,
    )  # fmt: skip


def _kept_bytes(layer: TransformerLayer, setting: _Setting, trains: bool) -> tuple[int, int]:
    """Return the bytes that a layer keeps, and those that its backward needs beside them."""
    gated, fused = layer.matrices == 3, setting.layout.fused
    norms = 4 if layer.rms and not fused else 2
    inner = (2 if fused else 3) if gated else 1
    whole, divided = norms * layer.hidden, layer.query + layer.key_values + layer.value
    divided += inner * layer.active_inner
    if trains:
        # The inputs of the matrices, of each expert that a token goes to.
        whole += layer.hidden * (1 + max(1, layer.active))
        divided += layer.active_inner
    # Gradients of the residual stream and of the MLP's inner tensors, less what is free by then;
    # and a weight's gradient on its way, unless kernels add it where it belongs.
    largest = max(layer.hidden * layer.inner, layer.hidden * layer.query)
    arriving = 0 if fused else setting.layout.weight_bytes * largest // setting.layout.tp
    beside = setting.bytes(2 * layer.hidden, (2 if gated else 1) * layer.active_inner)
    return setting.bytes(whole, divided), beside + arriving


def _logits_bytes(setting: _Setting, size: int) -> tuple[int, int]:
    """Return the bytes of logits that a loss keeps (fp32), and those that its backward adds."""
    layout = setting.layout
    scores = setting.tokens * -(-size // layout.tp)
    return 4 * scores, (layout.activation_bytes if layout.fused else 8) * scores


def _handed_bytes(part: SubModel, hidden: int, layout: ParallelLayout, amounts: Amounts) -> int:
    size = layout.activation_bytes * part.handed(amounts) * hidden // layout.cp
    return size // layout.tp if layout.sequence_parallel else size


def _grown(
    cost: LayerCost,
    parameters: int,
    trains: bool,
    layout: ParallelLayout,
    times: tuple[int, int, int] = (0, 0, 0),
) -> LayerCost:
    """Return a layer with more parameters, and forward, backward and weight times of its own."""
    more = -(-parameters // layout.tp)
    return replace(
        cost,
        forward_ns=cost.forward_ns + times[0],
        backward_ns=cost.backward_ns + times[1],
        weight_ns=cost.weight_ns + times[2],
        parameters=cost.parameters + more,
        frozen=cost.frozen + (0 if trains else more),
    )


def merged(layers: Sequence[LayerCost]) -> LayerCost:
    """Return layers as one that no split cuts, and that is recomputed whole."""
    names = [field.name for field in fields(LayerCost) if field.name != "kind"]
    sums = {name: sum(getattr(layer, name) for layer in layers) for name in names}
    # Layers work one after the other.
    most = {name: max(getattr(layer, name) for layer in layers) for name in ("working_bytes",)}
    ends = {"output_bytes": layers[-1].output_bytes, "input_bytes": layers[0].input_bytes}
    return LayerCost(layers[0].kind, **{**sums, **most, **ends})

"""Models memory and time of a microbatch's tiles and tokens on a pipeline of ranks.

Everything here is modelled from shapes (sched.shapes): work at half of a device's peak, activations
without recomputation, weights and optimizer state on every tensor-parallel rank. It compares
settings; measured profiles say what a machine really does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from ....balancer.planning.problem.metrics import TILE_TOKENS
from ....sched.ir.registry import schedule
from ....sched.shapes import ModelShape, TransformerLayer, Vocabulary, shape_profile, vit_layer
from ....sched.simulation.cost_profile import profile_costs
from ....sched.simulation.simulator import simulate
from ....sched.simulation.timeline import Timeline

GB = 10**9
# Memory is linear in tiles and tokens; its slope is taken over this many.
UNIT = 1000
# name: (chunks per rank, shape of the placement)
SCHEDULES = {
    "gpipe": (1, "loop"),
    "1f1b": (1, "loop"),
    "interleaved": (2, "loop"),
    "zb-h1": (1, "loop"),
    "v-half": (2, "v"),
    "zbv": (2, "v"),
}
MicrobatchLoad = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Model:
    """A vision-language model, and the tokens of its LLM that cost as much as a tile."""

    name: str
    shape: ModelShape
    tile_tokens: int


MODELS = {
    "6b+20b": Model(
        "6b+20b",
        ModelShape(
            layer=TransformerLayer(6144, 16384, 3, 2048),
            layers=48,
            vocabulary=Vocabulary(6144, 92553),
            encoder=vit_layer(3200, 12800),
            encoder_layers=45,
            encoder_tokens=1025,
        ),
        TILE_TOKENS,
    ),
    "0.3b+8b": Model(
        "0.3b+8b",
        ModelShape(
            layer=TransformerLayer(4096, 14336, 3, 2048),
            layers=32,
            vocabulary=Vocabulary(4096, 92553),
            encoder=vit_layer(1024, 4096),
            encoder_layers=24,
            encoder_tokens=1025,
        ),
        41,
    ),
}


@dataclass(frozen=True, slots=True)
class PipelineMachine:
    """A pipeline of stages x tensor-parallel ranks, and the memory of each device."""

    stages: int = 4
    tensor_parallel: int = 8
    memory_bytes: int = 80 * GB


def peak_bytes(model: Model, machine: PipelineMachine, tiles: int, tokens: int) -> int:
    """Return the peak bytes of the fullest rank under 1F1B if all microbatches are that large."""
    return max(
        fixed + (tiles * tile + tokens * token) // UNIT
        for fixed, tile, token in _bytes_by_rank(model.name, machine)
    )


@cache
def _bytes_by_rank(name: str, machine: PipelineMachine) -> tuple[tuple[int, int, int], ...]:
    """Return for every rank the bytes of its weights and state, of UNIT tiles and of UNIT tokens.

    The number of microbatches that 1F1B keeps on a rank is fixed, so the peak is linear in both.
    """

    def peaks(tiles: int, tokens: int) -> tuple[int, ...]:
        load = {"tiles": tiles, "tokens": tokens, "token_pairs": 0}
        microbatches = [load] * (2 * machine.stages)
        return simulate_schedule("1f1b", MODELS[name], machine, microbatches).peak_bytes

    found = zip(peaks(0, 0), peaks(UNIT, 0), peaks(0, UNIT), strict=True)
    return tuple((none, tile - none, token - none) for none, tile, token in found)


def simulate_schedule(
    name: str, model: Model, machine: PipelineMachine, microbatches: Sequence[MicrobatchLoad]
) -> Timeline:
    """Simulate a schedule; ValueError if it cannot have that many ranks and microbatches."""
    chunks, shape = SCHEDULES[name]
    spread = replace(model.shape, tensor_parallel=machine.tensor_parallel)
    profile = shape_profile(spread, ranks=machine.stages, chunks=chunks, shape=shape)
    program = schedule(name, ranks=machine.stages, microbatches=len(microbatches))
    return simulate(program, profile_costs(profile, microbatches))


def most_tiles(model: Model, machine: PipelineMachine, tokens: int) -> int:
    """Return the most tiles that fit beside `tokens`, -1 if the tokens alone do not fit.

    Peak memory grows with both, so a binary search finds the answer.
    """
    if peak_bytes(model, machine, 0, tokens) > machine.memory_bytes:
        return -1
    low, high = 0, 1
    while peak_bytes(model, machine, high, tokens) <= machine.memory_bytes:
        low, high = high, 2 * high
        if high > 1 << 20:
            return low
    while high - low > 1:
        middle = (low + high) // 2
        fits = peak_bytes(model, machine, middle, tokens) <= machine.memory_bytes
        low, high = (middle, high) if fits else (low, middle)
    return low


def shares(model: Model, load: MicrobatchLoad) -> dict[str, float]:
    """Return the encoder's and the vocabulary's share of a microbatch's work."""
    shape = model.shape
    tokens, tiles, pairs = load["tokens"], load["tiles"], load["token_pairs"]
    words = shape.vocabulary.forward_flops(tokens)
    layers = shape.layers * shape.layer.forward_flops(tokens=tokens, pairs=pairs)
    encoder = 0
    if shape.encoder is not None:
        each = shape.encoder.forward_flops(
            tokens=shape.encoder_tokens, pairs=shape.encoder_tokens**2
        )
        encoder = shape.encoder_layers * tiles * each
    total = max(1, words + layers + encoder)
    return {"encoder": encoder / total, "vocabulary": words / total}

"""Vocabulary Parallelism's tables: from operation counts, and from the authors' pass times."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from counterpoise.sched import Costs, Program, schedule, simulate
from counterpoise.sched.generators.vocabulary import PAPER_SCALING, vocabulary
from counterpoise.sched.shapes import Device, TransformerLayer, Vocabulary
from counterpoise.tools.inputs.cost_options import collective_ns

from ..baselines.vocabulary_measurements import read_runs
from ..baselines.vocabulary_placements import ModelTimes, arrange, output_ns
from ..vocabulary.golden import golden

Ours = dict[str, float]
A100 = Device()
GEMMA_2_9B, GPT_7B = TransformerLayer(3584, 14336, 3, 4096), TransformerLayer(4096)
# Figure 11's models: ranks, layers and width.
MODELS = ((8, 32, 3072), (16, 48, 4096), (32, 64, 5120))
WORDS = {"32k": 2**15, "64k": 2**16, "128k": 2**17, "256k": 2**18}
MICROBATCHES = 128
# Figure 13's models: ranks and width. One layer a chunk, two chunks a rank.
V_HALF = ((16, 4096), (24, 5120), (32, 6144))
# Of a parameter in fp16 with its gradient and Adam's states, nothing divided over replicas.
STATE_BYTES = 18
# What Figure 13 leaves out: the baseline runs out of memory.
TOO_LARGE = (32, "256k")


def over_layer(layer: TransformerLayer, words: int) -> Ours:
    """Return an output layer's FLOPs, at 2,048 tokens, and parameters over a layer's."""
    output = Vocabulary(layer.hidden, words)
    flops = layer.forward_flops(tokens=2048, pairs=2048**2)
    return {
        "compute": output.forward_flops(2048) / flops,
        "parameters": output.parameters / layer.parameters,
    }


def figure_10() -> Ours:
    """Return the most activations that a rank of 4 holds."""
    costs = Costs({"F": 10, "B": 20, "S": 2, "T": 2})
    return {
        f"algorithm {number}": max(
            simulate(vocabulary("1f1b", f"alg{number}", ranks=4, microbatches=16), costs).peak_bytes
        )
        for number in (1, 2)
    }


def figure_11(data: Path) -> Ours:
    """Return utilisation from measured pass times, and the range of 24 settings by counts."""
    gains = list(_gains())
    return {name: cell["simulated"] for name, cell in _cells(data)} | {
        "algorithm 1 over redis, 24 settings, least": min(gains),
        "algorithm 1 over redis, 24 settings, most": max(gains),
        "largest difference to the timed run, points": _golden(data)["most_points_off"],
    }


def figure_12(data: Path) -> Ours:
    """Return the peak memory of the fullest GPU."""
    return {name: cell["peak_gib"] for name, cell in _cells(data)}


@cache
def _golden(data: Path) -> dict[str, Any]:
    return golden(data / "golden")


def _cells(data: Path) -> Iterator[tuple[str, dict[str, float]]]:
    for tokens, by_words in _golden(data)["cells"].items():
        for words, methods in by_words.items():
            for method, cell in methods.items():
                yield f"{tokens}, {words}, {method}", cell


def _gains() -> Iterator[float]:
    """Yield algorithm 1's gain over redistributed layers, slower by the paper's Table 3."""
    for ranks, layers, hidden in MODELS:
        for tokens in (2048, 4096):
            for words in WORDS.values():
                whole = _times(layers, hidden, tokens, words)
                cut = _scaled(whole, PAPER_SCALING[tokens][ranks]["alg1"])
                sizes = {"ranks": ranks, "microbatches": MICROBATCHES}
                program, costs = arrange("alg1", cut, **sizes)
                blocked = _with_collectives(program, costs, whole.forward_ns * layers // ranks)
                redis = simulate(*arrange("redis", whole, **sizes)).makespan_ns
                yield redis / simulate(program, blocked).makespan_ns


def _times(layers: int, hidden: int, tokens: int, words: int) -> ModelTimes:
    flops = TransformerLayer(hidden).forward_flops(tokens=tokens, pairs=tokens**2)
    layer = A100.compute_ns(flops)
    output = A100.compute_ns(Vocabulary(hidden, words).forward_flops(tokens))
    return ModelTimes(layers, layer, 2 * layer, output, 2 * output)


def _scaled(times: ModelTimes, share: float) -> ModelTimes:
    return replace(
        times,
        output_forward_ns=round(times.output_forward_ns / share),
        output_backward_ns=round(times.output_backward_ns / share),
    )


def _with_collectives(program: Program, costs: Costs, forward: int) -> Costs:
    ns = collective_ns(forward, len(program.ranks))
    return replace(costs, collective_ns={barrier.name: ns for barrier in program.barriers})


def figure_13() -> Ours:
    """Return the range of algorithm 1's throughput over V-Half with the vocabulary on rank 0."""
    gains = [
        _v_half_gain(ranks, hidden, tokens, words)
        for ranks, hidden in V_HALF
        for tokens in (2048, 4096)
        for name, words in WORDS.items()
        if (ranks, name) != TOO_LARGE
    ]
    return {"least": min(gains), "most": max(gains)}


def _v_half_gain(ranks: int, hidden: int, tokens: int, words: int) -> float:
    times = _times(2 * ranks, hidden, tokens, words)
    cut = _scaled(times, PAPER_SCALING[tokens].get(ranks, PAPER_SCALING[tokens][32])["alg1"])
    layer, last = times.forward_ns, times.output_forward_ns
    stages = [layer] * (2 * ranks - 1)
    base = Costs({kind: [*stages, layer + last] for kind in ("F", "I", "W")})
    program = vocabulary("v-half", "alg1", ranks=ranks, microbatches=MICROBATCHES)
    spread = Costs(dict.fromkeys(("F", "I", "W"), layer) | output_ns("alg1", cut, ranks))
    spread = _with_collectives(program, spread, 2 * layer)
    whole = simulate(schedule("v-half", ranks=ranks, microbatches=MICROBATCHES), base).makespan_ns
    return whole / simulate(program, spread).makespan_ns


def figure_14() -> Ours:
    """Return by how much rank 0 is over the others: embedding and output layer, or positions."""
    fits = [
        (hidden, words)
        for ranks, hidden in V_HALF
        for name, words in WORDS.items()
        if (ranks, name) != TOO_LARGE
    ]
    return {
        "baseline": max(STATE_BYTES * 2 * hidden * words / 1e9 for hidden, words in fits),
        "algorithm 1": max(STATE_BYTES * hidden * 4096 / 1e9 for hidden, _ in fits),
    }


def table_3(data: Path) -> Ours:
    """Return how the divided layers scale by the authors' own pass times.

    The whole layers are what the baseline's first and last stage take longer than the others.
    """
    found: Ours = {}
    runs = [run for run in read_runs(data / "golden") if run.words == 256000]
    for base in (run for run in runs if run.method == "base"):
        stages = [sum(both) for both in zip(base.forward_us, base.backward_us, strict=True)]
        embedding, output = (stages[at] - sum(stages[1:-1]) / (len(stages) - 2) for at in (0, -1))
        for run in runs:
            if run.tokens == base.tokens and run.method in ("alg1", "alg2"):
                own, forward, backward, _ = map(sum, run.pieces_us)
                found[f"{run.tokens}, {run.method}, 8 GPUs"] = 100 * output / own
                found[f"{run.tokens}, input, 8 GPUs"] = 100 * embedding / (forward + backward)
    return found


FIGURES: dict[str, Callable[..., Ours]] = {
    "Figure 2": lambda: over_layer(GEMMA_2_9B, 256_000),
    "Figure 3": lambda: over_layer(GPT_7B, 2**17), "Figure 10": figure_10, "Figure 11": figure_11,
    "Figure 12": figure_12, "Figure 13": figure_13, "Figure 14": figure_14, "Table 3": table_3,
}  # fmt: skip

"""Vocabulary Parallelism's tables: from operation counts, and from the authors' pass times."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from counterpoise.sched import Costs, schedule, simulate
from counterpoise.sched.generators.blocks import Pace
from counterpoise.sched.generators.vocabulary import vocabulary
from counterpoise.sched.shapes import Device, TransformerLayer, Vocabulary

from ..baselines.vocabulary_measurements import read_runs
from ..vocabulary.simulated import MODELS, WORDS, _makespans, measured_program

Ours = Mapping[str, float]
MICROBATCHES = 128
GEMMA_2_9B = TransformerLayer(3584, 14336, 3, 4096)
# Figure 13's models: ranks, layers, width. One layer a chunk, two chunks a rank.
V_HALF = {"7B": (16, 32, 4096), "16B": (24, 48, 5120), "30B": (32, 64, 6144)}
# Bytes of a parameter with its gradient and Adam's states, nothing divided over replicas.
STATE_BYTES = 18


def over_layer(layer: TransformerLayer, words: int, tokens: int) -> Ours:
    """Return an output layer's FLOPs and parameters over a transformer layer's."""
    output = Vocabulary(layer.hidden, words)
    flops = layer.forward_flops(tokens=tokens, pairs=tokens**2)
    return {
        "compute": output.forward_flops(tokens) / flops,
        "parameters": output.parameters / layer.parameters,
    }


def figure_10(data: Path | None) -> Ours:
    """Return the most activations that a rank of 4 holds."""
    found = {}
    for number in (1, 2):
        program = vocabulary(
            "1f1b", f"alg{number}", ranks=4, microbatches=16, pace=Pace(10, 20, 4)
        )
        costs = Costs({"F": 10, "B": 20, "S": 2, "T": 2})
        found[f"algorithm {number}"] = max(simulate(program, costs).peak_bytes)
    return found


def figure_11(data: Path | None) -> Ours:
    """Return utilisation from measured pass times, and the range of 24 settings by counts."""
    found, off = {}, 0.0
    for run in read_runs(_golden(data)):
        program, costs = measured_program(run)
        simulated = run.utilisation(simulate(program, costs).makespan_ns)
        found[f"{run.tokens}, {run.words // 1000}k, {run.method}"] = simulated
        off = max(off, abs(simulated - run.utilisation(round(run.iteration_ms * 1e6))))
    gains = list(_gains_over_redis())
    return found | {
        "algorithm 1 over redis, 24 settings, least": min(gains),
        "algorithm 1 over redis, 24 settings, most": max(gains),
        "largest difference to the timed run, points": off,
    }


def _gains_over_redis() -> Iterator[float]:
    for model in MODELS.values():
        for tokens in (2048, 4096):
            for words in WORDS.values():
                _, redis, one, _ = _makespans(*model, tokens, words)
                yield redis / one


def _golden(data: Path | None) -> Path:
    if data is None:
        raise ValueError("the authors' files are in the data folder: --data")
    return data / "golden"

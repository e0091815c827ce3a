"""Images travel, or whole samples are balanced: what encoder and language model wait, live.

Steps are drawn from a file of costs and planned as a loader plans them. Encoder and language model
sleep what tiles and tokens take. Three contenders run the same steps: whole samples, with an
encoder that ranks run before each microbatch, as frameworks do; the same with the encoder once a
step, for all microbatches; and images that travel. Waiting is all of a phase in which a rank does
not sleep in its kernels: for slower ranks, in exchanges, in the host's own work. What kernels take
is measured by one clock, theirs, in forward and backward and for all contenders.
"""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from counterpoise.balancer import Images
from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.balance import Balance
from counterpoise.balancer.planning.problem.config import PlanConfig, Window
from counterpoise.balancer.planning.problem.metrics import TILE_TOKENS
from counterpoise.balancer.planning.problem.options import Dispatch
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.loader.step.dispatch import ImageDispatch

from .. import rounded_spread
from ..planning.costs import read_costs
from ..runtime.rank_processes import RankProcesses
from ..runtime.sleeping import HIDDEN, SleepingStage

Report = dict[str, Any]
RANKS, MICROBATCHES, SAMPLES = 4, 4, 4
# Of a token in the language model, a third of it forward; a tile takes 307 times as long. It is
# that of 20B parameters (6 x 20e9 operations) at 400 TFLOPS, beside an encoder of 6B.
TOKEN_NS = 300_000
CONTENDERS = ("samples", "samples, encoder once a step", "images")
PARTS = ("encoder", "llm")
_RESOURCES = ("tiles", "tokens")
# The part of the waiting of whole samples that may be left.
LEFT = 0.5


class TravelCase(NamedTuple):
    """A step: tiles and tokens (ranks, microbatches, 2), by whole samples and if images travel."""

    samples: Int64
    images: Int64

    def of(self, contender: str) -> Int64:
        """Return what ranks get."""
        return self.images if contender == "images" else self.samples


class Phases(NamedTuple):
    """One rank's ns of a step, in kernels and in all, of encoder and language model."""

    encoder_slept: int
    encoder: int
    llm_slept: int
    llm: int


def draw_cases(
    path: Path, draws: int, seed: int = 0, ranks: int = RANKS, microbatches: int = MICROBATCHES
) -> list[TravelCase]:
    """Return steps of samples that are drawn from a file of costs, planned both ways."""
    table = read_costs(path, _RESOURCES, 0, seed).costs
    size = ranks * microbatches * SAMPLES
    chosen = table[permutation(len(table), seed, 0)[: draws * size]]
    steps = [np.ascontiguousarray(chosen[at * size :][:size]) for at in range(draws)]
    shape = ranks, microbatches
    return [
        TravelCase(_planned(step, "samples", *shape), _planned(step, "images", *shape))
        for step in steps
    ]


def _planned(costs: Int64, dispatch: Dispatch, ranks: int, microbatches: int) -> Int64:
    config = PlanConfig.from_balance(
        Balance(accumulate=microbatches, images=Images(dispatch=dispatch)),
        ranks=ranks, resources=_RESOURCES, samples_per_step=len(costs),
    )  # fmt: skip
    (batch,) = make_planner(config).plan(Window(0, 0, 0, costs, last=True)).batches
    rows = [[costs[list(one.ordinals)].sum(axis=0) for one in rank] for rank in batch.ranks]
    return np.array(rows, dtype=np.int64)


class _Phase:
    """The time inside a block, and how much of it a stage sleeps."""

    def __init__(self, stage: SleepingStage) -> None:
        self.slept = self.whole = 0
        self._stage = stage

    def __enter__(self) -> None:
        self._begun = time.perf_counter_ns(), self._stage.slept_ns

    def __exit__(self, *_: object) -> None:
        begun, slept = self._begun
        self.whole += time.perf_counter_ns() - begun
        self.slept += self._stage.slept_ns - slept


class TravelRank:
    """One rank, which runs all contenders."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        third = TOKEN_NS // 3
        tile = TILE_TOKENS * third
        self._encoder = SleepingStage(tile, 2 * tile, 0)
        self._llm = SleepingStage(third, 2 * third, 0)
        self._dispatch = ImageDispatch(self._encoder, torch.zeros(1, HIDDEN))

    def measure(self, case: TravelCase) -> dict[str, Phases]:
        """Run a step by every contender."""
        found = {}
        for name in CONTENDERS:
            own = case.of(name)[self._rank]
            encoder, llm = _Phase(self._encoder), _Phase(self._llm)
            self._meet()
            if name == "images":
                self._travelling(own, encoder, llm)
            else:
                for some in own[:, None] if name == "samples" else [own]:
                    self._whole(some, encoder, llm)
            found[name] = Phases(encoder.slept, encoder.whole, llm.slept, llm.whole)
        return found

    def _whole(self, own: Int64, encoder: _Phase, llm: _Phase) -> None:
        """Encode the images of some microbatches, run these, and the encoder's backward."""
        tiles = int(own[:, 0].sum())
        with encoder:
            features = self._encoder(torch.ones(tiles, HIDDEN)) if tiles else None
            self._meet()
        for tokens in own[:, 1].tolist():
            self._language(tokens, llm)
        with encoder:
            if features is not None:
                features.sum().backward()
            self._meet()

    def _travelling(self, own: Int64, encoder: _Phase, llm: _Phase) -> None:
        """Run a step whose images travel."""
        with encoder:
            step = self._dispatch.step([torch.ones(tiles, HIDDEN) for tiles in own[:, 0].tolist()])
            features = [step.features(number) for number in range(len(own))]
        for tokens, some in zip(own[:, 1].tolist(), features, strict=True):
            self._language(tokens, llm)
            some.grad = torch.ones_like(some)
        with encoder:
            step.backward()

    def _language(self, tokens: int, llm: _Phase) -> None:
        with llm:
            if tokens:
                self._llm(torch.ones(tokens, HIDDEN)).sum().backward()
            self._meet()

    def _meet(self) -> None:
        dist.all_reduce(torch.zeros(1))


def measure_travelling(path: Path, draws: int, rounds: int) -> Report:
    """Return what every contender waits, over interleaved rounds after one that is not counted."""
    cases = draw_cases(path, draws)
    with RankProcesses(RANKS, TravelRank) as ranks:
        found = [[ranks.call("measure", case) for case in cases] for _ in range(rounds + 1)]
    return verdict(cases, found[1:])


def verdict(
    cases: Sequence[TravelCase], rounds: Sequence[Sequence[Sequence[dict[str, Phases]]]]
) -> Report:
    """Return the waiting of every contender, modelled and measured, and what is left of it.

    rounds: by round, step and rank. A round's waiting is that of all its steps and ranks; figures
    are [median, least, most] over rounds. Parts that are left are taken within each round, where
    the machine is the same, and the medians are theirs.
    """
    waiting = {name: [_waiting(steps, name) for steps in rounds] for name in CONTENDERS}
    # By round, since the machine is as fast for all contenders of one round only.
    left = {
        name: {
            part: [
                now[part] / max(1e-9, before[part])
                for now, before in zip(waiting["images"], waiting[name], strict=True)
            ]
            for part in PARTS
        }
        for name in CONTENDERS[:-1]
    }
    parts = (*PARTS, "step_ms")
    return {
        "steps": len(cases),
        "rounds": len(rounds),
        "modelled": {name: _modelled(cases, name) for name in CONTENDERS},
        "waiting": {
            name: {part: rounded_spread([one[part] for one in found], 4) for part in parts}
            for name, found in waiting.items()
        },
        "left": {
            name: {part: rounded_spread(values, 4) for part, values in one.items()}
            for name, one in left.items()
        },
        "agrees": all(statistics.median(one) < LEFT for one in left["samples"].values()),
    }


def _waiting(steps: Sequence[Sequence[dict[str, Phases]]], name: str) -> dict[str, float]:
    """Return the shares of waiting in a round, and the mean step in ms."""
    rows = np.array([[rank[name] for rank in ranks] for ranks in steps], dtype=np.float64)
    encoder_slept, encoder, llm_slept, llm = rows.reshape(-1, 4).mean(axis=0)
    return {
        "encoder": float(1 - encoder_slept / encoder),
        "llm": float(1 - llm_slept / llm),
        "step_ms": float((encoder + llm) / 1e6),
    }


def _modelled(cases: Sequence[TravelCase], name: str) -> dict[str, float]:
    """Return the same shares from costs alone, without what exchanges take."""
    loads = np.stack([case.of(name) for case in cases])
    tiles, tokens = loads[..., 0], loads[..., 1]
    slowest = {
        "samples": tiles.max(axis=1).sum(),
        "samples, encoder once a step": tiles.sum(axis=2).max(axis=1).sum(),
        "images": (-(-tiles.sum(axis=(1, 2)) // RANKS)).sum(),
    }[name]
    llm = tokens.max(axis=1).sum()
    return {
        "encoder": round(1 - float(tiles.sum()) / (RANKS * float(slowest)), 4),
        "llm": round(1 - float(tokens.sum()) / (RANKS * float(llm)), 4),
    }

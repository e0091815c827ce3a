"""Images travel between all ranks of pipelines, or whole samples are balanced, live.

As `travelling.py`, with stages: the same steps and sleeps, on a mesh of dp and pp. Both contenders
train by `Pipeline(images=...)` and 1F1B. With whole samples each microbatch is encoded by one rank
of its own pipeline, in turn, as a plan of encoders in the bubbles has it; else all ranks share all
images. A schedule waits with equal microbatches, too: that part no balance can take away, and it is
left out of the language model's waiting. A stage takes as long as the whole model at pp 1: models
that are cut are larger.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.balancer.planning.problem.metrics import TILE_TOKENS
from counterpoise.loader.step.dispatch import ImageDispatch
from counterpoise.sched.ir.registry import schedule
from counterpoise.sched.runtime import Pipeline, StageOptions, TravellingImages
from counterpoise.sched.simulation.costs import Costs
from counterpoise.sched.simulation.simulator import simulate

from .. import rounded_spread
from ..runtime.rank_processes import RankProcesses
from ..runtime.sleeping import HIDDEN, SleepingStage
from .travelling import LEFT, PARTS, TOKEN_NS, Phases, TravelCase, draw_cases

Report = dict[str, Any]
RANKS = 4
CONTENDERS = ("samples", "images")
# Of a step of four ranks at pp 1, which these ranks share otherwise.
_MICROBATCHES = 4
_SCHEDULE = "1f1b"


class _Timed:
    """A dispatcher of which the time is known: a protocol of the runtime's, around another one."""

    together, reduction = None, "sum"

    def __init__(self, inner: Any, encoder: SleepingStage) -> None:
        self._inner, self.encoder, self.ranks = inner, encoder, RANKS
        self.slept = self.whole = 0

    def _run(self, call: Any, *given: Any) -> Any:
        begun, slept = time.perf_counter_ns(), self.encoder.slept_ns
        try:
            return call(*given)
        finally:
            self.whole += time.perf_counter_ns() - begun
            self.slept += self.encoder.slept_ns - slept

    def step(self, pixels: Sequence[Tensor | None], sizes: Any = None) -> Any:
        """Return a step whose calls are timed."""
        step = self._run(self._inner.step, pixels, sizes)
        return SimpleNamespace(
            features=lambda number: self._run(step.features, number),
            backward=lambda: self._run(step.backward),
        )


class _WholeMicrobatches:
    """Encodes whole microbatches of the own pipeline, in turn; features take no time to travel."""

    def __init__(self, encoder: SleepingStage, rank: int, stages: int) -> None:
        self._encoder, self._rank, self._stages = encoder, rank, stages
        self.tiles: list[int] = []

    def step(self, pixels: Sequence[Tensor | None], sizes: Any = None) -> Any:
        """Encode this rank's share, and wait for the others."""
        del pixels, sizes
        own = [n for n in self.tiles[self._rank :: self._stages] if n]
        made = [self._encoder(torch.ones(n, HIDDEN)) for n in own]
        _meet()
        leaves = [torch.zeros(n, HIDDEN, requires_grad=True) for n in self.tiles]

        def backward() -> None:
            for one in made:
                one.sum().backward()
            _meet()

        return SimpleNamespace(features=leaves.__getitem__, backward=backward)


class _First(nn.Module):
    """A first stage whose input depends on features, at no cost."""

    def __init__(self, stage: SleepingStage) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, x: Tensor, features: Tensor) -> Tensor:
        found: Tensor = self.stage(x + 0 * features.sum())
        return found


class PipelinedRank:
    """One rank, which runs both contenders."""

    def __init__(self, rank: int, stages: int) -> None:
        self._replica, self._at = divmod(rank, stages)
        mesh = init_device_mesh("cpu", (RANKS // stages, stages), mesh_dim_names=("dp", "pp"))
        third = TOKEN_NS // 3
        tile = TILE_TOKENS * third
        self._stage = SleepingStage(third, 2 * third, 0)
        encoder = SleepingStage(tile, 2 * tile, 0)
        self._whole = _WholeMicrobatches(encoder, self._at, stages)
        moved = ImageDispatch(encoder, torch.zeros(1, HIDDEN), reduction="sum")
        self._timed = {
            "samples": _Timed(self._whole, encoder), "images": _Timed(moved, encoder),
        }  # fmt: skip
        module = self._stage if self._at else _First(self._stage)
        self._pipes = {
            name: Pipeline(
                mesh, schedule=_SCHEDULE, stages={self._at: module}, hidden=HIDDEN,
                encoders=TravellingImages("vision", timed), deadline_s=60,
                run=StageOptions(inputs=("x",)),
                loss=lambda output, labels: output.sum() + 0 * labels.sum(),
            )
            for name, timed in self._timed.items()
        }  # fmt: skip

    def measure(self, case: TravelCase) -> dict[str, Phases]:
        """Run a step by both."""
        found = {}
        for name, timed in self._timed.items():
            own = case.of(name)[self._replica]
            self._whole.tiles = own[:, 0].tolist()
            timed.slept = timed.whole = 0
            _meet()
            begun, slept = time.perf_counter_ns(), self._stage.slept_ns
            self._pipes[name].step(_step_of(own))
            llm = time.perf_counter_ns() - begun - timed.whole
            found[name] = Phases(timed.slept, timed.whole, self._stage.slept_ns - slept, llm)
        return found


def _step_of(own: Int64) -> SimpleNamespace:
    infos, batches = [], []
    for tiles, tokens in own.tolist():
        costs = {"tiles": tiles, "tokens": tokens}
        infos.append(SimpleNamespace(costs=costs, step_label_tokens=1, step_samples=1))
        pixels, x = torch.ones(tiles, HIDDEN), torch.ones(tokens, HIDDEN)
        batches.append({"x": x, "labels": torch.ones(tokens), "pixel_values": pixels})
    return SimpleNamespace(microbatches=batches, infos=infos)


def _meet() -> None:
    dist.all_reduce(torch.zeros(1))


def pipelined_cases(path: Path, draws: int, stages: int) -> list[TravelCase]:
    """Return steps of the samples of RANKS x 4 microbatches, for pipelines of so many stages."""
    return draw_cases(path, draws, ranks=RANKS // stages, microbatches=_MICROBATCHES * stages)


def measure_pipelined(path: Path, draws: int, rounds: int, stages: int) -> Report:
    """Return what both wait, over interleaved rounds after one that is not counted."""
    cases = pipelined_cases(path, draws, stages)
    with RankProcesses(RANKS, PipelinedRank, stages) as ranks:
        found = [[ranks.call("measure", case) for case in cases] for _ in range(rounds + 1)]
    return verdict(cases, found[1:], stages)


class Waited(NamedTuple):
    """Shares of waiting, and the mean step in ms."""

    encoder: float
    llm: float
    step_ms: float


def verdict(
    cases: Sequence[TravelCase],
    rounds: Sequence[Sequence[Sequence[dict[str, Phases]]]],
    stages: int,
) -> Report:
    """Return the waiting of both contenders, modelled and measured, and what is left of it.

    rounds: by round, step and rank. Figures are [median, least, most] over rounds; what is left is
    taken within each round, where the machine is the same.
    """
    even = _bubble(stages)
    waited = {n: [_waited(steps, n, even) for steps in rounds] for n in CONTENDERS}
    pairs = list(zip(waited["images"], waited["samples"], strict=True))
    left = {
        part: rounded_spread([getattr(a, part) / max(1e-9, getattr(b, part)) for a, b in pairs], 4)
        for part in PARTS
    }
    return {
        "stages": stages,
        "steps": len(cases),
        "rounds": len(rounds),
        "bubble": round(1 - 1 / even, 4),
        "modelled": {name: modelled(cases, name, stages) for name in CONTENDERS},
        "waiting": {
            name: {
                part: rounded_spread([getattr(one, part) for one in found], 4)
                for part in Waited._fields
            }
            for name, found in waited.items()
        },
        "left": left,
        "agrees": all(values[0] < LEFT for values in left.values()),
    }


def _bubble(stages: int) -> float:
    """Return the time of a step of equal microbatches, over that of its passes on one rank."""
    count = _MICROBATCHES * stages
    return (count + stages - 1) / count


def _waited(steps: Sequence[Sequence[dict[str, Phases]]], name: str, even: float) -> Waited:
    rows = np.array([[rank[name] for rank in ranks] for ranks in steps], dtype=np.float64)
    encoder_slept, encoder, llm_slept, llm = rows.reshape(-1, 4).mean(axis=0)
    return Waited(
        float(1 - encoder_slept / encoder),
        float(1 - even * llm_slept / llm),
        float((encoder + llm) / 1e6),
    )


def modelled(cases: Sequence[TravelCase], name: str, stages: int) -> dict[str, float]:
    """Return the same shares from costs alone, without what exchanges take, by the simulator."""
    even, tiles, slowest, tokens, makespan = _bubble(stages), 0, 0, 0, 0
    program = schedule(_SCHEDULE, ranks=stages, microbatches=_MICROBATCHES * stages)
    for case in cases:
        loads = case.of(name)
        every = int(loads[..., 0].sum())
        tiles += every
        turns = max(int(own[at::stages, 0].sum()) for own in loads for at in range(stages))
        slowest += turns if name == "samples" else -(-every // RANKS)
        tokens += int(loads[..., 1].sum())
        steps = []
        for own in loads[..., 1].tolist():
            rows = {"F": [own] * stages, "B": [[2 * n for n in own]] * stages}
            steps.append(simulate(program, Costs(rows)).makespan_ns)
        makespan += max(steps)
    # A rank's passes take three times its replica's tokens; all replicas end with the slowest.
    busy = 3 * tokens * stages / RANKS
    return {
        "encoder": round(1 - tiles / (RANKS * slowest), 4),
        "llm": round(1 - even * busy / makespan, 4),
    }

"""Orders of microbatches, live: a step in the plan's order against the same one as it was given.

Microbatches are drawn from real costs and planned as a loader plans them, by a cost profile in a
file: an encoder in the first stage whose time is in tiles, and language-model stages whose time is
in tokens. Stages sleep those times.
"""

import json
import statistics
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh

from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.balance import Balance
from counterpoise.balancer.planning.problem.config import PlanConfig, Window
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.sched.ir.registry import schedule
from counterpoise.sched.runtime import Pipeline, StageOptions
from counterpoise.sched.simulation.cost_profile import load_profile, profile_costs
from counterpoise.sched.simulation.simulator import simulate

from ..planning.costs import read_costs
from .rank_processes import RankProcesses
from .sleeping import HIDDEN, SleepingStage

Report = dict[str, Any]
RANKS, MICROBATCHES, SAMPLES = 4, 16, 4
# The mean time of a forward, and how far the measured gain may be from the simulated one.
_FORWARD_NS, POINTS = 30_000_000, 0.03
_RESOURCES = ("tiles", "tokens")


class OrderCase(NamedTuple):
    """A step: forward times by stage and microbatch, the plan's order, and simulated makespans."""

    forward_ns: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    given_ns: int
    ordered_ns: int


def draw_cases(path: Path, draws: int, seed: int = 0) -> list[OrderCase]:
    """Return steps of samples that are drawn from a file of costs."""
    table = read_costs(path, _RESOURCES, 0, seed).costs
    size = MICROBATCHES * SAMPLES
    chosen = table[permutation(len(table), seed, 0)[: draws * size]]
    profile = _profile(chosen * SAMPLES)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        file.write_text(profile)
        return [_case(chosen[at * size :][:size], str(file), profile) for at in range(draws)]


def _profile(microbatches: Int64) -> str:
    """Return a profile in which the mean forward takes the same time in all stages."""
    tiles, tokens = (int(_FORWARD_NS * 1000 / mean) for mean in microbatches.mean(axis=0))
    rates = [{"tiles": tiles}, *[{"tokens": tokens}] * (RANKS - 1)]
    double = [{name: 2 * rate for name, rate in one.items()} for one in rates]
    passes = {"F": rates, "B": double}
    entries = {kind: [{"per_thousand": one} for one in each] for kind, each in passes.items()}
    return json.dumps({"placement": list(range(RANKS)), "passes": entries})


def _case(costs: Int64, file: str, profile: str) -> OrderCase:
    balance = Balance(grouping="fixed", partition="given", accumulate=MICROBATCHES, pipeline=file)
    config = PlanConfig.from_balance(
        balance, ranks=1, resources=_RESOURCES, samples_per_step=len(costs), batch_size=SAMPLES
    )
    (batch,) = make_planner(config).plan(Window(0, 0, 0, costs, last=True)).batches
    # Groupings that count take samples as they come.
    order = tuple(one.ordinals[0] // SAMPLES for one in batch.ranks[0])
    loads = costs.reshape(MICROBATCHES, SAMPLES, -1).sum(axis=1)
    amounts = [dict(zip(_RESOURCES, map(int, row), strict=True)) for row in loads]
    program = schedule("1f1b", ranks=RANKS, microbatches=MICROBATCHES)
    known = load_profile(profile)
    given, ordered = (
        simulate(program, profile_costs(known, [amounts[m] for m in row])).makespan_ns
        for row in (range(MICROBATCHES), order)
    )
    table = np.asarray(profile_costs(known, amounts).pass_ns["F"])
    return OrderCase(tuple(tuple(map(int, row)) for row in table), order, given, ordered)


class OrderedRank:
    """One rank of all cases."""

    def __init__(self, rank: int) -> None:
        self._mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("pp",))
        self._rank = rank

    def measure(self, case: OrderCase, rounds: int) -> tuple[list[int], list[int]]:
        """Return makespans in the given and in the plan's order, in turn, after a round of each."""
        forward = case.forward_ns[self._rank]
        backward = tuple(2 * ns for ns in forward)
        pipe = Pipeline(
            self._mesh, schedule="1f1b", stages={self._rank: SleepingStage(forward, backward, 0)},
            hidden=HIDDEN, run=StageOptions(inputs=("x",)),
            loss=lambda output, labels: output.sum() + 0 * labels.sum(), deadline_s=60,
        )  # fmt: skip
        found: tuple[list[int], list[int]] = ([], [])
        for _ in range(rounds + 1):
            for order, into in zip((range(MICROBATCHES), case.order), found, strict=True):
                pipe.step(_step(order))
                into.append(pipe.timeline().makespan_ns)
        pipe.close()
        return found[0][1:], found[1][1:]


def _step(order: Any) -> SimpleNamespace:
    """Return a step whose microbatch m has m + 1 tokens, by which stages know it."""
    infos = [SimpleNamespace(costs={"tokens": m + 1}, step_label_tokens=1) for m in order]
    batches = [{"x": torch.ones(m + 1, HIDDEN), "labels": torch.ones(m + 1)} for m in order]
    return SimpleNamespace(microbatches=batches, infos=infos)


def measure_orders(path: Path, draws: int, rounds: int) -> Report:
    """Return simulated and measured gains of ordering, and whether they agree.

    A gain is 1 - ordered / given: of the sums over all draws, each of them the median of the ratios
    within a round, where the machine is the same.
    """
    cases = draw_cases(path, draws)
    with RankProcesses(RANKS, OrderedRank) as ranks:
        measured = [ranks.call("measure", case, rounds)[0] for case in cases]
    medians = [
        (
            statistics.median(given),
            statistics.median(b / a for a, b in zip(given, ordered, strict=True)),
        )
        for given, ordered in measured
    ]
    simulated = _gain(sum(c.given_ns for c in cases), sum(c.ordered_ns for c in cases))
    gained = _gain(sum(given for given, _ in medians), sum(g * ratio for g, ratio in medians))
    each = [
        {
            "simulated": round(_gain(case.given_ns, case.ordered_ns), 4),
            "measured": round(1 - ratio, 4),
            "step_ratio": round(given / case.given_ns, 4),
        }
        for case, (given, ratio) in zip(cases, medians, strict=True)
    ]
    near = abs(gained - simulated) <= POINTS
    gains = {"gain_simulated": round(simulated, 4), "gain_measured": round(gained, 4)}
    return {**gains, "draws": each, "agrees": near}


def _gain(given: float, ordered: float) -> float:
    return 1 - ordered / given

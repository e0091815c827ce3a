"""Stages that sleep known times: the runtime's makespan against the simulator's.

Sleeping takes next to no CPU, so that ranks run beside each other on any number of cores. A stage
sleeps in its forward, in its backward for the input's gradient, and in a hook of its weight's
gradient: whichever pass makes that one, B or W, takes the time.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from counterpoise.sched.ir.program import Program
from counterpoise.sched.ir.registry import schedule as make_program
from counterpoise.sched.runtime import Pipeline, StageOptions
from counterpoise.sched.simulation.costs import Costs
from counterpoise.sched.simulation.simulator import simulate

from .. import rounded_spread
from .rank_processes import RankProcesses

Report = dict[str, Any]
Times = int | tuple[int, ...]
_RANKS, HIDDEN, _MS = 4, 4, 1_000_000
# The end of a sleep that is waited for awake.
_LATE_NS = 1_500_000
# What counts as another makespan, and how far the measured one may be from the simulated one.
TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class SleepCase:
    """A program and its times.

    `forward`, `backward`, `weight`: ms of a whole rank's F, I and W for a microbatch of one token;
    a stage has its share of them. `tokens`: of each microbatch. `slow`: how many times a stage's
    own time is that of the others, by its number.
    """

    name: str
    schedule: str
    tokens: tuple[int, ...] = (1,) * 8
    forward: int = 40
    backward: int = 40
    weight: int = 40
    slow: tuple[tuple[int, int], ...] = ()

    @property
    def program(self) -> Program:
        """Return the program."""
        return make_program(self.schedule, ranks=_RANKS, microbatches=len(self.tokens))

    def times_ns(self, stage: int, stages: int) -> tuple[int, int, int]:
        """Return the times of F, I and W of a stage for one token."""
        factor = dict(self.slow).get(stage, 1)
        whole = (self.forward, self.backward, self.weight)
        forward, backward, weight = (factor * t * _MS * _RANKS // stages for t in whole)
        return forward, backward, weight

    def costs(self) -> Costs:
        """Return the same times for the simulator; messages take none."""
        stages = self.program.stages
        rows = [self.times_ns(stage, stages) for stage in range(stages)]
        parts = zip("FIW", zip(*rows, strict=True), strict=True)
        tables = {kind: [[t * n for n in self.tokens] for t in row] for kind, row in parts}
        tables["B"] = [
            [i + w for i, w in zip(*pair, strict=True)]
            for pair in zip(tables["I"], tables["W"], strict=True)
        ]
        return Costs(tables)


CASES = (
    *(
        SleepCase(name, name)
        for name in ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "v-half", "dualpipev")
    ),
    SleepCase("1f1b, last stage twice as slow", "1f1b", slow=((3, 2),)),
    SleepCase("zb-h1, unequal microbatches", "zb-h1", tokens=(1, 2, 1, 3, 1, 1, 2, 1), forward=20),
)


class _SleepBackward(torch.autograd.Function):
    """Calls back in the backward, with the number of tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, backward: Callable[[int], None]) -> Tensor:
        ctx.call = backward
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.call(len(gradient))
        return gradient, None


class SleepingStage(nn.Module):
    """A linear layer that takes the given times, in ns for a token, or for 1, 2, 3 ... tokens.

    `slept_ns`: how long it has slept, by the clock: sleeps end late.
    """

    def __init__(self, forward_ns: Times, backward_ns: Times, weight_ns: Times) -> None:
        super().__init__()
        self.layer = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self._forward_ns, self._backward_ns, self._weight_ns = forward_ns, backward_ns, weight_ns
        # The tokens of microbatches whose weight gradient is still to come, in order.
        self._passed: deque[int] = deque()
        self.slept_ns = 0
        # A hook of the weight itself would have its gradient computed in I.
        weight = self.layer.weight
        self._accumulates = weight.view_as(weight).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        self._accumulates.register_hook(self._sleep_for_weight)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        """Sleep, and return a tensor of the same shape."""
        self._take(_time_of(self._forward_ns, len(x)))
        backward = partial(self._sleep_backward, self._backward_ns)
        found: Tensor = _SleepBackward.apply(  # type: ignore[no-untyped-call]
            self.layer(x), backward
        )
        return found

    def slow_down(self, factor: float) -> None:
        """Take that many times as long from now on."""

        def longer(times: Times) -> Times:
            if isinstance(times, int):
                return round(factor * times)
            return tuple(round(factor * one) for one in times)

        self._forward_ns, self._backward_ns = longer(self._forward_ns), longer(self._backward_ns)
        self._weight_ns = longer(self._weight_ns)

    def _sleep_backward(self, times: Times, tokens: int) -> None:
        self._passed.append(tokens)
        self._take(_time_of(times, tokens))

    def _sleep_for_weight(self, _: object, gradients: tuple[Tensor | None]) -> None:
        if gradients[0] is not None:  # I has none
            self._take(_time_of(self._weight_ns, self._passed.popleft()))

    def _take(self, ns: int) -> None:
        begun = time.perf_counter_ns()
        _sleep(ns)
        self.slept_ns += time.perf_counter_ns() - begun


def _time_of(times: Times, tokens: int) -> int:
    return times * tokens if isinstance(times, int) else times[tokens - 1]


def _sleep(ns: int) -> None:
    """Wait for exactly this long: a sleep ends late, by a millisecond where cores are shared."""
    until = time.perf_counter_ns() + ns
    time.sleep(max(0, ns - _LATE_NS) / 1e9)
    while time.perf_counter_ns() < until:
        pass


class Measured(NamedTuple):
    """A step that was run: its makespan, and each rank's passes in order."""

    makespan_ns: int
    passes: tuple[tuple[str, ...], ...]


class SleepingRank:
    """One rank of all cases, one after the other."""

    def __init__(self, rank: int) -> None:
        self._mesh = init_device_mesh("cpu", (_RANKS,), mesh_dim_names=("pp",))
        self._rank = rank

    def measure(self, case: SleepCase, repeats: int) -> list[Measured]:
        """Run a case some times, after one that is not measured."""
        program = case.program
        stages: dict[int, nn.Module] = {
            number: SleepingStage(*case.times_ns(number, program.stages))
            for number in program.stages_of(self._rank)
        }
        pipe = Pipeline(
            self._mesh, schedule=case.schedule, stages=stages, hidden=HIDDEN,
            run=StageOptions(inputs=("x",)),
            loss=lambda output, labels: output.sum() + 0 * labels.sum(), deadline_s=60,
        )  # fmt: skip
        step = _step(case)
        found = []
        for _ in range(repeats + 1):
            pipe.step(step)
            timeline = pipe.timeline()
            rows = tuple(tuple(str(slot.what) for slot in row) for row in timeline.ranks)
            found.append(Measured(timeline.makespan_ns, rows))
        pipe.close()
        return found[1:]


def _step(case: SleepCase) -> SimpleNamespace:
    infos = [
        SimpleNamespace(costs={"tokens": n}, step_label_tokens=sum(case.tokens), step_samples=1)
        for n in case.tokens
    ]
    batches = [{"x": torch.ones(n, HIDDEN), "labels": torch.ones(n)} for n in case.tokens]
    return SimpleNamespace(microbatches=batches, infos=infos)


def measure_cases(cases: Sequence[SleepCase], repeats: int) -> Report:
    """Return simulated and measured makespans of all cases, in ms, and whether they agree."""
    with RankProcesses(_RANKS, SleepingRank) as ranks:
        measured = {
            case.name: [m.makespan_ns for m in ranks.call("measure", case, repeats)[0]]
            for case in cases
        }
    simulated = {case.name: simulate(case.program, case.costs()).makespan_ns for case in cases}
    return verdict(simulated, measured)


def verdict(simulated: Mapping[str, int], measured: Mapping[str, Sequence[int]]) -> Report:
    """Return the report: ratios measured / simulated, and pairs whose order is another one.

    >>> report = verdict({"a": 100, "b": 150, "c": 155}, {"a": [104], "b": [160], "c": [159]})
    >>> report["programs"]["a"]["ratio"], report["swapped"], report["agrees"]
    (1.04, [], True)
    """
    medians = {name: statistics.median(found) for name, found in measured.items()}
    programs: dict[str, dict[str, Any]] = {
        name: {
            "simulated_ms": round(ns / _MS, 1),
            "measured_ms": rounded_spread([t / _MS for t in measured[name]], 1),
            "ratio": round(medians[name] / ns, 4),
        }
        for name, ns in simulated.items()
    }
    swapped = [
        [a, b]
        for a, b in combinations(sorted(simulated, key=simulated.__getitem__), 2)
        if simulated[b] > (1 + TOLERANCE) * simulated[a] and medians[b] <= medians[a]
    ]
    near = all(abs(cell["ratio"] - 1) <= TOLERANCE for cell in programs.values())
    return {"programs": programs, "swapped": swapped, "agrees": near and not swapped}

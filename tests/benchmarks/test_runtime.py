"""`bench runtime`: what it counts and reports, with fakes; passes and gradients of real ranks."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.autograd.graph import get_gradient_edge

from benchmarks.runtime import command, compare, own_time, sleeping
from benchmarks.runtime.contenders import CONTENDERS, PipelineCase, Span
from benchmarks.runtime.model import PipelineSizes
from benchmarks.runtime.rank_processes import RankProcesses
from benchmarks.runtime.saved_bytes import SavedStorages
from counterpoise.sched.runtime.stage.deferral import (
    DeferredGradients,
    defer_linear_layers,
    deferring,
)

TINY = PipelineSizes(ranks=2, microbatches=4, blocks=4, hidden=16, tokens=4, words=8)
MS = 1_000_000


class FakeRanks:
    """Two ranks that answer what they are told, and note whose turn it was."""

    def __init__(self, name: str, answers: dict[str, list[object]], turns: list[str]) -> None:
        self.name, self.answers, self.turns = name, answers, turns
        self.running = False

    @contextmanager
    def awake(self) -> Iterator[None]:
        self.running = True
        yield
        self.running = False

    def call(self, method: str, *_: object) -> list[object]:
        assert self.running
        self.turns.append(self.name)
        return self.answers[method]


def fakes(ours: dict, torchs: dict) -> tuple[dict, list[str]]:
    turns: list[str] = []
    return {
        "ours": FakeRanks("ours", ours, turns),
        "torch": FakeRanks("torch", torchs, turns),
    }, turns


def test_a_step_lasts_from_the_first_start_to_the_last_end() -> None:
    ours = {"steps": [[Span(0, 9 * MS, 5 * MS)], [Span(1 * MS, 10 * MS, 5 * MS)]]}
    torchs = {"steps": [[Span(0, 12 * MS, 8 * MS)], [Span(1, 11 * MS, 7 * MS)]]}
    running, turns = fakes(ours, torchs)
    report = compare.step_times(running, rounds=4, repeats=1)
    assert report["step_ms"] == {"ours": [10, 10, 10], "torch": [12, 12, 12]}
    assert report["time_ratio"] == [1.2, 1.2, 1.2]
    assert report["cpu_ratio"] == [1.5, 1.5, 1.5]
    assert turns == ["ours", "torch", "torch", "ours"] * 2


def test_bytes_are_those_of_the_rank_that_holds_most() -> None:
    ours = {"peak_bytes": [10, 40], "saved_bytes": [8, 16], "gradient_error": [1e-7, 3e-7]}
    torchs = {"peak_bytes": [50, 20], "saved_bytes": [24, 4], "gradient_error": [2e-7, 0.0]}
    running, turns = fakes(ours, torchs)
    report = compare.bytes_and_errors(running)
    assert report["peak_bytes_ratio"] == 1.25
    assert report["saved_bytes_ratio"] == 1.5
    assert report["max_relative_error"] == {"ours": 3e-7, "torch": 2e-7}
    assert turns[:2] == ["ours", "torch"]


def test_the_json_has_the_promised_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(setting: PipelineCase, rounds: int, repeats: int) -> compare.Report:
        spans = [[Span(0, MS, MS)] * repeats] * 2
        found = {"steps": spans, "peak_bytes": [1], "saved_bytes": [1], "gradient_error": [0.0]}
        running, _ = fakes(found, found)
        report = compare.bytes_and_errors(running) | compare.step_times(running, rounds, repeats)
        idle, _ = fakes({"own_us": [50.0, 70.0]}, {"own_us": [80.0, 80.0]})
        assert setting.sizes.tokens == 64
        return report | {"us_per_pass": compare.own_times(idle, rounds)}

    monkeypatch.setattr(command, "compare", answered)
    run = CliRunner().invoke(command.command, ["--tokens", "64", "--json"], catch_exceptions=False)
    report = json.loads(run.stdout.splitlines()[-1])
    assert set(report) == {"ratios", "cores", "sizes", "schedules"}
    assert list(report["schedules"]) == ["1f1b", "interleaved", "zbv"]
    cell = report["schedules"]["zbv"]
    assert set(cell) == {
        "cpu_ratio",
        "max_relative_error",
        "peak_bytes",
        "peak_bytes_ratio",
        "saved_bytes",
        "saved_bytes_ratio",
        "step_ms",
        "time_ratio",
        "us_per_pass",
    }
    assert cell["us_per_pass"]["ours_outside"] == [60, 60, 60]
    shown = CliRunner().invoke(command.command, ["--tokens", "64"], catch_exceptions=False)
    assert "60.0" in shown.stdout


def test_the_clock_counts_the_outermost_call(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(0, 1000, 10))
    monkeypatch.setattr(own_time, "thread_time_ns", lambda: next(ticks))
    before = [vars(owner)[name] for owner, name in own_time._FOREIGN]
    inner = nn.Sequential(nn.Identity(), nn.Identity())
    clock = own_time.CallClock()
    with clock.timing():
        inner(torch.ones(1))
        inner(torch.ones(1))
    assert clock.ns == 20
    assert [vars(owner)[name] for owner, name in own_time._FOREIGN] == before
    inner(torch.ones(1))
    assert clock.ns == 20


def test_saved_storages_count_once_while_they_exist() -> None:
    weight = nn.Parameter(torch.ones(64))
    x = torch.ones(64, requires_grad=True)
    storages = SavedStorages([weight])
    with storages.counting():
        y = (x * weight).exp()
        assert storages.held == 2 * 64 * 4  # x and the output of exp, not the weight
        z = y * y.detach()
        assert storages.held == 2 * 64 * 4
    z.sum().backward()
    del y, z
    assert storages.held == 64 * 4  # x, which we hold
    del x
    assert storages.held == 0
    assert storages.most == 2 * 64 * 4


def test_a_stage_sleeps_in_the_pass_that_makes_the_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[int] = []
    monkeypatch.setattr(sleeping, "_sleep", slept.append)
    stage = sleeping.SleepingStage(2, 3, 5)
    loss = stage(torch.ones(10, 4)).sum()
    assert slept == [20]
    loss.backward()
    assert slept == [20, 30, 50]
    defer_linear_layers(stage)
    pending = DeferredGradients()
    slept.clear()
    with deferring():
        edge = get_gradient_edge(stage(torch.ones(10, 4)).sum())
    pending.backward([edge], [torch.tensor(1.0)])
    assert slept == [20, 30]
    pending.compute()
    assert slept == [20, 30, 50]


def test_the_verdict_wants_near_makespans_in_the_same_order() -> None:
    simulated = {"a": 100, "b": 105, "c": 120}
    fine = sleeping.verdict(simulated, {"a": [108], "b": [104], "c": [121]})
    assert fine["agrees"]
    assert not fine["swapped"]
    far = sleeping.verdict(simulated, {"a": [111], "b": [105], "c": [121]})
    assert not far["agrees"]
    assert not far["swapped"]
    swapped = sleeping.verdict(simulated, {"a": [110], "b": [105], "c": [109]})
    assert swapped["swapped"] == [["a", "c"]]
    assert not swapped["agrees"]


def test_the_simulator_gets_the_times_that_stages_sleep() -> None:
    case = sleeping.SleepCase("x", "zbv", tokens=(1, 2, 1, 1, 1, 1, 1, 1), slow=((7, 3),))
    tables: Any = case.costs().pass_ns
    assert [row[1] for row in tables["F"]] == [40 * MS] * 7 + [120 * MS]
    assert [row[0] for row in tables["B"]] == [40 * MS] * 7 + [120 * MS]


@pytest.mark.parametrize(
    "name",
    [
        "zbv",
        pytest.param("1f1b", marks=pytest.mark.long),
        pytest.param("interleaved", marks=pytest.mark.long),
    ],
)
def test_both_runtimes_give_the_gradients_of_one_process(name: str) -> None:
    report = compare.compare(PipelineCase(name, TINY), rounds=1, repeats=1)
    for who in CONTENDERS:
        assert report["max_relative_error"][who] < 1e-5
        assert 0 < max(report["saved_bytes"][who]) < max(report["peak_bytes"][who])
    assert report["us_per_pass"]["ours_outside"][0] > 0


def test_an_error_of_a_rank_names_it() -> None:
    setting = PipelineCase("1f1b", replace(TINY, blocks=3))
    with pytest.raises(RuntimeError, match=r"rank \d failed:(.|\n)*3 blocks cannot be divided"):
        RankProcesses(2, CONTENDERS["ours"], setting)


def test_ranks_run_the_passes_of_the_program_in_its_order() -> None:
    cases = [replace(case, forward=0, backward=0, weight=0) for case in sleeping.CASES]
    with RankProcesses(4, sleeping.SleepingRank) as ranks:
        found = [ranks.call("measure", case, 1)[0][0].passes for case in cases]
    for case, passes in zip(cases, found, strict=True):
        assert passes == tuple(tuple(map(str, row)) for row in case.program.ranks), case.name

"""Runs a training program as its users do, and compares what two of its runs trained on.

`make test-frameworks PROGRAM=name` runs the files check_*.py of tests/programs/name in an
environment of the program; `make test` collects none of them. The program's processes write lines
(recording.py), which `run_program` reads.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest
import torch

LIMIT_S = 500.0
ROUNDS = 21
TORCHRUN = (sys.executable, "-P", "-m", "torch.distributed.run", "--standalone")
# Fields of a line "batch" that say what a microbatch costs.
Line = Mapping[str, Any]
Measure = Callable[[Line], float]


def slots(batch: Line) -> float:
    """Return the elements of a microbatch's tensor, with padding."""
    return float(batch["slots"])


def tokens(batch: Line) -> float:
    """Return the tokens of a microbatch, without padding."""
    return float(sum(batch["lengths"]))


@dataclass(frozen=True)
class Run:
    """What a run wrote: lines of each kind, those of rank 0 but for batches and evaluations."""

    batches: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    evaluated: list[dict[str, Any]]
    plans: list[dict[str, Any]]
    gradients: dict[str, torch.Tensor]
    log: str

    def step_samples(self) -> dict[int, list[int]]:
        """Return the samples of each optimizer step on all ranks, sorted."""
        samples = defaultdict[int, list[int]](list)
        for batch in self.batches:
            samples[batch["step"]] += batch["samples"]
        return {step: sorted(samples[step]) for step in sorted(samples)}

    def rank_samples(self) -> dict[tuple[int, int], list[int]]:
        """Return the samples of each step and rank, in order."""
        samples = defaultdict[tuple[int, int], list[int]](list)
        for batch in self.batches:
            samples[batch["step"], batch["rank"]] += batch["samples"]
        return dict(samples)

    def epoch_samples(self) -> dict[int, list[int]]:
        """Return the samples of each epoch: step by step, sorted within a step."""
        by_epoch = defaultdict[int, list[int]](list)
        epoch_of = {batch["step"]: batch["epoch"] for batch in self.batches}
        for step, samples in self.step_samples().items():
            by_epoch[epoch_of[step]] += samples
        return dict(by_epoch)

    def padding(self) -> float:
        """Return the share of slots that hold padding."""
        return 1 - sum(map(tokens, self.batches)) / sum(map(slots, self.batches))

    def waiting(self, measure: Measure = slots, waits: str = "microbatch") -> float:
        """Return the share of the time that ranks wait for the slowest.

        waits: once a "microbatch" or once a "step", as in Balance(waits=...).
        """
        time, work = self._sum_steps(measure, waits)
        return 1 - work / time

    def time(self, measure: Measure = slots, waits: str = "microbatch") -> float:
        """Return what the slowest ranks did, until all had met."""
        return self._sum_steps(measure, waits)[0]

    def _sum_steps(self, measure: Measure, waits: str) -> tuple[float, float]:
        """Return the sums of the most and of the mean of the ranks, wherever they meet."""
        costs = defaultdict[tuple[int, int], list[float]](list)
        for batch in self.batches:
            costs[batch["step"], batch["rank"]].append(measure(batch))
        time = work = 0.0
        for step in {step for step, _ in costs}:
            ranks = [costs[key] for key in costs if key[0] == step]
            if waits == "step":
                ranks = [[sum(rank)] for rank in ranks]
            for slot in zip(*ranks, strict=True):
                time, work = time + max(slot), work + sum(slot) / len(slot)
        return time, work


def run_program(
    command: Sequence[str], folder: Path, name: str, *, ranks: int = 2,
    before: Sequence[str] = (), variables: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S, launch: bool = True, notes: bool = True,
) -> Run:  # fmt: skip
    """Run a program; return what its processes wrote. RuntimeError with its log where it fails.

    Args:
        command: a script or module, and its arguments.
        folder: where it runs, and where NAME.log and its lines lie.
        name: of the run, unlike for each run in a folder.
        ranks: processes, made by torchrun.
        before: modules that each process imports before the program.
        variables: of the environment, beside what keeps a program on CPU and off the network.
        limit_s: after that it is ended.
        launch: False runs `command` as it is: it makes its processes itself.
        notes: False where its processes write none; an empty Run is returned.
    """
    # "--": torchrun would take an option of the program that begins as one of its own
    start = (
        (*TORCHRUN, f"--nproc-per-node={ranks}", "-m", "--")
        if ranks > 1
        else (sys.executable, "-P", "-m")
    )
    if launch:
        command = [*start, "tests.programs.start", ",".join(before), *command]
    environment = os.environ | {
        "RECORD": str(folder / name), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false",
        "TORCH_COMPILE_DISABLE": "1", "PYTHONDONTWRITEBYTECODE": "",  # imports are half of the time
        **(variables or {}),
    }  # fmt: skip
    log = folder / f"{name}.log"
    with log.open("w") as out:
        # a session of its own: what is left of it ends with it
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True
        )
        try:
            status: int | str = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = f"no end in {limit_s:g} s"
        finally:
            _end_session(process.pid)
            process.wait()
    if status != 0:
        raise RuntimeError(f"{name} ended with {status}:\n{log.read_text()[-6000:]}")
    return read_run(folder, name, notes)


def _end_session(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # nothing was left
        os.killpg(leader, signal.SIGKILL)


def read_run(folder: Path, name: str, notes: bool = True) -> Run:
    """Return what a run wrote. RuntimeError where it should have, and wrote nothing."""
    lines = defaultdict[str, list[dict[str, Any]]](list)
    paths = sorted(folder.glob(f"{name}-[0-9]*.jsonl"))
    for path in paths:
        rank = int(path.stem.rpartition("-")[2])
        for line in map(json.loads, path.read_text().splitlines()):
            if rank == 0 or line["kind"] in ("batch", "evaluation"):
                lines[line["kind"]].append(line | {"rank": rank})
    if notes and not lines["batch"]:
        raise RuntimeError(f"{name} noted no batch: is its observer imported? {paths or 'no file'}")
    saved = folder / f"{name}-gradients.pt"
    return Run(
        batches=lines["batch"], steps=lines["step"], evaluations=lines["evaluation"],
        evaluated=lines["evaluated"], plans=lines["plan"],
        gradients=torch.load(saved) if saved.exists() else {},
        log=(folder / f"{name}.log").read_text(errors="replace"),
    )  # fmt: skip


def check_same_steps(plain: Run, ours: Run) -> None:
    """Fail unless both have as many optimizer steps and epochs, with equal learning rates."""
    assert [line["step"] for line in ours.steps] == [line["step"] for line in plain.steps]
    assert plain.epoch_samples().keys() == ours.epoch_samples().keys()
    rates = [[line["lr"] for line in run.steps] for run in (plain, ours)]
    assert rates[1] == pytest.approx(rates[0], rel=1e-6)


def check_first_step(plain: Run, ours: Run, tolerance: float = 1e-4) -> None:
    """Fail unless the first step has the same samples, loss, gradient norm and gradients."""
    assert ours.step_samples()[0] == plain.step_samples()[0]
    for number in ("loss", "gradient_norm"):
        assert ours.steps[0][number] == pytest.approx(plain.steps[0][number], rel=tolerance)
    check_gradients(ours, plain.gradients, tolerance)


def check_gradients(run: Run, gradients: dict[str, torch.Tensor], tolerance: float = 1e-4) -> None:
    """Fail unless a run's first gradients are those, to a share of the largest number in them."""
    assert run.gradients.keys() == gradients.keys()
    largest = max((float(gradient.abs().max()) for gradient in gradients.values()), default=0.0)
    for name, gradient in gradients.items():
        difference = float((run.gradients[name] - gradient).abs().max())
        assert difference <= tolerance * largest, name


def check_epochs(run: Run, samples: int, most_left_out: int = 0) -> None:
    """Fail unless each epoch has each sample once, and two epochs another order.

    samples: how many there are. most_left_out: those that do not fill a last step.
    """
    epochs = run.epoch_samples()
    assert len(epochs) > 1
    for epoch in epochs.values():
        assert set(Counter(epoch).values()) == {1}
        assert samples - most_left_out <= len(epoch) <= samples
    if not most_left_out:
        assert len({frozenset(epoch) for epoch in epochs.values()}) == 1
    assert len({tuple(epoch) for epoch in epochs.values()}) == len(epochs)


def check_resumed(whole: Run, resumed: Run, first_step: int) -> None:
    """Fail unless a resumed run has each rank's samples of the whole run after that step."""
    after = {key: ids for key, ids in whole.rank_samples().items() if key[0] >= first_step}
    assert resumed.rank_samples() == after


def check_evaluations(plain: Run, ours: Run) -> None:
    """Fail unless each rank evaluated the same samples at the same steps."""
    assert plain.evaluations
    keys = ("step", "rank", "samples")
    seen = [[[line[key] for key in keys] for line in run.evaluations] for run in (plain, ours)]
    assert seen[0] == seen[1]
    assert [line["step"] for line in ours.evaluated] == [line["step"] for line in plain.evaluated]


def check_forecast(run: Run, measure: Measure, waits: str = "microbatch") -> None:
    """Fail unless the plan of the steps says within .05 what is counted from the tensors."""
    plan = run.plans[-1]
    assert plan["steps"] - len(run.step_samples()) in (0, 1)  # one more may have been fetched
    assert plan["waiting"]["delivered"] == pytest.approx(run.waiting(measure, waits), abs=0.05)


def print_comparison(name: str, plain: Run, ours: Run, waits: str = "microbatch") -> None:
    """Print the figures of two runs that the page of programs has."""
    figures = {
        "slots": [f"{sum(map(slots, run.batches)):,.0f}" for run in (plain, ours)],
        "padding": [f"{run.padding():.1%}" for run in (plain, ours)],
        "waiting": [f"{run.waiting(slots, waits):.1%}" for run in (plain, ours)],
        "slots of the slowest ranks": [f"{run.time(slots, waits):,.0f}" for run in (plain, ours)],
        "loss of step 1": [f"{run.steps[0]['loss']:.6g}" for run in (plain, ours)],
    }
    print(f"\n{name}:", "; ".join(f"{kind} {a} -> {b}" for kind, (a, b) in figures.items()))


def print_rates(name: str, theirs: Callable[[], int], ours: Callable[[], int]) -> None:
    """Print the samples a second of two loops, and the ratio of ours to theirs with its range.

    Each call runs an epoch and returns its samples. The loops run in turns, since other processes
    slow both; the first epoch of each starts workers, and is not counted.
    """
    loops, rates = [("theirs", theirs), ("ours", ours)], defaultdict[str, list[float]](list)
    for turn in range(ROUNDS + 1):
        for kind, run_epoch in loops[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            samples = run_epoch()
            if turn:
                rates[kind].append(samples / (time.perf_counter() - start))
    ratios = [a / b for a, b in zip(rates["ours"], rates["theirs"], strict=True)]
    low, middle, high = quantiles(ratios)
    print(
        f"\n{name}: samples a second, medians of {ROUNDS} epochs in turns:",
        *(f"{kind} {median(rates[kind]):.0f};" for kind, _ in loops),
        f"ratio {middle:.2f}, half of the turns {low:.2f} to {high:.2f},",
        f"all {min(ratios):.2f} to {max(ratios):.2f}",
    )


def need_source(path: str) -> Path:
    """Return a path below SOURCES; skip the test without it."""
    if not os.environ.get("SOURCES"):
        pytest.skip(f"needs {path}: make test-frameworks SOURCES=DIR, a folder with checkouts")
    source = Path(os.environ["SOURCES"], path)
    if not source.exists():
        pytest.skip(f"there is no {source}")
    return source


def add_to_path(folder: Path) -> dict[str, str]:
    """Return the variables of an environment in which modules of a folder can be imported."""
    return {"PYTHONPATH": os.pathsep.join((os.environ["PYTHONPATH"], str(folder)))}

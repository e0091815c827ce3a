"""What programs that train by transformers' Trainer are held to, with our loader and without it.

A file check_*.py subclasses `TrainerChecks` and makes its `runs`.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import counterpoise as cp
import tests.programs.watched.sitecustomize  # noqa: F401  torchvision's stand-in, here too
from tests.programs.harness import (
    LIMIT_S,
    Measure,
    Run,
    check_epochs,
    check_evaluations,
    check_first_step,
    check_resumed,
    check_same_steps,
    print_comparison,
    run_program,
    slots,
)
from tests.programs.tiny_model import conversations, write_conversations, write_model

PROGRAMS = Path(__file__).parent
# Two ranks x a batch of 5 x 3 microbatches a step: 10 steps an epoch, and 2 epochs.
SAMPLES, PER_STEP, RANKS, ACCUMULATE = 300, 30, 2, 3
# Each is in the middle of the second epoch.
SAVED = 14
# What a padded token takes where no model's times are known, and a pair of attention.
SLOTS = {"tokens": 1, "attention_pairs": 0}
FORECAST = re.compile(
    r"step ([\d.]+) of random order's: ranks work ([\d.]+) and wait ([\d.]+) instead of ([\d.]+) "
    r"and ([\d.]+);.*\(forecast from (\d+) samples"
)


@dataclass(frozen=True)
class Runs:
    """Runs of a program: as it is, with our loader, and from a checkpoint of that."""

    plain: Run
    ours: Run
    resumed: Run | None = None


def write_data(folder: Path) -> Path:
    """Return the folder, with a tiny model, conversations and pairs of answers, one the next's."""
    write_model(folder / "model")
    for name, count, seed, first in (("train", SAMPLES, 1, 0), ("eval", 20, 2, 90_000)):
        write_conversations(folder / f"{name}.jsonl", count, seed, first)
        rows = conversations(count, seed, first)
        pairs = [
            {"prompt": row[:1], "chosen": row[1:], "rejected": rows[number - 1][1:]}
            for number, row in enumerate(rows)
        ]
        text = "".join(json.dumps(pair) + "\n" for pair in pairs)
        (folder / f"{name}-pairs.jsonl").write_text(text)
    return folder


def run_watched(
    command: Sequence[str], data: Path, name: str, program: str, *, begun: str = "",
    **variables: str,
) -> Run:  # fmt: skip
    """Run a program's command in a folder of its own, with its files and data; return the run.

    Args:
        command: that users type; it makes its processes itself.
        data: the folder of model and rows.
        name: of the run, and of its folder beside data.
        program: the folder of its files in tests/programs.
        begun: the name of a run that this one resumes, in its folder.
        variables: of the environment, besides.
    """
    folder = make_folder(data, begun or name, program)
    return run_program(
        command, folder, name, variables=watched_variables(folder) | variables, launch=False
    )


def make_folder(data: Path, name: str, program: str) -> Path:
    """Return a folder beside the data's, with a program's files and the data."""
    folder = data.parent / name
    if folder.exists():  # a run is resumed where it was begun
        return folder
    shutil.copytree(PROGRAMS / program, folder)
    for path in data.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def watched_variables(folder: Path) -> dict[str, str]:
    """Return the environment of a program whose processes import watched/sitecustomize.py."""
    binaries = Path(sys.executable).parent
    paths = (PROGRAMS / "watched", os.environ.get("PYTHONPATH"), folder)
    return {
        "PYTHONPATH": ":".join(map(str, filter(None, paths))),
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "HF_HOME": str(folder / "hub"),
    }


def count_lines(*names: str) -> int:
    """Return the lines of code in files of a program: neither blank, nor the module's docstring."""
    lines = [line for name in names for line in (PROGRAMS / name).read_text().splitlines()]
    return sum(bool(line.strip()) and not line.startswith('"""') for line in lines)


class TrainerChecks:
    """The checks.

    losses_agree: whether the program divides by the tokens of the whole step. deals_batches:
    whether its ranks get whole batches of an order, as the random order of a forecast has them, and
    not every second sample.
    """

    name = ""
    samples = SAMPLES
    losses_agree, evaluates, deals_batches = True, True, True

    def test_steps_epochs_and_rates_are_the_same(self, runs: Runs) -> None:
        assert len(runs.plain.steps) == 2 * SAMPLES // PER_STEP
        check_same_steps(runs.plain, runs.ours)

    def test_each_step_has_the_same_samples(self, runs: Runs) -> None:
        assert runs.plain.step_samples() == runs.ours.step_samples()

    def test_each_epoch_has_each_sample_once(self, runs: Runs) -> None:
        check_epochs(runs.ours, self.samples)

    def test_the_first_step_has_the_same_loss_and_gradient(self, runs: Runs) -> None:
        print_comparison(self.name, runs.plain, runs.ours, waits="step")
        if self.losses_agree:
            check_first_step(runs.plain, runs.ours)
            return
        for number in ("loss", "gradient_norm"):
            theirs, ours = (run.steps[0][number] for run in (runs.plain, runs.ours))
            print(f"{self.name}: {number} of the first step {theirs:.6g}, balanced {ours:.6g}")
            assert ours != pytest.approx(theirs, rel=1e-4)
        assert "tokens of short samples weigh more" in runs.ours.log

    def test_steps_are_shorter_and_ranks_wait_less(self, runs: Runs) -> None:
        steps = range(2 * SAMPLES // PER_STEP)
        theirs, their_work = _sum_steps(runs.plain, steps, SLOTS)
        ours, work = _sum_steps(runs.ours, steps, SLOTS)
        print(f"{self.name}: steps take {ours / theirs:.2f} of theirs, by padded tokens")
        assert ours < theirs
        assert ours - work < theirs - their_work

    def test_the_forecast_is_what_the_tensors_say(self, runs: Runs, data: Path) -> None:
        line = FORECAST.search(runs.ours.log)
        assert line is not None, runs.ours.log[-3000:]
        told = tuple(map(float, line.groups()[:5]))
        weigh = "times computed from" in runs.ours.log
        plain = runs.plain if self.deals_batches else deal_batches(runs.plain)
        counted = count_times(
            plain, runs.ours, int(line[6]) // PER_STEP, data / "model" if weigh else None
        )
        print(f"{self.name}: forecast {told}, counted {tuple(round(part, 2) for part in counted)}")
        assert told == pytest.approx(counted, abs=0.05)

    def test_evaluations_are_the_same(self, runs: Runs) -> None:
        if not self.evaluates:
            assert not runs.plain.evaluations
            return
        check_evaluations(runs.plain, runs.ours)
        if self.losses_agree:
            theirs, ours = (
                [line["loss"] for line in run.evaluated] for run in (runs.plain, runs.ours)
            )
            assert ours == pytest.approx(theirs, rel=1e-3)


class ResumedChecks(TrainerChecks):
    """The checks of a program that is also resumed."""

    def test_a_resumed_run_goes_on_as_the_whole_one(self, runs: Runs) -> None:
        assert runs.resumed is not None
        check_resumed(runs.ours, runs.resumed, SAVED)
        assert runs.resumed.steps == runs.ours.steps[SAVED:]


def try_program(program: str, data: Path) -> dict[str, Any]:
    """Return the report of `counterpoise try` for the trial.py of a program of Trainer's."""
    return try_loader(make_folder(data, "tried", program), SAMPLES, ACCUMULATE)


def try_loader(folder: Path, samples: int, accumulate: int) -> dict[str, Any]:
    """Return the report of `counterpoise try` for a folder's trial.py, as JSON."""
    command = ["-m", "counterpoise", "try", "trial.py:make_loader", "--json"]
    command += ["--ranks", str(RANKS), "--accumulate", str(accumulate), "--waits", "step"]
    command += ["--step-ms", "1000000"]  # loading is not the limit, however slow the machine is
    tried = subprocess.run(
        [sys.executable, "-P", *command], cwd=folder, capture_output=True, text=True,
        timeout=LIMIT_S, env=os.environ | watched_variables(folder),
    )  # fmt: skip
    assert not tried.returncode, tried.stderr[-3000:]
    report: dict[str, Any] = json.loads(tried.stdout[tried.stdout.index('{"') :])
    assert report["samples"] == samples
    return report


def check_trial(report: dict[str, Any], plain: Run, measure: Measure = slots) -> None:
    """Fail unless a trial recommends balance, and tells what the plain run waited and padded."""
    told = [report["forecast"][name] for name in ("waited", "padding_random")]
    counted = [plain.waiting(measure, "step"), plain.padding()]
    print(f"try: {report['verdict']} {told}, counted {counted}; {report['paste']}")
    assert told == pytest.approx(counted, abs=0.05)
    assert "balance=" in str(report["paste"])


def deal_batches(run: Run, orders: int = 0) -> Run:
    """Return a run of padded batches whose ranks had gotten whole batches of its order in turns.

    The waiting of a few steps is another then, by chance; so it is of one order. orders: how many
    are drawn in place of its own.
    """
    lengths = defaultdict[tuple[int, int], list[int]](list)
    for batch in run.batches:
        lengths[batch["step"], batch["rank"]] += batch["lengths"]
    size, order, batches = len(run.batches[0]["lengths"]), list[int](), list[dict[str, Any]]()
    for step in sorted({step for step, _ in lengths}):
        ranks = [lengths[step, rank] for rank in range(RANKS)]
        order += [length for row in zip(*ranks, strict=True) for length in row]
    sample = random.Random(1).sample
    drawn = [length for _ in range(orders) for length in sample(order, len(order))] or order
    for place, start in enumerate(range(0, len(drawn), size)):
        row = drawn[start : start + size]
        shape = {"lengths": row, "slots": len(row) * max(row)}
        batches.append({"step": start // PER_STEP, "rank": place % RANKS, **shape})
    return replace(run, batches=batches)


def count_times(plain: Run, ours: Run, steps: int, model: Path | None) -> tuple[float, ...]:
    """Return what the forecast says, counted from the tensors of as many first steps.

    model: whose times weigh tokens and pairs of attention; tokens alone without it. The order is
    the line's: our step, work and waiting in it, and theirs, in steps of the plain run.
    """
    times = SLOTS
    if model is not None:
        times = cp.balancer.time_ns(json.loads((model / "config.json").read_text()))
    (time, work), (theirs, their_work) = (
        _sum_steps(run, range(steps), times) for run in (ours, plain)
    )
    parts = (time, work, time - work, their_work, theirs - their_work)
    return tuple(part / theirs for part in parts)


def _sum_steps(run: Run, steps: Iterable[int], times: Mapping[str, int]) -> tuple[float, float]:
    """Return the time until the slowest rank is done, and a rank's mean: DDP meets once a step."""
    slowest = mean = 0.0
    for step in steps:
        ranks = defaultdict[int, float](float)
        for batch in run.batches:
            if batch["step"] == step:
                longest = batch["slots"] / len(batch["lengths"])
                token = times["tokens"] + times["attention_pairs"] * longest
                ranks[batch["rank"]] += batch["slots"] * token
        slowest += max(ranks.values())
        mean += sum(ranks.values()) / RANKS
    return slowest, mean

"""`bench faults`: its report and a replay."""

import json

import pytest
from click.testing import CliRunner

from benchmarks import faults as bench_faults
from benchmarks.faults import KINDS, WRONG, command
from tests.balancer.job.test_job import run_setting


def run(*words):
    return CliRunner().invoke(command, words, standalone_mode=False)


def test_the_report_of_simulated_seeds():
    result = run("--seeds", "40", "--json")
    report = json.loads(result.stdout.splitlines()[-1])
    assert (report["seeds"], report["failed_seeds"]) == (40, [])
    assert [report[kind.replace(" ", "_")] for kind in WRONG] == [0] * 4
    assert report["seeds_with"].keys() == KINDS.keys()
    assert min(report["seeds_with"].values()) >= 0.05
    assert result.return_value == 0


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (AssertionError((0, 1)), "different"),
        (AssertionError("stuck: (0, 0): 3"), "stuck"),
        (AssertionError("the pool keeps something"), "left_behind"),
        (KeyError("job"), "failed"),
    ],
)
def test_a_seed_that_fails_is_counted_and_its_last_messages_are_told(monkeypatch, error, kind):
    def broken(seed):
        run_setting(seed)
        if seed == 5:
            raise error

    monkeypatch.setattr(bench_faults, "run_setting", broken)
    result = run("--first", "4", "--seeds", "2", "--json")
    report = json.loads(result.stdout.splitlines()[-1])
    assert (report[kind], report["failed_seeds"]) == (1, [5])
    assert result.return_value == 1
    told = [line for line in result.output.splitlines() if line.startswith("seed ")]
    assert told == [f"seed 5 (workers killed): {kind.replace('_', ' ')}: {_text(error)}"]


def _text(error):
    return f"KeyError: {error}" if isinstance(error, KeyError) else str(error)


def test_a_replay_tells_faults_and_last_messages():
    result = run("--seed", "17")
    assert result.return_value == 0
    first, *told = result.output.splitlines()
    assert first == (
        "seed 17 (a network that loses, doubles and delays, broken samples): nothing wrong"
    )
    assert len(told) == 40
    assert any(" balancer to " in line for line in told)


def test_no_seeds_at_all_are_refused():
    assert isinstance(run("--seeds", "0").exception, ValueError)

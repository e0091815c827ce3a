"""`bench faults`: its report and a replay."""

import json
from dataclasses import replace

from click.testing import CliRunner

from benchmarks import faults as bench_faults
from benchmarks.faults import command
from tests.simulation.faults import KINDS
from tests.simulation.trial import trial
from tests.simulation.variants import VARIANTS


def run(*words):
    return CliRunner().invoke(command, words, standalone_mode=False)


def test_the_report_of_simulated_seeds():
    result = run("--seeds", "20", "--json")
    report = json.loads(result.stdout.splitlines()[-1])
    assert (report["seeds"], report["faults"]) == (20, 100)
    names = ("lost", "duplicated", "digest_mismatches", "stuck", "failed")
    assert [report[name] for name in names] == [0] * 5
    assert report["seeds_with"].keys() == set(KINDS)
    assert min(report["seeds_with"].values()) >= 0.05
    assert result.return_value == 0


def test_a_seed_that_fails_is_counted_and_its_last_events_are_told(monkeypatch):
    def broken(seed, traced=False, variants=VARIANTS):
        verdict = trial(seed, traced, variants)
        return replace(verdict, lost=2, mismatch=True) if seed == 5 else verdict

    monkeypatch.setattr(bench_faults, "trial", broken)
    result = run("--seeds", "7", "--json")
    report = json.loads(result.stdout.splitlines()[-1])
    assert (report["lost"], report["digest_mismatches"], report["failed_seeds"]) == (2, 1, [5])
    assert result.return_value == 1
    told = result.output.splitlines()
    assert "seed 5 (decoded first): 2 lost, other batches" in told
    assert 10 < len(told) < 60


def test_a_replay_tells_faults_and_last_events():
    result = run("--seed", "3")
    assert result.return_value == 0
    assert "seed 3 (poison): nothing wrong" in result.output
    assert "balancer receives" in result.output


def test_shared_ranks_have_seeds_of_their_own():
    result = run("--seed", "9", "--shared")
    assert result.return_value == 0
    assert "seed 9 (shared, some die): nothing wrong" in result.output


def test_no_seeds_at_all_are_refused():
    assert isinstance(run("--seeds", "0").exception, ValueError)

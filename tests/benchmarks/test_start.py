"""`make bench NAME=start`: each trial is a new process, and figures follow from their times."""

import json

import pytest
from click.testing import CliRunner

from benchmarks.loading import start


def test_the_report_compares_each_kind_with_torch_of_the_same_turn(monkeypatch):
    times = {"torch": [100.0, 200.0], "plain": [150.0, 200.0], "balanced": [400.0, 500.0]}
    warm: set[str] = set()
    turns: list[tuple[str, bool]] = []

    def trial(kind, workers, batch_size, stay, epochs, load_ms):
        assert (workers, batch_size, epochs, load_ms) == (2, 32, 3, 0.0)
        if warm != set(start.LOADERS):
            warm.add(kind)
            return {"first": 1e6, "later": 1e6}
        first = times[kind][turns.count((kind, stay))]
        turns.append((kind, stay))
        return {"first": first, "later": first / (50 if stay else 10)}

    monkeypatch.setattr(start, "_time_trial", trial)
    done = CliRunner().invoke(start.command, ["--repeats", "2", "--epochs", "3", "--json"])
    report = json.loads(done.stdout.splitlines()[-1])
    each = [(kind, stay) for kind in start.LOADERS for stay in (False, True)]
    assert turns == 2 * each
    kinds, later = report["kinds"], report["later_epochs"]
    assert set(kinds) == set(start.LOADERS)
    assert kinds["plain"]["milliseconds"] == 175.0
    assert kinds["plain"]["over_torch_range"] == [1.0, 1.5]
    assert kinds["plain"]["more_than_twice_torch_ms"] == -125.0
    assert kinds["balanced"]["over_torch"] == 3.25
    assert later["new_workers"]["balanced"]["milliseconds"] == 45.0
    assert later["persistent_workers"]["balanced"]["milliseconds"] == 9.0
    assert later["persistent_workers"]["plain"]["over_torch"] == 1.25
    turns.clear()
    warm.clear()
    shown = CliRunner().invoke(start.command, ["--repeats", "1", "--epochs", "3"]).stdout
    assert "later, persistent" in shown


def test_a_trial_takes_batches_in_a_new_process():
    assert min(start._time_trial("torch", 1, 8, True, 1, 0.0).values()) > 0
    with pytest.raises(RuntimeError, match="the trial of 'torch' failed"):
        start._time_trial("torch", 1, -1, False, 2, 0.0)


def test_with_slow_samples_auto_takes_part():
    assert min(start._time_trial("auto", 1, 64, False, 1, 0.1).values()) > 0


def test_senseless_numbers_are_refused():
    with pytest.raises(ValueError, match="got 0 repeats"):
        CliRunner().invoke(start.command, ["--repeats", "0"], catch_exceptions=False)

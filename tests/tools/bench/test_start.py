"""`bench start`: a trial takes a batch in a new process, and the figures follow from its times."""

import json

import pytest
from click.testing import CliRunner

from counterpoise.tools.bench.loading import start


def test_the_report_compares_each_kind_with_torch_of_the_same_turn(monkeypatch):
    times = {"torch": [100.0, 200.0], "plain": [150.0, 200.0], "balanced": [400.0, 500.0]}
    turns = []

    def trial(kind, workers, batch_size):
        turns.append(kind)
        assert (workers, batch_size) == (2, 32)
        return times.get(kind, [50.0, 50.0])[turns.count(kind) - 1]

    monkeypatch.setattr(start, "_time_trial", trial)
    done = CliRunner().invoke(start.command, ["--repeats", "2", "--json"])
    kinds = json.loads(done.stdout.splitlines()[-1])["kinds"]
    assert turns == [*start.KINDS, *start.KINDS]
    assert kinds["plain"]["milliseconds"] == 175.0
    assert kinds["plain"]["over_torch_range"] == [1.0, 1.5]
    assert kinds["plain"]["more_than_twice_torch_ms"] == -125.0
    assert kinds["balanced"]["over_torch"] == 3.25


def test_a_trial_takes_a_batch_in_a_new_process():
    assert start._time_trial("torch", 1, 8) > 0
    with pytest.raises(RuntimeError, match="the trial of 'torch' failed"):
        start._time_trial("torch", 1, -1)


def test_senseless_numbers_are_refused():
    with pytest.raises(ValueError, match="got 0 repeats"):
        CliRunner().invoke(start.command, ["--repeats", "0"], catch_exceptions=False)

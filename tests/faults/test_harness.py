"""`make faults`: one run with real processes."""

import pytest

from tests.faults.harness import run_trials

pytestmark = pytest.mark.slow


@pytest.mark.long  # test_one_host.py and tests/tools/services kill processes, too
def test_real_processes_that_are_killed_stopped_and_cut_off():
    trials = run_trials(1, 1, lambda *_: None)
    assert trials.notes == []
    assert (trials.kills, trials.stops, trials.cuts) == (5, 1, 2)
    assert (trials.lost, trials.duplicated, trials.digest_mismatches) == (0, 0, 0)
    assert (trials.unfinished, trials.leftovers) == (0, 0)

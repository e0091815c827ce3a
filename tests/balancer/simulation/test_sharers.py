"""Processes that share ranks, on a network that drops, delays, doubles, reorders and cuts."""

from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.cluster import Simulation
from tests.simulation.faults import Fault
from tests.simulation.trial import _reference, trial
from tests.simulation.variants import COUNT, RANKS, SHARED_VARIANTS, settings_of

CHUNK = 40
LONG = pytest.mark.long


@pytest.mark.parametrize("chunk", [0, *(pytest.param(n, marks=LONG) for n in range(1, 5))])
def test_faults_change_nothing_where_ranks_are_shared(chunk: int) -> None:
    seeds = range(chunk * CHUNK, (chunk + 1) * CHUNK)
    verdicts = [trial(seed, variants=SHARED_VARIANTS) for seed in seeds]
    assert not [f"seed {v.seed}, {v.variant}: {v.wrong}" for v in verdicts if v.wrong]


@pytest.mark.xfail(strict=True, reason="issue 58: sharers of one rank end in two runs, stuck")
def test_one_that_falls_behind_at_the_end_of_an_epoch_gets_the_rest_of_it() -> None:
    """`make bench NAME=faults ARGS="--shared --seed 10446"`."""
    verdict = trial(10446, variants=SHARED_VARIANTS)
    assert not verdict.wrong


@pytest.mark.parametrize("variant", SHARED_VARIANTS)
def test_all_who_share_a_rank_get_the_same_batches(variant: str) -> None:
    delivered: Any = _reference(variant).delivered
    assert len(delivered) == RANKS * settings_of(variant).sharers
    for seat, batches in delivered.items():
        assert batches == delivered[seat % RANKS]


def test_every_sample_is_decoded_once_for_all_who_come_in_time() -> None:
    outcome = Simulation(settings_of("shared"), seed=5).run()
    assert not outcome.trouble
    # A few more, where a slow worker's samples are given to an idle one as well.
    assert outcome.leased < COUNT * 1.1


@pytest.mark.parametrize("seed", range(6))
def test_one_that_dies_is_named_to_the_others(seed: int) -> None:
    settings = replace(settings_of("shared"), deaths=((2.0, "rank 1, sharer 1"),), limit_s=12.0)
    outcome = Simulation(settings, seed).run()
    assert "rank 1, sharer 1, which shares data-parallel rank 1" in outcome.trouble
    assert 2.0 < outcome.seconds < 12.0


def test_one_that_is_cut_off_for_a_while_is_waited_for() -> None:
    cut = (Fault(2.0, "cut", "rank 0, sharer 1", 4.0), Fault(2.0, "reset", "rank 0, sharer 1", 0.1))
    settings = replace(settings_of("shared"), faults=cut, limit_s=60.0)
    outcome = Simulation(settings, seed=1).run()
    assert not outcome.trouble
    assert outcome.delivered == _reference("shared").delivered


def test_one_that_trains_slowly_slows_down_the_others_and_changes_nothing() -> None:
    slow = (Fault(1.0, "slow", "rank 0, sharer 1", 8.0),)
    settings = replace(settings_of("shared, fixed, late"), faults=slow, limit_s=120.0)
    outcome = Simulation(settings, seed=2).run()
    assert not outcome.trouble
    assert outcome.delivered == _reference("shared, fixed, late").delivered

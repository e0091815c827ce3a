"""Two processes under torch.distributed, each with a stream of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forking.popen import Popen
from tests.loader.streams import rank_trainer

TRAINER = Path(rank_trainer.__file__)
LIMIT_S = 120


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What came to each of two ranks, by manner, and what they have logged."""
    folder = tmp_path_factory.mktemp("ranks")
    processes = [
        Popen(
            [sys.executable, str(TRAINER), str(folder)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        logged = [process.communicate(timeout=LIMIT_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    written = [folder / f"{rank}.json" for rank in (0, 1)]
    assert all(path.exists() for path in written), logged
    return [json.loads(path.read_text()) for path in written], logged


@pytest.fixture
def came(ran):
    return ran[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_end_together_and_each_sample_comes_once(came, workers):
    parts = [came[rank][f"whole {workers}"] for rank in (0, 1)]
    assert [row[:3] for row in parts[0]] == [row[:3] for row in parts[1]]
    for rank, count in enumerate(rank_trainer.COUNTS):
        numbers = [number for row in parts[rank] for number in row[3]]
        assert sorted(numbers) == [*range(count)]
    for here, there in zip(*parts, strict=True):
        assert here[4][2:] == there[4][2:]
    steps = len(parts[0]) // 2
    for step in range(steps):
        of_step = [row for part in parts for row in part if row[1] == step]
        assert sum(row[4][0] for row in of_step) == of_step[0][4][2]
        assert sum(row[4][1] for row in of_step) == of_step[0][4][3]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_next_epoch_has_the_same_number_of_steps(came, workers):
    for each in came:
        again = each[f"again {workers}"]
        assert [row[0] for row in again] == [1] * len(again)
        assert [row[3:] for row in again] == [row[3:] for row in each[f"whole {workers}"]]


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_go_on_exactly_each_by_its_own_ledger(came, workers):
    for each in came:
        assert each[f"resumed {workers}"] == each[f"whole {workers}"][7:]


def test_a_rank_without_any_sample_has_microbatches_that_weigh_nothing(came):
    assert len(came[0]["empty"]) == len(came[1]["empty"])
    assert all(row[4][:2] == [0, 0] and row[4][2] for row in came[1]["empty"])


def test_another_ranks_ledger_is_refused(came):
    for rank in (0, 1):
        assert f"rank was {1 - rank} and is {rank}" in came[rank]["other"]


def test_an_epoch_may_be_left_early(came):
    assert all([row[:3] for row in rank["left"]] == [[1, 0, 0]] for rank in came)


def test_ranks_that_are_apart_are_named(came):
    for each in came:
        assert each["apart"].startswith("LoaderError: the ranks are not at the same position: rank")


def test_ranks_that_read_the_same_data_are_told_how_to_share_them(ran):
    came, logged = ran
    assert len(came[0]["same"]) == len(came[1]["same"]) == 1
    for text in logged:
        assert "the streams of ranks begin with the same sample" in text

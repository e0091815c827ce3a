"""Processes of one data-parallel index get the same batches: four gloo processes, or eight."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from counterpoise import Ranks
from tests.forking.ranks import written_by
from tests.loader.processes import topology_trainer

pytestmark = pytest.mark.slow

LIMIT_S = 280
HEARTBEAT_TIMEOUT_S = 10.0


def run(folder: Path, world: int) -> list[dict[str, Any]]:
    """Return what came to each of `world` processes, by case."""
    found: list[dict[str, Any]] = written_by(
        topology_trainer.__file__, folder, world, str(world), limit_s=LIMIT_S
    )
    return found


@cache
def alone(ranks: int) -> list[Any]:
    """Return what one process takes that plays all ranks."""
    loader = topology_trainer.make(ranks=Ranks(virtual=ranks), num_workers=0, prefetch_factor=None)
    return sorted(topology_trainer.take(loader))


def check(came: list[dict[str, Any]], name: str, sizes: Mapping[str, int], opens: Any) -> None:
    """Assert that every process that opened the loader got its rank's batches, all of them."""
    ranks = 1
    for dimension, size in sizes.items():
        ranks *= size if dimension.startswith("dp") else 1
    taken = [each[name] for each in came if each[name] is not None]
    assert not [each for each in taken if isinstance(each, str)]
    assert len(taken) == ranks * len(opens)
    by_rank: dict[int, list[Any]] = {}
    for each in taken:
        assert each == sorted(each)
        by_rank.setdefault(each[0][2], []).append(each)
    assert sorted(by_rank) == list(range(ranks))
    for shared in by_rank.values():
        assert shared == [shared[0]] * len(opens)
    assert sorted(batch for shared in by_rank.values() for batch in shared[0]) == alone(ranks)


@pytest.fixture(scope="module")
def came(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(tmp_path_factory.mktemp("topologies"), 4)


MESHES = [name for name in topology_trainer.CASES if name != "units"]


@pytest.mark.parametrize("name", MESHES)
def test_four_processes_get_the_batches_of_their_data_parallel_rank(came: Any, name: str) -> None:
    sizes, _, opens = topology_trainer.CASES[name]
    check(came, name, sizes, opens)


def only(batches: list[Any], fields: Any) -> list[Any]:
    """Return batches with the digests of some fields; `fields`: of a microbatch's number."""
    return [[*rest, {n: digests[n] for n in fields(rest[1])}] for *rest, digests in batches]


def test_ranks_of_units_get_the_fields_that_they_need_of_their_batches(came: Any) -> None:
    taken = [each["units"] for each in came]
    texts, pixels = topology_trainer.TEXTS, topology_trainer.PIXELS
    assert sorted(taken[0] + taken[1]) == only(alone(2), lambda _: texts)
    assert {batch[2] for batch in taken[0]} == {0}
    assert {batch[2] for batch in taken[1]} == {1}
    # in the order of microbatches, and of each those of both ranks
    for encoder in (0, 1):
        mine = only(alone(2), lambda number, own=encoder: pixels if number == own else ())
        assert taken[2 + encoder] == mine


def test_a_sharer_with_another_configuration_is_refused(came: Any) -> None:
    assert isinstance(came[0]["configuration"], list)
    assert "configuration than process 1: plan.seed: 4 here, 3 there" in came[1]["configuration"]


def test_a_sharer_that_is_killed_is_named_within_the_heartbeat_timeout(came: Any) -> None:
    reason, after_s = came[2]["killed"]
    # Said by the balancer, or by another process that the balancer had told.
    assert reason.startswith("LoaderError: process ")
    assert "process 3 (host " in reason
    assert "shares data-parallel rank 1 with others, has ended or cannot be reached" in reason
    assert after_s < HEARTBEAT_TIMEOUT_S


@pytest.mark.long
def test_eight_processes_get_the_batches_of_their_data_parallel_rank(tmp_path: Path) -> None:
    came = run(tmp_path, 8)
    for name, (sizes, _, opens) in topology_trainer.CASES_OF_8.items():
        check(came, name, sizes, opens)

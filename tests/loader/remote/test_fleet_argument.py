"""What DataLoader(fleet=) takes, and when it is joined: as ranks connect, and not before."""

from pathlib import Path
from typing import Any

import pytest

from counterpoise import Balancer
from counterpoise.loader import DataLoader, LoaderError
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.workers import TarDataset, VisionLanguage, fleet


class Full:
    """A fleet that has no place."""

    def __init__(self):
        self.times = 0

    def join(self):
        self.times += 1
        raise LoaderError("no place for it")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    root = Path(ensure_demo_data(folder, samples=8, shards=1)).parent
    return TarDataset(str(root / "*.tar"), VisionLanguage())


def make(data, **given):
    balanced: dict[str, Any] = {"balance": "fixed", "shuffle": True, "batch_size": 2}
    return DataLoader(data, **{**balanced, **given})


def test_a_fleet_is_joined_when_the_loop_begins(data):
    full = Full()
    loader = make(data, balancer=full)
    assert full.times == 0
    with pytest.raises(LoaderError, match="no place for it"):
        next(iter(loader))
    assert full.times == 1


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"balancer": 3}, r"or a fleet, cp\.fleet\.Ray\(workers=\(4, 64\)\)"),
        ({"balancer": fleet.Ray}, "balancer is <class"),
        ({"balancer": Full(), "balance": None}, "balancer needs a balanced loader"),
    ],
)
def test_what_contradicts_a_fleet_is_refused(data, given, reason):
    with pytest.raises(ValueError, match=reason):
        make(data, **given)


def test_a_fleet_brings_its_keys():
    with pytest.raises(ValueError, match="a fleet brings its balancer's keys: leave keys"):
        Balancer(Full(), keys="keys")


@pytest.mark.parametrize("workers", [0, (0, 4), (5, 4)])
def test_a_fleet_has_at_least_one_worker(workers):
    with pytest.raises(ValueError, match="give a number from 1 on"):
        fleet.Ray(workers=workers)

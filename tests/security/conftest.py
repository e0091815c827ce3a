"""Keys, a data set and a balancer for the tests of who may come in."""

import shutil
from pathlib import Path

import pytest

from counterpoise.tools.demo.data import ensure_demo_data
from tests.security.key_party import SAMPLES, Party, keygen


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Keys of a balancer, a worker and a trainer, and of somebody else's."""
    folder = tmp_path_factory.mktemp("keys")
    keygen(folder / "ours")
    keygen(folder / "theirs")
    return folder


@pytest.fixture
def keys(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "keys")) / "ours"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return Path(ensure_demo_data(tmp_path_factory.mktemp("root"), samples=SAMPLES, shards=1)).parent


@pytest.fixture
def party(request):
    started = []

    def start(*arguments):
        started.append(Party(*arguments))
        return started[-1]

    yield start
    for each in started:
        each.close()

"""`counterpoise bench loader`: three loaders take turns over the same samples."""

import json

import pytest
import torch
from click.testing import CliRunner

from counterpoise.tools.bench import loader
from counterpoise.tools.bench.turns import TORCH
from counterpoise.tools.demo.data import ensure_demo_data

SMALL = ["--samples", "8", "--batch-size", "4", "--tile-size", "32", "--json"]


def test_each_loader_has_figures_and_its_ratio_to_torchs(tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "TURN_S", 0.01)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    data = ["--data", ensure_demo_data(tmp_path, samples=16, shards=2)]
    done = CliRunner().invoke(
        loader.command, [*data, *SMALL, "--workers", "1", "--pairs", "2"], catch_exceptions=False
    )
    found = json.loads(done.stdout.splitlines()[-1])["workers"]["1"]
    assert set(found) == set(loader.SYSTEMS)
    assert found[TORCH]["ratio"]["median"] == 1
    for one in found.values():
        assert one["samples_per_s"]["low"] > 0
        assert one["trainer_cpu_us_per_sample"] > 0


def test_more_samples_than_there_are_are_refused(tmp_path):
    pattern = ensure_demo_data(tmp_path, samples=4, shards=2)
    with pytest.raises(ValueError, match="has 4 samples: give --samples 4"):
        loader.spread_over(pattern, 5, tile_size=32)


@pytest.mark.parametrize("text", ["none", "0,99999"])
def test_cores_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match="--cores got"):
        loader.parse_cores(text)

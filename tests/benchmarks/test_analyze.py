"""`bench analyze`: all contenders read the same files, and the report has the promised shape."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.analyze import by_offsets, by_tarfile, command, ours, write_small

pytestmark = pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")


def test_all_find_every_image(tmp_path: Path) -> None:
    shards = write_small(tmp_path, 40)
    assert [find(shards) for find in (ours, by_tarfile, by_offsets)] == [40, 40, 40]


def test_the_report_compares_ours_with_both(tmp_path: Path) -> None:
    write_small(tmp_path, 12)
    words = ["--samples", "8", "--rounds", "2", "--data", str(tmp_path), "--json"]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0, done.output
    sets = json.loads(done.stdout.splitlines()[-1])["sets"]
    assert {name: one["samples"] for name, one in sets.items()} == {"small": 8, "data": 12}
    for one in sets.values():
        assert one["samples_per_cpu_second"].keys() == {"ours", "tarfile", "offsets"}
        for ratio in one["ratio"].values():
            assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]

"""The scan on a real local Ray cluster of two nodes; skipped where Ray is not installed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from counterpoise.tools.runners import on_ray

pytest.importorskip("ray", reason="ray is an optional extra")

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
print(cluster.address, len(cluster.list_all_nodes()), flush=True)
sys.stdin.read()
cluster.shutdown()
"""
# What depends on when and how fast it was done, not on the data.
TIMED = {"seconds"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two nodes, each of one CPU."""
    quiet = {**os.environ, "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, env=quiet,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    words: list[str] = []
    for line in process.stdout:
        words = line.split()
        if len(words) == 2 and ":" in words[0]:
            break
    assert words[1:] == ["2"], "the cluster did not start"
    yield words[0]
    process.stdin.close()
    process.wait(60)


def analyze(out: Path, *words: str) -> dict[str, Any]:
    program = str(Path(sys.executable).with_name("counterpoise"))
    done = subprocess.run(
        [program, "analyze", *words, "--out", str(out), "--cache", str(out / "cache"), "--json"],
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {name: value for name, value in found.items() if name not in TIMED}


def test_where_no_cluster_is_the_error_comes_at_once() -> None:
    with pytest.raises(ConnectionError, match=r"no Ray cluster at .* `ray start --head`"):
        on_ray("127.0.0.1:1")


@pytest.mark.long  # starting two nodes takes most of a minute
def test_a_cluster_of_two_nodes_gives_the_identical_report(
    cluster: str, data: Path, tmp_path: Path
) -> None:
    words = [str(data / "shards"), "--ranks", "4"]
    alone = analyze(tmp_path / "alone", *words, "--workers", "1")
    spread = analyze(tmp_path / "ray", *words, "--ray", cluster)
    assert spread == alone
    assert len(list((tmp_path / "ray" / "parts").iterdir())) > 1


@pytest.mark.long
def test_a_cluster_of_two_nodes_prepares_the_identical_shards(
    cluster: str, data: Path, tmp_path: Path
) -> None:
    transform = "counterpoise.workers:VisionLanguage"
    words = ["--samples-per-shard", "99", "--transform", transform, "--json"]
    found = []
    for name, where in (("alone", ["--workers", "1"]), ("ray", ["--ray", cluster])):
        program = [str(Path(sys.executable).with_name("counterpoise")), "prepare"]
        out = tmp_path / name
        done = subprocess.run(
            [*program, str(data / "shards"), "--out", str(out), *words, *where],
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["costs_kept"] == 1336
        found.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert found[0] == found[1]

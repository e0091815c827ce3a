"""Workers elsewhere read JSONL and its images below their root, and nothing outside of it."""

from pathlib import Path
from typing import Any

import pytest

import counterpoise as cp
from counterpoise.loader import LoaderError
from counterpoise.tools.demo.data import ensure_demo_data
from tests.tools.services.test_remote import make, take
from tests.workers.jsonl.repacked import as_lines, write_lines

pytestmark = pytest.mark.slow
TRANSFORM = cp.VisionLanguage(tile_size=32, max_tiles=4, tokens_per_tile=4)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> cp.TarDataset:
    folder = tmp_path_factory.mktemp("shards")
    ensure_demo_data(folder / "demo", samples=30, shards=2)
    return cp.TarDataset(str(folder / "demo" / "**" / "*.tar"), TRANSFORM, cache=folder / "cache")


@pytest.fixture(scope="module")
def root(shards: cp.TarDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    as_lines(shards, folder / "root" / "set")
    (folder / "out.jsonl").write_text('{"text": "secret"}\n')
    (folder / "root" / "link.jsonl").symlink_to(folder / "out.jsonl")
    (folder / "root" / "link.png").symlink_to("/etc/passwd")
    for number, name in enumerate(
        ["../out.jsonl", str(folder / "out.jsonl"), "link.png", "http://127.0.0.1:1/a.png"]
    ):
        records = [{"id": n, "text": "a", "image": name} for n in range(24)]
        write_lines(folder / "root" / f"bad{number}.jsonl", records)
    return folder / "root"


@pytest.fixture(scope="module")
def address(processes: Any, root: Path) -> str:
    balancer = processes("balancer", "--listen", "tcp://127.0.0.1:0")
    found: str = balancer.wait_for("listening on").partition("listening on ")[2].partition(";")[0]
    worker = processes("worker", found, "--root", str(root), "--cache", str(root.parent / "cache"))
    worker.wait_for("working for")
    return found


def test_workers_elsewhere_deliver_what_a_loop_here_does(
    address: str, root: Path, shards: cp.TarDataset
) -> None:
    expected = take(make(shards, timeout=0))
    here = cp.JsonlDataset(root / "set", TRANSFORM, cache=root.parent / "cache")
    assert take(make(here, timeout=0)) == expected
    assert take(make(here, balancer=address)) == expected
    described = cp.RemoteDataset("set/*.jsonl", arguments=TRANSFORM.spec()["args"])
    assert take(make(described, balancer=address)) == expected


@pytest.mark.parametrize(
    ("pattern", "options", "reason"),
    [
        ("link.jsonl", {}, "leaves the root"),
        ("../out.jsonl", {}, "leaves the root"),
        ("bad0.jsonl", {}, "'../out.jsonl' leaves .*root"),
        ("bad1.jsonl", {}, "out.jsonl' leaves .*root"),
        ("bad2.jsonl", {}, "'link.png' leads out of the root"),
        ("bad3.jsonl", {}, "is a URL, and nothing is fetched"),
        ("set/*.jsonl", {"media": ".."}, "leaves the root"),
        ("set/*.jsonl", {"root": "/"}, "not described by root"),
        ("set/*.jsonl", {"cost": "os:system"}, "not described by cost"),
    ],
)
def test_what_is_outside_of_the_root_is_refused_in_one_line(
    pattern: str, options: Any, reason: str, address: str
) -> None:
    loader = make(cp.RemoteDataset(pattern, options=options), balancer=address, budgets={})
    with pytest.raises(LoaderError, match=reason) as raised:
        list(loader.steps())
    loader.close()
    assert "\n" not in str(raised.value)

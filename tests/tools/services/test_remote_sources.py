"""Workers elsewhere read every kind of source below their root, and nothing outside of it."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import counterpoise as cp
from counterpoise.loader import LoaderError
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.workers.sources.registry import open_source
from tests.tools.services.test_remote import SMALL, make, take
from tests.workers.jsonl.repacked import as_lines, write_lines
from tests.workers.prepared import prepare, write_mds

pytest.importorskip("pyarrow")
from tests.workers.columns.tables import save, table_of, write

pytestmark = pytest.mark.slow
TRANSFORM = cp.workers.VisionLanguage(**SMALL)
PREPARED = 24


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    shards = Path(ensure_demo_data(folder / "demo", samples=30, shards=2)).parent
    whole = cp.TarDataset(str(shards / "*.tar"), TRANSFORM, cache=folder / "cache")
    table = table_of(cp.TarDataset(str(shards / "*.tar"), cache=folder / "cache"))
    root = folder / "root"
    as_lines(whole, root / "set")
    write(root / "parquet" / "a.parquet", table, 4)
    save(root / "hf", table, 10)
    write_prepared(root)
    (root / "link.parquet").symlink_to(write(folder / "b.parquet", table))
    write(root / "paths.parquet", {"text": ["a"] * 12, "image": [f"{folder}/b.parquet"] * 12})
    write(root / "pickled.parquet", {"text": ["a"], "a.pkl": [b"x"]})
    (folder / "out.jsonl").write_text('{"text": "secret"}\n')
    (root / "link.jsonl").symlink_to(folder / "out.jsonl")
    (root / "link.png").symlink_to("/etc/passwd")
    for number, name in enumerate(
        ["../out.jsonl", str(folder / "out.jsonl"), "link.png", "http://127.0.0.1:1/a.png"]
    ):
        records = [{"id": n, "text": "a", "image": name} for n in range(24)]
        write_lines(root / f"bad{number}.jsonl", records)
    return root


def write_prepared(root: Path) -> None:
    """Write the same samples as an Energon and an MDS folder."""
    (root / "energon").mkdir()
    samples = []
    with tarfile.open(root / "energon/a.tar", "w") as tar:
        for number in range(PREPARED):
            file = io.BytesIO()
            Image.new("RGB", (16 + 8 * (number % 5), 16), (number, 0, 0)).save(file, "PNG")
            record = json.dumps({"caption": f"sample {number}"}).encode()
            samples.append({"image": file.getvalue(), "json": record})
            for name, data in (("png", file.getvalue()), ("json", record)):
                member = tarfile.TarInfo(f"s{number:02}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    prepare(root / "energon", {"a.tar": PREPARED}, {"train": ["a.tar"]})
    write_mds(root / "mds", {"image": "png", "json": "json"}, samples)


@pytest.fixture(scope="module")
def address(processes: Any, root: Path) -> str:
    balancer = processes("balancer", "--listen", "tcp://127.0.0.1:0")
    found: str = balancer.wait_for("listening on").partition("listening on ")[2].partition(";")[0]
    worker = processes("worker", found, "--root", str(root), "--cache", str(root.parent / "cache"))
    worker.wait_for("working for")
    return found


def source(form: str, root: Path) -> Any:
    """Return a source of a form that is here."""
    cached: Any = {"cache": root.parent / "cache"}
    match form:
        case "jsonl":
            return cp.JsonlDataset(root / "set", TRANSFORM, **cached)
        case "parquet":
            return cp.ParquetDataset(root / "parquet", TRANSFORM, key="__key__", **cached)
        case "hf" | "view":
            rows = list(range(25, 2, -1)) if form == "view" else None
            return cp.HFDataset(root / "hf", TRANSFORM, rows=rows, key="__key__", **cached)
        case "energon":
            return cp.EnergonDataset("energon", transform=TRANSFORM, root=root)
        case _:
            return cp.MDSDataset("mds", transform=TRANSFORM, root=root)


# What a trainer says that does not have the data.
DESCRIBED: dict[str, Any] = {
    "jsonl": {"pattern": "set/*.jsonl"},
    "parquet": {"pattern": "parquet", "source": "parquet", "options": {"key": "__key__"}},
    "energon": {"pattern": "energon", "source": "energon"},
    "mds": {"pattern": "mds", "source": "mds"},
}


@pytest.mark.parametrize("form", ["jsonl", "parquet", "hf", "view", "energon", "mds"])
def test_workers_elsewhere_deliver_what_a_loop_here_does(
    form: str, address: str, root: Path
) -> None:
    expected = take(make(source(form, root), timeout=0))
    assert take(make(source(form, root), balancer=address)) == expected
    if form in DESCRIBED:
        described = cp.RemoteDataset(arguments=SMALL, **DESCRIBED[form])
        assert take(make(described, balancer=address)) == expected


def test_lines_are_the_samples_of_the_shards_that_they_were_made_of(root: Path) -> None:
    shards = cp.TarDataset(str(root.parent / "demo" / "**" / "*.tar"), TRANSFORM)
    assert take(make(source("jsonl", root), timeout=0)) == take(make(shards, timeout=0))


@pytest.mark.parametrize(
    ("pattern", "kind", "options", "reason"),
    [
        ("link.parquet", "parquet", {}, "leaves the root"),
        ("../b.parquet", "parquet", {}, "leaves the root"),
        ("paths.parquet", "parquet", {}, "leaves"),
        ("paths.parquet", "parquet", {"media": ".."}, "leads out of the root|leaves"),
        ("pickled.parquet", "parquet", {}, "pickled and refused"),
        ("parquet", "parquet", {"rows": [1]}, "not described by rows"),
        ("../energon", "energon", {}, "leaves the root"),
        ("link.jsonl", None, {}, "leaves the root"),
        ("../out.jsonl", None, {}, "leaves the root"),
        ("bad0.jsonl", None, {}, "'../out.jsonl' leaves .*root"),
        ("bad1.jsonl", None, {}, "out.jsonl' leaves .*root"),
        ("bad2.jsonl", None, {}, "'link.png' leads out of the root"),
        ("bad3.jsonl", None, {}, "is a URL, and nothing is fetched"),
        ("set/*.jsonl", None, {"media": ".."}, "leaves the root"),
        ("set/*.jsonl", None, {"root": "/"}, "not described by root"),
        ("set/*.jsonl", None, {"cost": "os:system"}, "not described by cost"),
    ],
)
def test_what_is_outside_or_pickled_is_refused_in_one_line(
    pattern: str, kind: str | None, options: Any, reason: str, root: Path
) -> None:
    described = cp.RemoteDataset(pattern, arguments=SMALL, source=kind, options=options).spec()
    with pytest.raises(ValueError, match=reason) as raised:  # noqa: PT012
        opened = open_source(described, root, (), root.parent / "cache")
        for index in range(len(opened)):
            opened.load(index, epoch=0, seed=0)
    assert "\n" not in str(raised.value)


def test_what_a_worker_refuses_a_trainer_hears_in_one_line(address: str) -> None:
    loader = make(cp.RemoteDataset("bad0.jsonl"), balancer=address, budgets={})
    with pytest.raises(LoaderError, match=r"'../out.jsonl' leaves .*root") as raised:
        list(loader.steps())
    loader.close()
    assert "\n" not in str(raised.value)

"""Workers elsewhere read parquet and Arrow below their root, and nothing outside of it."""

from pathlib import Path
from typing import Any

import pytest

import counterpoise as cp
from counterpoise.loader import LoaderError
from counterpoise.tools.demo.data import ensure_demo_data
from tests.tools.services.test_remote import make, take

pytest.importorskip("pyarrow")
from tests.workers.columns.tables import save, table_of, write

pytestmark = pytest.mark.slow
TRANSFORM = cp.VisionLanguage(tile_size=32, max_tiles=4, tokens_per_tile=4)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns")
    shards = Path(ensure_demo_data(folder / "demo", samples=30, shards=1)).parent
    table = table_of(cp.TarDataset(str(shards / "*.tar"), cache=folder / "cache"))
    write(folder / "root" / "parquet" / "a.parquet", table, 4)
    save(folder / "root" / "hf", table, 10)
    (folder / "root" / "link.parquet").symlink_to(write(folder / "b.parquet", table))
    outside = {"text": ["a"] * 12, "image": [str(folder / "b.parquet")] * 12}
    write(folder / "root" / "paths.parquet", outside)
    write(folder / "root" / "pickled.parquet", {"text": ["a"], "a.pkl": [b"x"]})
    return folder / "root"


@pytest.fixture(scope="module")
def address(processes: Any, root: Path) -> str:
    balancer = processes("balancer", "--listen", "tcp://127.0.0.1:0")
    found: str = balancer.wait_for("listening on").partition("listening on ")[2].partition(";")[0]
    worker = processes("worker", found, "--root", str(root), "--cache", str(root.parent / "cache"))
    worker.wait_for("working for")
    return found


def sources(root: Path) -> dict[str, Any]:
    given: Any = {"key": "__key__", "cache": root.parent / "cache"}
    whole = cp.HFDataset(root / "hf", TRANSFORM, **given)
    rows = list(range(25, 2, -1))
    return {
        "parquet": cp.ParquetDataset(root / "parquet", TRANSFORM, **given),
        "hf": whole,
        "view": cp.HFDataset(root / "hf", TRANSFORM, rows=rows, **given),
    }


@pytest.mark.parametrize("form", ["parquet", "hf", "view"])
def test_workers_elsewhere_deliver_the_same(form: str, address: str, root: Path) -> None:
    source = sources(root)[form]
    assert take(make(source, balancer=address)) == take(make(source, timeout=0))


def test_what_the_trainer_does_not_have_is_described(address: str, root: Path) -> None:
    source = cp.RemoteDataset(
        "parquet", arguments=TRANSFORM.spec()["args"], source="parquet", options={"key": "__key__"}
    )
    assert take(make(source, balancer=address)) == take(make(sources(root)["parquet"], timeout=0))


@pytest.mark.parametrize(
    ("pattern", "options", "reason"),
    [
        ("link.parquet", {}, "leaves the root"),
        ("../b.parquet", {}, "leaves the root"),
        ("paths.parquet", {}, "leaves"),
        ("paths.parquet", {"media": ".."}, "leads out of the root|leaves"),
        ("pickled.parquet", {}, "pickled and refused"),
        ("parquet", {"rows": [1]}, "not described by rows"),
    ],
)
def test_what_is_outside_or_pickled_is_refused(
    pattern: str, options: Any, reason: str, address: str
) -> None:
    source = cp.RemoteDataset(pattern, source="parquet", options=options)
    loader = make(source, balancer=address, budgets={})
    with pytest.raises(LoaderError, match=reason) as raised:
        list(loader.steps())
    loader.close()
    assert "\n" not in str(raised.value)

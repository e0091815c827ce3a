"""Workers of another host read Energon and MDS folders below their root, and nowhere else."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import counterpoise as cp
from tests.loader import balanced_data
from tests.tools.services.commands import LIMIT_S
from tests.workers.prepared import prepare, write_mds

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {"tile_size": 16, "max_tiles": 4, "tokens_per_tile": 2}
SAMPLES = 24


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    (folder / "en").mkdir()
    samples = []
    with tarfile.open(folder / "en/a.tar", "w") as tar:
        for number in range(SAMPLES):
            file = io.BytesIO()
            Image.new("RGB", (16 + 8 * (number % 5), 16), (number, 0, 0)).save(file, "PNG")
            record = json.dumps({"caption": f"sample {number}"}).encode()
            samples.append({"image": file.getvalue(), "json": record})
            for name, data in (("png", file.getvalue()), ("json", record)):
                member = tarfile.TarInfo(f"s{number:02}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    prepare(folder / "en", {"a.tar": SAMPLES}, {"train": ["a.tar"]})
    write_mds(folder / "mds", {"image": "png", "json": "json"}, samples)
    return folder


def take(data: Any, **others: Any) -> list[Any]:
    loader = cp.DataLoader(
        data,
        balance=cp.Balance(
            budgets={"tiles": 12, "tokens": 400}, samples_per_step=8, accumulate="auto", seed=2
        ),
        shuffle=True, virtual_ranks=2, collate_fn=list, **others,
    )  # fmt: skip
    found = [
        (step.number, info.rank, info.keys, balanced_data.digest(batch))
        for step in loader.steps()
        for batch, info in zip(step.microbatches, step.infos, strict=True)
    ]
    loader.close()
    return found


def test_they_deliver_what_a_local_loader_does(processes: Any, root: Path) -> None:
    balancer = processes("balancer", "--listen", "tcp://127.0.0.1:0")
    address = balancer.wait_for("listening on").partition("listening on ")[2].partition(";")[0]
    words = ("--root", str(root), "--cache", str(root.parent / "cache"))
    processes("worker", address, *words).wait_for("working for")
    there = {"balancer": address, "timeout": LIMIT_S}
    for source, kind in (("en", cp.EnergonDataset), ("mds", cp.MDSDataset)):
        local = kind(source, transform=cp.VisionLanguage(**SMALL), root=root)
        wanted = take(local)
        assert sum(len(keys) for _, _, keys, _ in wanted) == SAMPLES
        assert take(local, **there) == wanted
        name = "energon" if source == "en" else source
        remote = cp.RemoteDataset(source, arguments=SMALL, source=name)
        assert take(remote, **there) == wanted
    with pytest.raises(cp.LoaderError, match="leaves the root"):
        take(cp.RemoteDataset("../en", arguments=SMALL, source="energon"), **there)

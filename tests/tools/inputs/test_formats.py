"""The commands read data of every format, alone and mixed: the doctor's step, and analyze."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import counterpoise as cp
from counterpoise.tools.cli import main
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.tools.doctor.command import command as doctor
from counterpoise.workers.images.decode import is_image
from counterpoise.workers.sources.registry import open_data
from tests.workers.jsonl.repacked import as_lines
from tests.workers.prepared import image_list, prepare, write_mds

FORMATS = ("tar", "jsonl", "parquet", "hf", "energon", "mds")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same samples in each format."""
    tables = pytest.importorskip("tests.workers.columns.tables", exc_type=ImportError)
    base = tmp_path_factory.mktemp("formats")
    shards = Path(ensure_demo_data(base / "demo", samples=24, shards=1)).parent
    tar = cp.TarDataset(shards)
    raws = [tar.raw(index) for index in range(len(tar))]
    samples = [
        {
            "images": image_list([raw[name] for name in raw if is_image(name)]),
            "json": json.dumps(raw["json"]).encode(),
        }
        for raw in raws
    ]
    (energon := base / "energon").mkdir()
    (path,) = shards.glob("*.tar")
    (energon / path.name).symlink_to(path)
    table = tables.table_of(tar)
    tables.write(base / "parquet" / "a.parquet", table, 8)
    return {
        "tar": shards,
        "jsonl": as_lines(tar, base / "jsonl"),
        "parquet": base / "parquet",
        "hf": tables.save(base / "hf", table, 10) or base / "hf",
        "energon": prepare(energon, {path.name: 24}, {"train": [path.name]}),
        "mds": write_mds(base / "mds", {"images": "list[jpeg]", "json": "json"}, samples),
    }


@pytest.mark.parametrize("name", FORMATS)
def test_the_doctor_names_the_samples_of_a_step(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    source = open_data(str(folders[name]))
    balance = cp.Balance(
        budgets={"pixels": 1 << 20}, samples_per_step=6, accumulate="auto", mode="exact", seed=1
    )
    made = cp.DataLoader(source, balance=balance, shuffle=True, collate_fn=list)
    step = next(step for step in made.steps() if step.number == 1)
    wanted = sorted(key for info in step.infos for key in info.keys)
    (tmp_path / "ledger.json").write_text(json.dumps(made.state_dict()))
    words = [str(tmp_path / "ledger.json"), "--step", "1", "--data", str(folders[name]), "--json"]
    said = CliRunner().invoke(doctor, words, standalone_mode=False)
    assert sorted(json.loads(said.output.splitlines()[-1])["keys"]) == wanted


def test_a_recipe_mixes_formats(
    folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    sources = {name: {"pattern": str(folders[name]), "weight": 1} for name in FORMATS}
    (tmp_path / "mix.json").write_text(json.dumps({"sources": sources, "epoch": 72}))
    with pytest.raises(SystemExit) as ended:
        main(["analyze", "mix.json", "--json"])
    assert not ended.value.code
    report = json.loads(capsys.readouterr().out)
    assert (report["samples"], report["costs_known"]) == (72, True)
    assert [each["fine"] for each in report["sources"]] == [12] * len(FORMATS)

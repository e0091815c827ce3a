"""Recipes of mixtures in files: sources by their descriptions, and all that Mixture takes."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import counterpoise as cp
from counterpoise.tools.analyze.command import command
from tests.tars import write_tar

RECIPE = """
sources:
  web: {source: tar, pattern: web.tar, weight: 3}
  docs:
    weight: 1
    source: selection
    of: {source: tar, pattern: docs.tar}
    where: {bytes: [3, null]}
    split: {part: train, shares: {train: 0.8, val: 0.2}}
    limit: 9
epoch: 40
by: samples
schedule:
  - [20, {web: 1, docs: 1}]
repeat: true
seed: 5
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("web", "docs"):
        texts = {f"{name}{number}.txt": b"x" * (1 + number % 8) for number in range(16)}
        write_tar(tmp_path / f"{name}.tar", texts)
    (tmp_path / "mix.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_python() -> cp.Mixture:
    docs = cp.workers.Selection(
        cp.TarDataset("docs.tar"), where={"bytes": (3, None)}, limit=9,
        split={"part": "train", "shares": {"train": 0.8, "val": 0.2}},
    )  # fmt: skip
    return cp.Mixture(
        {"web": (cp.TarDataset("web.tar"), 3), "docs": (docs, 1)}, epoch=40, seed=5,
        schedule=[(20, {"web": 1, "docs": 1})],
    )  # fmt: skip


def test_yaml_json_and_python_say_the_same(folder: Path) -> None:
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load(RECIPE)
    (folder / "mix.json").write_text(json.dumps(recipe))
    wanted = in_python()
    for made in (
        cp.Mixture.from_file("mix.yaml"),
        cp.Mixture.from_file(folder / "mix.json"),
        cp.Mixture.from_file("mix.json", root=folder),
        cp.Mixture.from_dict(recipe),
    ):
        assert made.data_digest() == wanted.data_digest()
        assert [made.key(place) for place in range(40)] == [wanted.key(n) for n in range(40)]


def test_analyze_shows_the_sources_of_a_recipe(folder: Path) -> None:
    (folder / "mix.json").write_text(json.dumps({
        "sources": {name: {"source": "tar", "pattern": f"{name}.tar", "weight": weight}
                    for name, weight in (("web", 3), ("docs", 1))},
        "epoch": 64,
    }))  # fmt: skip
    ran = CliRunner().invoke(
        command, ["mix.json", "--out", "report"],
        standalone_mode=False, catch_exceptions=False,
    )  # fmt: skip
    assert ran.exit_code == 0
    report = json.loads((folder / "report" / "report.json").read_text())
    found = {one["source"]: one for one in report["sources"]}
    assert [found[name]["samples"] for name in ("web", "docs")] == [48, 16]
    assert found["web"]["share"] == 0.75
    data = cp.TarDataset("docs.tar")
    costs = sorted(data.probe(index).cost["bytes"] for index in range(16))
    own, other = (found[name]["resources"]["bytes"] for name in ("docs", "web"))
    assert own["mean"] * 16 == sum(costs)
    assert own["share"] + other["share"] == pytest.approx(1)
    assert own["share"] == pytest.approx(sum(costs) / (sum(costs) + 48 * other["mean"]))
    assert "Data quality" in (folder / "report" / "report.html").read_text()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ([], "has sources by name"),
        ({"source": "x"}, "has sources by name"),
        ({"sources": {"a": {}}, "weights": {}}, "not 'weights'"),
        ({"sources": {"a": "a.tar"}}, "describe it as"),
        ({"sources": {"a": {"source": "nope"}}}, "source 'a' of the mixture: no such"),
        ({"sources": {"a": {"source": "tar", "pattern": "web.tar", "wieght": 1}}}, "'a' .*wieght"),
        (
            {"sources": {"a": {"source": "tar", "pattern": "web.tar",
                               "transform": {"name": "os:system", "args": {}}}}},
            "no such transform",
        ),
    ],
)  # fmt: skip
def test_recipes_that_are_none_are_refused(changed: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        cp.Mixture.from_dict(changed)


def test_files_that_cannot_be_read_say_why(folder: Path) -> None:
    (folder / "bad.json").write_text("{")
    (folder / "bad.yaml").write_text("a: [")
    with pytest.raises(ValueError, match="is no JSON"):
        cp.Mixture.from_file("bad.json")
    with pytest.raises(ValueError, match="is no YAML"):
        cp.Mixture.from_file("bad.yaml")

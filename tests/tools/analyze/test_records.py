"""`counterpoise analyze` of records in JSON: the figures of the tar; tables are still tables."""

import json
from pathlib import Path

import pytest

import counterpoise as cp
from counterpoise.tools.analyze.scan.sources import find_tasks, has_records, reads_samples
from counterpoise.tools.demo.data import ensure_demo_data
from tests.tools.analyze.test_command import analyze, fails
from tests.workers.jsonl.repacked import as_array, as_lines, write_lines


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> cp.TarDataset:
    folder = tmp_path_factory.mktemp("shards")
    pattern = ensure_demo_data(folder / "demo", samples=200, shards=2)
    return cp.TarDataset(pattern, cache=folder / "cache")


@pytest.mark.parametrize("form", [as_lines, as_array])
def test_records_have_the_figures_of_the_shards(
    form: type, shards: cp.TarDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = form(shards, tmp_path / "records")
    options = ["--ranks", 4, "--workers", 1]
    theirs = analyze(capsys, *shards.files, *options, "--out", tmp_path / "a")
    suffix = next(folder.glob("*.json*")).suffix
    ours = analyze(capsys, f"{folder}/*{suffix}", *options, "--out", tmp_path / "b")
    for report in (ours, theirs):
        for name in ("inputs", "seconds"):
            del report[name]
    assert ours == theirs
    again = analyze(capsys, folder, *options, "--samples", 50, "--out", tmp_path / "c")
    assert again["samples"] == 200
    assert list(tmp_path.glob("records/*.costs"))


def test_broken_records_are_counted_with_their_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{"id": f"r{n}", "text": "word " * (n % 9 + 1)} for n in range(64)]
    path = write_lines(tmp_path / "a.jsonl", [*records, b"{", {"text": "a", "image": "../x.png"}])
    report = analyze(capsys, path, "--ranks", 2, "--out", tmp_path / "out")
    assert (report["samples"], report["unreadable"]) == (66, 2)
    (source,) = report["sources"]
    assert source["source"] == "a"
    assert source["keys"]["unreadable"] == ["a.jsonl:65", "a.jsonl:66"]


TABLES = [{"tokens": 5}, {"text": "a", "tokens": 5}, {"width": 3, "name": "a"}]
RECORDS = [
    {"messages": []}, {"text": "a", "text_tokens": 3}, {"id": 4, "conversations": []},
    {"question": "a", "answer": "b"}, {"image": "a.png", "width": 3},
]  # fmt: skip


@pytest.mark.parametrize("row", TABLES)
def test_a_file_of_costs_is_a_table(row: object, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [b"", row])
    assert [task.kind for task in find_tasks([str(path)])] == ["table"]
    assert not reads_samples(str(path))


@pytest.mark.parametrize("row", RECORDS)
def test_a_file_of_records_is_a_source(row: object, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [b"", row])
    (tmp_path / "a.json").write_text(json.dumps([row]))
    for source in (path, tmp_path, tmp_path / "*.jsonl", tmp_path / "a.json"):
        assert [task.kind for task in find_tasks([str(source)])] == ["dataset"]
        assert reads_samples(str(source))


def test_what_is_not_there_has_no_records(tmp_path: Path) -> None:
    assert not has_records(str(tmp_path / "gone.jsonl"))
    assert not has_records(str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"gone\.jsonl"):
        find_tasks([str(tmp_path / "gone.jsonl")])


def test_a_file_that_cannot_be_opened_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text('[{"text": "a"}')
    error = fails(capsys, tmp_path / "a.json", "--out", tmp_path / "out")
    assert "a.json: it is no JSON, or ends too early" in " ".join(error.split())

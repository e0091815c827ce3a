"""`bench gpu`: parts that fail or lack devices say so, and every part runs on a CPU."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks.gpu import command as module
from benchmarks.gpu.command import PARTS, command
from benchmarks.gpu.parts import Part, Row, Task
from benchmarks.runtime.rank_processes import RankProcesses


def run(*words: str) -> Result:
    return CliRunner().invoke(command, words, catch_exceptions=False)


def report_of(result: Result) -> Mapping[str, Sequence[Row]]:
    found: Mapping[str, Sequence[Row]] = json.loads(result.stdout.splitlines()[-1])["parts"]
    return found


def test_a_part_that_fails_says_so_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(task: Task) -> list[Row]:
        raise RuntimeError(f"rank 1 failed:\nTraceback\nCUDA error | on {task.name}")

    parts = {
        "one": Part("One", broken),
        "two": Part("Two", lambda _: [{"ms": "1.0"}]),
        "three": Part("Three", broken, devices=99),
    }
    monkeypatch.setattr(module, "PARTS", parts)
    result = run("--json", "--out", str(tmp_path / "page.md"))
    assert result.exit_code == 1
    rows = report_of(result)
    assert rows["one"] == [{"result": "failed: CUDA error | on cpu"}]
    assert rows["two"] == [{"ms": "1.0"}]
    assert rows["three"][0]["result"].startswith("not run: needs 99 devices")
    page = (tmp_path / "page.md").read_text()
    assert "| device | cpu |" in page
    assert "CUDA error \\| on cpu" in page


def test_parts_that_lack_devices_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTS", {"three": Part("Three", lambda _: [], devices=99)})
    assert run("--json").exit_code == 0


def test_without_a_gpu_nothing_is_written_unless_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "PARTS", {"two": Part("Two", lambda _: [{"ms": "1.0"}])})
    monkeypatch.setattr(module, "PAGES", tmp_path)
    result = run()
    assert "# Measured on cpu" in result.stdout
    assert "| 1.0 |" in result.stdout
    assert not list(tmp_path.iterdir())


class Silent:
    """A rank that never answers."""

    def __init__(self, rank: int) -> None:
        pass

    def wait(self) -> None:
        import threading

        threading.Event().wait()


@pytest.mark.slow
def test_a_rank_that_hangs_is_an_error_after_the_limit() -> None:
    with RankProcesses(1, Silent) as ranks:
        ranks._limit_s = 0.1
        with pytest.raises(RuntimeError, match="no rank answered wait"):
            ranks.call("wait")


@pytest.mark.slow
def test_a_part_runs_on_a_cpu() -> None:
    rows = report_of(run("--part", "tensor", "--minutes", "0.001", "--json"))
    assert [row["chunks"] for row in rows["tensor"]] == ["1", "2", "4", "8"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_part_runs_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = run("--minutes", "1", "--json")
    rows = report_of(result)
    assert set(rows) == set(PARTS)
    assert not [each for each in rows.values() if "result" in each[0]]
    assert {row["samples a step"] for row in rows["training"]} == {"16"}
    packed = [row for row in rows["packed"] if row["layout"] == "packed"]
    assert [row["samples stay apart"] for row in packed] == ["exact", "exact"]
    assert all(float(row["gradients' error, ours"]) < 1e-5 for row in rows["pipelines"])
    assert result.exit_code == 0

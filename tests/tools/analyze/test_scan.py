"""What is broken is named, what is done is not done again, who does it does not matter."""

import io
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from counterpoise.tools.analyze.scan.measure import measure_task
from counterpoise.tools.analyze.scan.rows import Rows
from counterpoise.tools.analyze.scan.run import scan_all
from counterpoise.tools.analyze.scan.sources import ScanOptions, ScanTask, find_tasks
from counterpoise.tools.runners import TaskFunction, in_this_process, on_cores
from counterpoise.workers import TarDataset, VisionLanguage
from counterpoise.workers.sources import cost_cache
from counterpoise.workers.sources.cache_files import write_arrays
from tests.forking.popen import COMMAND, Popen, run

OPTIONS = ScanOptions("tests.tools.analyze.test_scan:small")

small = VisionLanguage(tile_size=32, max_tiles=6, tokens_per_tile=4)
larger = VisionLanguage(tile_size=32, max_tiles=6, tokens_per_tile=8)


def picture(width: int = 40, height: int = 30) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(file, "PNG")
    return file.getvalue()


def write_shard(path: Path, samples: dict[str, dict[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for key, members in samples.items():
            for extension, data in members.items():
                info = tarfile.TarInfo(f"{key}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def samples(prefix: str, count: int) -> dict[str, dict[str, bytes]]:
    about = json.dumps({"document": "some text"}).encode()
    return {f"{prefix}{n}": {"json": about, "png": picture()} for n in range(count)}


def scanned(
    tasks: Sequence[ScanTask], out: Path, options: ScanOptions = OPTIONS, **more: Any
) -> tuple[Rows, int]:
    return scan_all(tasks, options, out, more.pop("run", in_this_process), **more)


def tasks_of(*sources: object) -> list[ScanTask]:
    return find_tasks([str(source) for source in sources])


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Shards in bad shape between good ones."""
    folder = tmp_path / "shards"
    folder.mkdir()
    write_shard(folder / "a-0.tar", samples("a", 4))
    (folder / "b-0.tar").write_bytes(b"this is no tar file" * 100)
    whole = write_shard(folder / "c-0.tar", samples("c", 6)).read_bytes()
    (folder / "c-0.tar").write_bytes(whole[: len(whole) // 2])
    broken = samples("d", 3)
    broken["d1"]["png"] = b""
    broken["d2"]["png"] = picture()[:40]
    write_shard(folder / "d-0.tar", broken)
    write_shard(folder / "e-0.tar", samples("a", 2))
    write_shard(folder / "f-0.tar", {})
    return folder


def test_what_is_broken_is_named_and_the_rest_is_there(mixed: Path, tmp_path: Path) -> None:
    rows, total = scanned(tasks_of(mixed), tmp_path / "parts")
    assert rows.keys == ("a0", "a1", "a2", "a3", "d0", "a0", "a1")
    assert total == len(rows) + len(rows.failures)
    found = {(bad.kind, bad.key): bad for bad in rows.failures}
    assert ("shard", "b-0.tar") in found
    assert ("shard", "f-0.tar") in found
    assert ("shard", "c-0.tar") in found
    assert {bad.key: bad.source for bad in rows.failures if bad.key in ("d1", "d2")} == {
        "d1": "d",
        "d2": "d",
    }
    assert all(bad.reason for bad in rows.failures)


def test_all_cores_find_what_one_finds(mixed: Path, tmp_path: Path) -> None:
    tasks = [ScanTask("tar", (str(path),)) for path in sorted(mixed.glob("*.tar"))]
    one, _ = scanned(tasks, tmp_path / "one")
    two, _ = scanned(tasks, tmp_path / "two", run=on_cores(2))
    assert (one.keys, one.failures, one.sources) == (two.keys, two.failures, two.sources)
    assert np.array_equal(one.costs, two.costs)


def test_numbered_shards_are_one_source_and_not_one_each(tmp_path: Path) -> None:
    folder = tmp_path / "laion"
    folder.mkdir()
    for number in range(3):
        write_shard(folder / f"{number:05}.tar", {f"{number}": {"txt": b"some text"}})
    assert scanned(tasks_of(folder), tmp_path / "parts")[0].sources == ("laion",)


def test_an_interrupted_scan_goes_on_where_it_was(mixed: Path, tmp_path: Path) -> None:
    tasks = [ScanTask("tar", (str(path),)) for path in sorted(mixed.glob("*.tar"))]
    done: list[tuple[str, ...]] = []

    def until(stop: int) -> Any:
        def run(
            function: TaskFunction, todo: Sequence[ScanTask], options: ScanOptions
        ) -> Iterator[tuple[int, Any]]:
            for number, task in enumerate(todo):
                if number == stop:
                    raise KeyboardInterrupt
                done.append(task.paths)
                yield number, function(task, options)

        return run

    with pytest.raises(KeyboardInterrupt):
        scanned(tasks, tmp_path / "parts", run=until(3))
    rows, _ = scanned(tasks, tmp_path / "parts", run=until(99))
    assert sorted(done) == sorted(task.paths for task in tasks)
    again, _ = scanned(tasks, tmp_path / "other")
    assert (rows.keys, rows.failures) == (again.keys, again.failures)


def test_the_costs_of_a_shard_are_written_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = list[Path]()

    def write(path: Path, *given: Any) -> bool:
        written.append(path)
        return write_arrays(path, *given)

    monkeypatch.setattr(cost_cache, "write_arrays", write)
    shard = write_shard(tmp_path / "a.tar", samples("a", 40))
    options = replace(OPTIONS, cache=str(tmp_path / "kept"))
    rows, _ = scanned(tasks_of(shard), tmp_path / "out", options)
    assert len(rows.costs) == 40
    assert len(written) == 1
    data = TarDataset(shard, small, cache=tmp_path / "kept")
    assert None not in [data.known(index) for index in range(40)]


def test_a_shard_that_changed_is_scanned_again(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "a.tar", samples("a", 2))
    assert len(scanned(tasks_of(shard), tmp_path / "parts")[0]) == 2
    write_shard(shard, samples("b", 3))
    assert scanned(tasks_of(shard), tmp_path / "parts")[0].keys == ("b0", "b1", "b2")


def test_other_settings_find_other_costs(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "a.tar", samples("a", 2))
    few, _ = scanned(tasks_of(shard), tmp_path / "parts")
    options = ScanOptions("tests.tools.analyze.test_scan:larger")
    more, _ = scanned(tasks_of(shard), tmp_path / "parts", options)
    assert (more.column("tokens") > few.column("tokens")).all()


def test_a_sample_is_drawn_once_and_the_same_for_everybody(tmp_path: Path) -> None:
    for name in "abc":
        write_shard(tmp_path / f"{name}.tar", samples(name, 10))
    tasks = [ScanTask("tar", (str(tmp_path / f"{name}.tar"),)) for name in "abc"]
    rows, total = scanned(tasks, tmp_path / "parts", sample=7)
    assert (len(rows), total) == (7, 30)
    assert len(set(rows.keys)) == 7
    assert scanned(tasks, tmp_path / "other", sample=7)[0].keys == rows.keys


def test_decoding_finds_what_headers_do_not_say(tmp_path: Path) -> None:
    found = samples("a", 2)
    whole = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(whole, "PNG")
    found["a1"]["png"] = whole.getvalue()[:4000]
    shard = write_shard(tmp_path / "a.tar", found)
    assert len(scanned(tasks_of(shard), tmp_path / "parts")[0]) == 2
    deep = ScanOptions(OPTIONS.transform_path, decode=True)
    rows, _ = scanned(tasks_of(shard), tmp_path / "parts", deep)
    assert rows.keys == ("a0",)
    assert [bad.key for bad in rows.failures] == ["a1"]


def test_a_dataset_by_import_path_is_scanned_in_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "lengths = list(range(1, 2500))\ndef cost(n):\n    return {'tokens': n}\n"
    (tmp_path / "my_lengths.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    options = ScanOptions(cost_path="my_lengths:cost")
    rows, total = scanned(tasks_of("my_lengths:lengths"), tmp_path / "parts", options)
    assert rows.column("tokens").tolist() == list(range(1, 2500))
    assert (total, len(list((tmp_path / "parts").iterdir()))) == (2499, 3)
    with pytest.raises(ValueError, match="no_such"):
        scanned(tasks_of("no_such:thing"), tmp_path / "parts", options)


def test_many_tiny_shards_are_listed_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    empty = bytes(1024)
    first = folder / "00000.tar"
    first.write_bytes(empty)
    for n in range(1, 3000):
        os.link(first, folder / f"{n:05}.tar")
    tasks = find_tasks([str(folder)])
    paths = [path for task in tasks for path in task.paths]
    assert paths == sorted(paths)
    assert len(paths) == 3000
    assert max(len(task.paths) for task in tasks) == 256


def test_sources_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.tar"):
        tasks_of(tmp_path / "nowhere.tar")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no"):
        tasks_of(tmp_path / "empty")


def test_an_index_of_a_shard_points_to_the_shard(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "a.tar", samples("a", 20))
    scanned(tasks_of(shard), tmp_path / "parts")
    with pytest.raises(ValueError, match=r"analyze a\.tar itself"):
        measure_task(ScanTask("table", (str(tmp_path / "a.tar.index.npz"),)), OPTIONS)


def test_a_failing_disk_ends_the_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = write_shard(tmp_path / "a.tar", samples("a", 2))

    def failing(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("counterpoise.workers.tar.dataset.read_members", failing)
    with pytest.raises(OSError, match="Input/output"):
        scanned(tasks_of(shard), tmp_path / "parts")


def test_ctrl_c_ends_with_130_and_leaves_what_was_scanned(tmp_path: Path) -> None:
    """A real interrupt, sent while a task waits at a gate; the next run scans the rest only."""
    (tmp_path / "slow_data.py").write_text(GATED)
    out, gate = tmp_path / "out", tmp_path / "gate"
    os.mkfifo(gate)
    words = [COMMAND, "analyze", "slow_data:data"]
    words += ["--cost", "slow_data:cost", "--workers", "1", "--out", str(out)]
    process = Popen(words, cwd=tmp_path, stderr=subprocess.PIPE)
    with gate.open("rb"):  # opens when the second task has come to the gate
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted" in printed
    assert len(list((out / "parts").iterdir())) == 1
    gate.unlink()
    done = run(words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    counts = json.loads((out / "report.json").read_text())
    assert counts["samples"] == 1500
    assert (tmp_path / "seen.txt").read_text().split() == [str(n) for n in range(1500)]


def test_an_interrupt_hands_over_what_has_been_begun(tmp_path: Path) -> None:
    """With several processes too: nothing that was scanned is thrown away."""
    for number in range(12):
        write_shard(tmp_path / f"{number:02}.tar", samples(f"s{number}-", 2))
    tasks = [ScanTask("tar", (str(path),)) for path in sorted(tmp_path.glob("*.tar"))]
    finished: list[int] = []

    def done(count: int, _: int) -> None:
        if count == 1:
            os.kill(os.getpid(), signal.SIGINT)
        finished.append(count)

    with pytest.raises(KeyboardInterrupt):
        scanned(tasks, tmp_path / "parts", run=on_cores(2), progress=done)
    assert len(list((tmp_path / "parts").iterdir())) == finished[-1]
    again: list[int] = []
    rows, _ = scanned(tasks, tmp_path / "parts", progress=lambda count, _: again.append(count))
    assert again[0] == finished[-1]
    assert len(rows) == 24


GATED = """
import signal
from pathlib import Path
data = list(range(1500))
def cost(n):
    if n == 1024 and Path("gate").exists():
        with open("gate", "wb"):
            signal.pause()
    with open("seen.txt", "a") as file:
        file.write(f"{n} ")
    return {"tokens": n + 1}
"""

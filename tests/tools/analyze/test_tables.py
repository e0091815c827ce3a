"""Tables of costs: three formats give the same rows, and bad values stay out with a reason."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoise.tools.analyze.scan.rows import read_table
from counterpoise.workers.sources.costs import bad_cost

COLUMNS: dict[str, list[Any]] = {
    "tiles": [1, 0, 3],
    "tokens": [5, 7, 9],
    "key": ["a", "b", "c"],
    "source": ["web", "web", "book"],
}


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    if path.suffix == ".npz":
        arrays: dict[str, Any] = {name: np.array(values) for name, values in columns.items()}
        np.savez(path, **arrays)
    elif path.suffix == ".jsonl":
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        importlib.import_module("pyarrow.parquet").write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".jsonl", ".parquet"])
def test_all_formats_give_the_same_rows(suffix: str, tmp_path: Path) -> None:
    found = read_table(write(tmp_path / f"costs{suffix}", COLUMNS))
    assert found.resources == ("tiles", "tokens")
    assert found.costs.tolist() == [[1, 5], [0, 7], [3, 9]]
    assert found.keys == ("a", "b", "c")
    assert [found.sources[k] for k in found.source_of.tolist()] == ["web", "web", "book"]


@pytest.mark.parametrize("suffix", [".npz", ".jsonl", ".parquet"])
def test_rows_with_nan_stay_out_by_name(suffix: str, tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {**COLUMNS, "tokens": [5.0, float("nan"), 9.0]}
    found = read_table(write(tmp_path / f"costs{suffix}", columns))
    assert found.costs.tolist() == [[1, 5], [3, 9]]
    (bad,) = found.failures
    assert (bad.key, bad.kind) == ("b", "unreadable")
    assert bad.reason.startswith("cost 'tokens' is nan, allowed are whole numbers from 0")


@pytest.mark.parametrize("value", [-1.0, 1.5, 1e300, float("inf")])
def test_other_values_that_are_no_costs_say_why(value: float, tmp_path: Path) -> None:
    found = read_table(write(tmp_path / "t.npz", {"tokens": [4.0, value]}))
    assert found.failures[0].reason == bad_cost("tokens", value)
    assert found.failures[0].key == "row 1"


def test_lines_that_are_no_json_are_named_and_the_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"tokens": 3}\nnot json\n[1]\n\n{"tiles": 1}\n{"tokens": 4}\n')
    found = read_table(path, ("tokens",))
    assert found.costs.tolist() == [[3], [4]]
    assert [bad.key for bad in found.failures] == ["line 2", "line 3", "row 1"]


def test_missing_columns_say_what_is_there(tmp_path: Path) -> None:
    path = write(tmp_path / "t.npz", {"pixels": [1, 2]})
    with pytest.raises(ValueError, match=r"none of .*; it has pixels: .*--resource NAME"):
        read_table(path)
    with pytest.raises(ValueError, match="no column 'tokens'; it has pixels"):
        read_table(path, ("tokens",))
    assert read_table(path, ("pixels",)).resources == ("pixels",)


def test_columns_of_other_lengths_and_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'tokens' has 3 rows, 'tiles' has 2"):
        read_table(write(tmp_path / "a.npz", {"tiles": [1, 2], "tokens": [1, 2, 3]}))
    with pytest.raises(ValueError, match="costs must be whole numbers"):
        read_table(write(tmp_path / "b.npz", {"tokens": ["x", "y"]}))


def test_files_that_are_no_tables_are_refused_in_a_line(tmp_path: Path) -> None:
    for name in ("a.npz", "a.parquet"):
        (tmp_path / name).write_bytes(b"no table")
        if name.endswith("parquet"):
            pytest.importorskip("pyarrow")
        with pytest.raises(ValueError, match=f"{name} "):
            read_table(tmp_path / name)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", tokens=np.array([object()], dtype=object))
    with pytest.raises(ValueError, match=r"column 'tokens' cannot be read .*plain array"):
        read_table(tmp_path / "t.npz")


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module

    def absent(name: str, package: str | None = None) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", absent)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match=r"pip install 'counterpoise\[parquet\]'"):
        read_table(tmp_path / "t.parquet")

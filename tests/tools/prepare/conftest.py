"""`prepare` as it is called."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterpoise.tools.cli import main
from tests.workers.conftest import shard as shard

Prepare = Callable[..., dict[str, Any]]


@pytest.fixture
def prepare(capsys: pytest.CaptureFixture[str]) -> Prepare:
    """Return a function that runs the command, in this process, and returns its report."""

    def run(source: object, *words: object) -> dict[str, Any]:
        alone = () if "--workers" in words else ("--workers", "1")
        with pytest.raises(SystemExit) as end:
            main(["prepare", str(source), *alone, *map(str, words), "--json"])
        printed = capsys.readouterr()
        assert end.value.code == 0, printed.err
        found: dict[str, Any] = json.loads(printed.out.splitlines()[-1])
        return found

    return run


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs the command, which fails, and returns its one line."""

    def run(source: object, *words: object, code: int = 2) -> str:
        with pytest.raises(SystemExit) as end:
            main(["prepare", str(source), "--workers", "1", *map(str, words)])
        assert end.value.code == code
        last = capsys.readouterr().err.rstrip().rpartition("counterpoise: ")[2]
        assert "\n" not in last
        return last

    return run


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}

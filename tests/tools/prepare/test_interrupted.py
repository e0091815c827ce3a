"""A preparation that was killed or interrupted, at whatever moment, goes on to the same bytes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterpoise.tools.cli import main
from counterpoise.tools.prepare import log, shards
from counterpoise.workers.sources import cache_files
from counterpoise.workers.tar import writing
from tests.tools.prepare.conftest import contents

HERE = "tests.tools.prepare.data_sets"
WORDS = ["prepare", f"{HERE}:Many", "--samples-per-shard", "5", "--workers", "1", "--out"]


def run_until(moment: int, out: Path) -> None:
    """Prepare, and be killed at one of the moments at which a file changes, before or after it."""
    passed = 0

    def watched(action: Callable[..., Any]) -> Callable[..., Any]:
        def act(*given: Any, **named: Any) -> Any:
            nonlocal passed
            for each in range(2):
                passed += 1
                if passed == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                if not each:
                    found = action(*given, **named)
            return found

        return act

    for owner, name in (
        (os, "write"), (os, "fsync"), (os, "ftruncate"), (os, "open"), (Path, "replace"),
        (Path, "chmod"), (Path, "unlink"), (Path, "mkdir"), (tempfile, "mkstemp"),
        (writing.ShardWriter, "write"), (shards, "open_index"), (cache_files, "replace_file"),
        (log, "replace_file"),
    ):  # fmt: skip
        setattr(owner, name, watched(getattr(owner, name)))
    sys.stderr = sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    main([*WORDS, str(out)])


def test_killed_at_every_moment_it_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main([*WORDS, str(tmp_path / "whole")])
    context = multiprocessing.get_context("fork")
    ends, moment = list[int](), 1
    while 0 not in ends:
        # Each moment of a run from the start, and after it of the run that goes on.
        process = context.Process(target=run_until, args=(moment, tmp_path / "out"))
        process.start()
        process.join()
        ends.append(process.exitcode or 0)
        moment += 3
    assert {*ends} == {0, -signal.SIGKILL}
    assert len(ends) > 10
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_ctrl_c_leaves_whole_shards_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        main([*WORDS, str(tmp_path / "whole")])
    encode, encoded = writing.encode_sample, list[int]()

    def interrupted(raw: Any) -> Any:
        encoded.append(0)
        if len(encoded) == 13:
            raise KeyboardInterrupt
        return encode(raw)

    with monkeypatch.context() as patched:
        patched.setattr(shards, "encode_sample", interrupted)
        with pytest.raises(SystemExit) as end:
            main([*WORDS, str(tmp_path / "out")])
    assert end.value.code == 130
    assert sorted(contents(tmp_path / "out")) == ["000000.tar", "000001.tar", "prepare.log"]
    with pytest.raises(SystemExit):
        main([*WORDS, str(tmp_path / "out")])
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.long  # each run imports all in three processes
def test_killed_with_its_workers_at_work_it_goes_on(data: Path, tmp_path: Path) -> None:
    words = [str(Path(sys.executable).with_name("counterpoise")), "prepare", str(data / "shards")]
    words += ["--samples-per-shard", "20", "--workers", "2", "--out"]
    subprocess.run([*words, str(tmp_path / "whole")], check=True)
    out = tmp_path / "out"
    for shards_before in (0, 5, 20, 40):
        process = subprocess.Popen([*words, str(out)])
        while process.poll() is None and len([*out.glob("*.tar")]) <= shards_before:
            time.sleep(0.001)
        process.kill()
        process.wait()
    subprocess.run([*words, str(out)], check=True)
    assert contents(out) == contents(tmp_path / "whole")

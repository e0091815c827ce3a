"""The small form of `make fuzz`, and that its oracle sees what is wrong."""

import json
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from counterpoise.loader import LoaderError
from counterpoise.loader.resume import ledger
from tests.fuzz import kept_files, ledgers, outcomes, shard_changes
from tests.fuzz.outcomes import Outcome, run_target
from tests.fuzz.shards import write_shards
from tests.fuzz.targets import RUNS, TARGETS

SMALL = dict.fromkeys(TARGETS, 8) | {"ledgers": 120, "kept-files": 40}
SMALL["shard-changes"] = 24


@pytest.mark.parametrize("name", TARGETS)
def test_every_trial_is_right_or_a_clear_error(name: str, tmp_path: Path) -> None:
    report = run_target(name, TARGETS[name](tmp_path), SMALL[name], first=RUNS[name])
    assert report.good, json.dumps(report.failures, indent=1)
    assert report.runs == SMALL[name]


def test_a_target_sees_ledgers_that_are_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = TARGETS["ledgers"](tmp_path)
    monkeypatch.setattr(ledger, "is_as_written", lambda _: True)
    assert run_target("ledgers", trial, 60).outcomes["silent"]


def test_a_target_sees_shards_that_nobody_looks_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from counterpoise.workers.sources.data_files import DataFiles

    monkeypatch.setattr(DataFiles, "check", lambda *_: None)
    monkeypatch.setattr(shard_changes, "CHANGES", (shard_changes.rewritten,))
    trial = TARGETS["shard-changes"](tmp_path)
    assert run_target("shard-changes", trial, 8).outcomes["silent"]


def test_a_target_sees_kept_files_that_are_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counterpoise.workers.sources.cache_files._digest", lambda _: bytes(16))
    monkeypatch.setattr("zipfile.crc32", lambda *_: 0)
    trial = kept_files.KeptFiles(tmp_path)
    assert run_target("kept-files", trial.trial, 30).outcomes["silent"]


def test_outcomes_are_counted_and_the_bad_ones_kept_with_their_seeds() -> None:
    def trial(random: Random) -> Outcome:
        choice = random.choice(("right", "refused", "silent", "raises"))
        if choice == "raises":
            raise KeyError("nobody foresaw it")
        return Outcome(choice, f"{choice}: done")  # type: ignore[arg-type]

    report = run_target("some", trial, 40, first=5)
    found = report.as_json()
    assert json.loads(json.dumps(found)) == found
    assert sum(found["outcomes"].values()) == report.runs == 40
    assert found["outcomes"]["unclear"] > 0
    assert not report.good
    seeds = [each["seed"] for each in report.failures]
    assert seeds == sorted(seeds)
    again = run_target("some", trial, 1, first=seeds[0])
    assert again.failures == report.failures[:1]


def test_what_does_not_end_is_counted_as_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    def trial(_: Random) -> Outcome:
        while True:
            try:
                signal.pause()
            except Exception:
                return Outcome("right", "an error that the product has taken for its own")

    monkeypatch.setattr(outcomes, "DEADLINE_S", 0.05)
    assert run_target("endless", trial, 1).outcomes == {"hung": 1}


def test_an_error_that_names_nothing_is_not_clear() -> None:
    assert ledgers.named(ValueError("ledger.epoch is -1"), "").result == "refused"
    assert ledgers.named(LoaderError("something is wrong"), "").result == "unclear"
    assert ledgers.named(ValueError("ledger.epoch\nis -1"), "").result == "unclear"


@pytest.fixture
def shard(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A shard, and its samples."""
    texts = write_shards(tmp_path, Random(3))
    return tmp_path / "0.tar", {key: text for key, text in texts.items() if key.startswith("0-")}


@pytest.mark.parametrize("change", shard_changes.CHANGES, ids=lambda change: change.__name__)
def test_each_change_changes_the_shard(change: Any, shard: tuple[Path, dict[str, str]]) -> None:
    path, texts = shard
    before, state = path.read_bytes(), path.stat()
    change(path, texts, Random(4))
    if change.__name__ == "gone":
        assert not path.exists()
    elif change.__name__ in ("copied", "touched"):
        now = path.stat()
        assert path.read_bytes() == before
        assert (now.st_ino, now.st_mtime_ns) != (state.st_ino, state.st_mtime_ns)
    else:
        assert path.read_bytes() != before

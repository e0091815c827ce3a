"""Who waits for the first batch is told soon what it waits for."""

import logging
from pathlib import Path

import pytest

from counterpoise.loader import DataLoader
from counterpoise.loader.remote import balancer_process
from counterpoise.loader.step import waiting
from tests.loader import balanced_data as made


class Opener(logging.Handler):
    """Makes a file when a wait for the first batch is logged, which the data set waits for."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.texts = path, list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        if "its first batch" in self.texts[-1]:
            self.path.touch()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_wait_for_the_first_batch_says_what_is_missing(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "open"
    opener = Opener(path)
    monkeypatch.setattr(waiting, "FIRST_LOG_S", 0.0)
    logging.getLogger("counterpoise").addHandler(opener)
    # Without workers this process would wait for itself: no sample waits for the file.
    dataset = made.Waiting(16, 3 if workers else -1, str(path))
    loader = DataLoader(
        dataset, 2, shuffle=True, balance="fixed", ranks=(0, 1), num_workers=workers,
        collate_fn=list, timeout=120,
    )  # fmt: skip
    try:
        assert len(list(loader)) == 8
    finally:
        logging.getLogger("counterpoise").removeHandler(opener)
        loader.close()
    told = [text for text in opener.texts if "its first batch" in text]
    assert told
    assert all("; still missing: " in text for text in told)


@pytest.mark.usefixtures("through_balancer")
def test_a_balancer_that_starts_slowly_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(balancer_process, "FIRST_LOG_S", 0.0)
    loader = DataLoader(
        range(8), 2, shuffle=True, balance="fixed", ranks=(0, 1), num_workers=1,
        cost={"tokens": [1] * 8}, collate_fn=list,
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "counterpoise"):
        assert len(list(loader)) == 4
    loader.close()
    assert any("waits for the balancer's process (pid" in each.message for each in caplog.records)

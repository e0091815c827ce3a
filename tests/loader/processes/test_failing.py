"""A rank that fails, ends or stops: the other says which, at which step and why, in time."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forking.popen import Popen
from tests.loader.processes import failing_trainer as trainer

pytestmark = pytest.mark.slow

LIMIT_S = 120
WHO = r"rank 1 \(process 1, host \S+, pid \d+\)"
# Label tokens may have been told a step ahead.
LABELS = "waits for the label tokens of step [23] from"
LOST = "LoaderError: other ranks will say nothing more: "
LATE = "TimeoutError: no batch within 10 s: "
ENDED, CLOSED = ", which has ended", ", which has closed its loader"
WHY = r" \(ValueError: an image of no pixels\)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What each rank of each manner says is in a file of this folder."""
    made = tmp_path_factory.mktemp("failing")
    process = Popen(
        [sys.executable, trainer.__file__, str(made), *trainer.MANNERS],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(LIMIT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return made


@pytest.mark.parametrize(
    ("manner", "said"),
    [
        ("raise", f"{LOST}{LABELS} {WHO}{CLOSED}{WHY}$"),
        (
            "holes",
            rf"{LOST}waits for what other ranks say \(holes of step [23]\): {WHO}{CLOSED}{WHY}$",
        ),
        ("exit", f"{LOST}{LABELS} {WHO}({CLOSED}|{ENDED})$"),
        ("kill", f"{LOST}{LABELS} {WHO}{ENDED}$"),
        ("stop", f"{LATE}{LABELS} {WHO}, which is stopped$"),
    ],
)
def test_the_other_rank_says_who_has_failed_at_which_step_and_why(
    manner: str, said: str, folder: Path
) -> None:
    text = (folder / f"{manner}-0").read_text()
    assert re.match(said, text), text


def test_a_parameter_without_a_gradient_is_named_by_torch_or_as_what_may_hold_up_ranks(
    folder: Path,
) -> None:
    # Torch's own error comes where the other rank has told its label tokens ahead of need.
    text = (folder / "unused-1").read_text()
    who = WHO.replace("1", "0", 2)
    late = rf"{LATE}{LABELS} {who}; one that runs .*find_unused_parameters=True"
    assert re.match(f"{late}|RuntimeError: Expected to have finished reduction", text), text
    assert (folder / "unused-0").read_text().startswith("RuntimeError: ")

"""Failures are classified, read again where that may help, and written to dead letters."""

import pytest

from counterpoise.workers.sources.dead_letters import append_letter, read_letters
from counterpoise.workers.sources.failures import RETRIES, SkippedSample, load_with_retries
from counterpoise.workers.sources.interface import SampleError

DISK = OSError(5, "Input/output error")
DATA = SampleError("k", "no text")


class Failing:
    """Fails `times` times, then works."""

    def __init__(self, error, times):
        self.error, self.times, self.calls = error, times, 0

    def __call__(self):
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return "sample"


def _load(load, retries=RETRIES):
    pauses = []
    try:
        return load_with_retries(load, pauses.append, retries), pauses
    except Exception as error:
        return error, pauses


@pytest.mark.parametrize(
    ("error", "reason", "kind"),
    [
        (DATA, "no text", "data"),
        (OSError("image file is truncated"), "OSError: image file is truncated", "data"),
        (KeyError("x"), "KeyError: 'x'", "code"),
    ],
)
def test_broken_data_is_raised_at_once_and_described(error, reason, kind):
    load = Failing(error, 1)
    assert _load(load) == (error, [])
    assert load.calls == 1
    assert SkippedSample.from_error(error, "k") == SkippedSample("k", reason, kind)


def test_a_name_in_a_sample_error_cannot_act_on_a_terminal():
    evil = "\x1b[31m\u202e"
    error = SampleError(evil, f"{evil}.jpg: no picture", f"{evil}.tar")
    assert str(error).isprintable()
    assert error.reason == r"\x1b[31m\u202e.jpg: no picture"
    assert error.key == evil


def test_letters_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "dead.jsonl"
    assert read_letters(path) == []
    letters = [SkippedSample(f"k{n}", "no\ntext é", "data", "a.tar") for n in range(3)]
    for letter in letters:
        append_letter(path, letter)
    assert read_letters(path) == letters
    assert len(path.read_text().splitlines()) == 3


def test_a_letter_is_bounded(tmp_path):
    assert len(SkippedSample("k", "x" * 10_000_000, "data", "s").line()) < 3000

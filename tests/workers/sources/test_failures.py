"""Failures are classified, read again where that may help, and written to dead letters."""

import pytest

from counterpoise.workers.sources.failures import (
    RETRIES,
    SkippedSample,
    append_letter,
    load_with_retries,
    read_letters,
)
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


def test_io_errors_are_tried_again_with_growing_pauses():
    assert _load(Failing(DISK, 3)) == ("sample", [0.1, 0.2, 0.4])


def test_a_disk_that_stays_broken_is_raised():
    load = Failing(DISK, 99)
    error, pauses = _load(load, (0.1, 0.2))
    assert error is DISK
    assert (load.calls, len(pauses)) == (3, 2)


def test_a_file_that_is_gone_is_not_waited_for():
    gone = FileNotFoundError(2, "No such file")
    assert _load(Failing(gone, 1)) == (gone, [])


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


def test_a_sample_error_names_its_own_key():
    assert SkippedSample.from_error(DATA, "another").key == "k"


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

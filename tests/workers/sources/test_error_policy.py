"""What a failure leads to, under each policy."""

import pytest

from counterpoise.workers.sources.dead_letter import DeadLetter, append_letter, read_letters
from counterpoise.workers.sources.error_policy import ErrorPolicy, SkippedSample, attempt
from counterpoise.workers.sources.interface import SampleError

DISK = OSError(5, "Input/output error")
DATA = SampleError("k", "no text")


class Failing:
    """Fails so many times, then works."""

    def __init__(self, error, times):
        self.error, self.times, self.calls = error, times, 0

    def __call__(self):
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return "sample"


def _attempt(load, on_error, **settings):
    pauses = []
    policy = ErrorPolicy(on_error, **settings)
    try:
        return attempt(load, "k", policy, pauses.append), pauses
    except Exception as error:
        return error, pauses


@pytest.mark.parametrize("on_error", ["raise", "skip", "retry"])
def test_io_errors_are_tried_again_with_growing_pauses(on_error):
    load = Failing(DISK, 3)
    settings = {"retries": 3, "backoff_s": 1, "backoff_max_s": 3}
    assert _attempt(load, on_error, **settings) == ("sample", [1, 2, 3])


@pytest.mark.parametrize("on_error", ["raise", "skip", "retry"])
def test_a_disk_that_stays_broken_is_raised(on_error):
    load = Failing(DISK, 99)
    error, pauses = _attempt(load, on_error, retries=2)
    assert error is DISK
    assert (load.calls, len(pauses)) == (3, 2)


def test_a_file_that_is_gone_is_not_waited_for():
    gone = FileNotFoundError(2, "No such file")
    assert _attempt(Failing(gone, 1), "skip") == (gone, [])


def test_broken_data_is_raised_at_once():
    load = Failing(DATA, 1)
    assert _attempt(load, "raise") == (DATA, [])
    assert load.calls == 1


@pytest.mark.parametrize(
    ("error", "reason", "kind"),
    [
        (DATA, "no text", "data"),
        (OSError("image file is truncated"), "OSError: image file is truncated", "data"),
        (KeyError("x"), "KeyError: 'x'", "code"),
    ],
)
def test_broken_data_is_a_hole_under_skip(error, reason, kind):
    assert _attempt(Failing(error, 1), "skip") == (SkippedSample("k", reason, kind), [])


def test_everything_is_tried_again_under_retry():
    assert _attempt(Failing(DATA, 1), "retry")[0] == "sample"
    assert _attempt(Failing(DATA, 99), "retry", retries=1)[0] is DATA


@pytest.mark.parametrize("settings", [{"on_error": "ignore"}, {"retries": -1}, {"backoff_s": -1}])
def test_a_wrong_policy_is_refused(settings):
    with pytest.raises(ValueError, match="must"):
        ErrorPolicy(**settings)


def test_letters_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "dead.jsonl"
    assert read_letters(path) == []
    letters = [DeadLetter(f"k{n}", "a.tar", "no\ntext é", "data") for n in range(3)]
    for letter in letters:
        append_letter(path, letter)
    assert read_letters(path) == letters
    assert len(path.read_text().splitlines()) == 3


def test_a_letter_is_bounded(tmp_path):
    assert len(DeadLetter("k", "s", "x" * 10_000_000, "data").line()) < 3000

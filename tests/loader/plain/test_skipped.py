"""`on_error` without balancing: batches are smaller or refilled, nothing else changes."""

import traceback
from itertools import chain

import pytest
import torch
import torch.utils.data as torch_data

from counterpoise import OnError
from counterpoise.loader import DataLoader, LoaderError
from counterpoise.workers.sources.dead_letters import read_letters
from tests.loader.plain import skipped_data as made

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
WORKERS = [0, 2]
BROKEN = {0, 1, 2, 3, 9, 16}


def numbers(loader):
    return [batch.tolist() for batch in loader]


def chunks(items, size):
    return [items[at : at + size] for at in range(0, len(items), size)]


# --- streams


@pytest.mark.parametrize("how", ["yield", "raise in __next__", "raise in a part"])
def test_refill_keeps_the_batches_size(how):
    loader = DataLoader(made.Stream(11, {1, 2, 7}, how), batch_size=3, on_error="refill")
    assert numbers(loader) == [[0, 3, 4], [5, 6, 8], [9, 10]]
    assert loader.left_out == 3


@pytest.mark.parametrize("how", ["yield", "raise in __next__", "raise in a part"])
def test_skip_makes_batches_smaller_and_passes_over_empty_ones(how):
    loader = DataLoader(made.Stream(11, {1, 3, 4, 5}, how), batch_size=3, on_error="skip")
    assert numbers(loader) == [[0, 2], [6, 7, 8], [9, 10]]
    assert loader.left_out == 4


@pytest.mark.parametrize("on_error", ["skip", "refill"])
def test_workers_leave_out_the_same_of_their_own_part(on_error):
    broken = {2, 3, 8, 11}
    loader = DataLoader(made.Stream(24, broken), batch_size=3, num_workers=2, on_error=on_error)
    found = numbers(loader)
    assert sorted(chain(*found)) == [n for n in range(24) if n not in broken]
    for part in (0, 1):
        mine = [batch for batch in found if batch[0] % 2 == part]
        good = [n for n in range(part, 24, 2) if n not in broken]
        all_ = [[n for n in chunk if n in good] for chunk in chunks(range(part, 24, 2), 3)]
        assert mine == (chunks(good, 3) if on_error == "refill" else all_)
    assert loader.left_out == len(broken)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("how", ["raise", "raise below a map"])
def test_a_generator_that_raises_is_an_error_and_never_a_silent_end(workers, how):
    stream = made.Stream(100, {5}, how)
    loader = DataLoader(stream, batch_size=2, num_workers=workers, on_error="skip")
    with pytest.raises(RuntimeError, match=r"(?s)sample 'k5'.*let it yield the SampleError"):
        numbers(loader)


def test_drop_last_drops_what_the_stream_did_not_fill():
    def of(count, broken, on_error):
        stream = made.Stream(count, broken)
        return numbers(DataLoader(stream, batch_size=3, drop_last=True, on_error=on_error))

    assert of(6, {1}, "skip") == [[0, 2], [3, 4, 5]]
    assert of(7, {1}, "skip") == [[0, 2], [3, 4, 5]]
    assert of(6, {1}, "refill") == [[0, 2, 3]]
    assert of(7, {1}, "refill") == [[0, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("workers", WORKERS)
def test_what_a_dropped_batch_lacks_is_on_record(tmp_path, workers):
    letters = tmp_path / "letters.jsonl"
    loader = DataLoader(
        made.Stream(4, {0, 1, 2, 3}), batch_size=4, drop_last=True, num_workers=workers,
        on_error=OnError("refill", dead_letter=str(letters)),
    )  # fmt: skip
    assert numbers(loader) == []
    assert sorted(letter.key for letter in read_letters(letters)) == ["k0", "k1", "k2", "k3"]


def test_a_stream_without_batches_leaves_the_sample_out():
    loader = DataLoader(made.Stream(5, {0, 3}), batch_size=None, on_error="skip")
    assert numbers(loader) == [1, 2, 4]


def test_a_stream_that_is_broken_altogether_ends():
    loader = DataLoader(made.Endless(), batch_size=2, on_error="refill")
    with pytest.raises(RuntimeError, match="10000 samples in a row cannot be used, the last"):
        next(iter(loader))


# --- map-style datasets


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("together", [False, True])
def test_a_map_style_batch_lacks_what_cannot_be_used(workers, together):
    data = made.Mapped(12, {1, 4, 6, 7, 8}, together=together)
    loader = DataLoader(data, batch_size=3, num_workers=workers, on_error="skip")
    assert numbers(loader) == [[0, 2], [3, 5], [9, 10, 11]]
    assert loader.left_out == 5


@pytest.mark.parametrize("workers", WORKERS)
def test_each_is_on_record_once_with_its_reason(tmp_path, workers):
    letters = tmp_path / "letters.jsonl"
    loader = DataLoader(
        made.Mapped(8, {2, 5}), batch_size=2, num_workers=workers,
        on_error=OnError("skip", dead_letter=str(letters)),
    )  # fmt: skip
    numbers(loader)
    found = {letter.key: letter for letter in read_letters(letters)}
    assert set(found) == {"2", "k5"}
    assert (found["2"].kind, found["2"].reason) == ("code", "KeyError: 'label'")
    assert (found["k5"].kind, found["k5"].reason) == ("data", "cut")
    assert {letter.source for letter in found.values()} == {"Mapped"}


@pytest.mark.parametrize("workers", WORKERS)
def test_a_disk_that_fails_is_no_hole(tmp_path, workers):
    letters = tmp_path / "letters.jsonl"
    loader = DataLoader(
        made.Mapped(4, (), disk={3}), batch_size=2, num_workers=workers,
        on_error=OnError("skip", dead_letter=str(letters)),
    )  # fmt: skip
    with pytest.raises(OSError, match=r"tried 4 times\): \"sample '3' of Mapped\""):
        numbers(loader)
    assert letters.read_text() == ""


# --- how many


@pytest.mark.parametrize("workers", WORKERS)
def test_more_than_max_errors_end_the_loop(tmp_path, workers):
    letters = str(tmp_path / "letters.jsonl")

    def make(broken, max_errors):
        on_error = OnError("skip", dead_letter=letters, max_errors=max_errors)
        return DataLoader(
            made.Mapped(40, broken), batch_size=2, num_workers=workers, on_error=on_error
        )

    assert len(numbers(make({3, 9}, 2))) == 20
    loader = make({3, 9, 11}, 2)
    with pytest.raises(LoaderError, match="3 samples of this epoch could not be used") as raised:
        numbers(loader)
    for words in ("max_errors allows 2", letters, "the last: 'k11': cut"):
        assert words in str(raised.value)
    part = make({3, 9, 11}, 0.05)
    with pytest.raises(LoaderError, match="max_errors allows 2"):
        numbers(part)


def test_every_epoch_is_counted_by_itself():
    loader = DataLoader(made.Mapped(6, {1}), batch_size=2, on_error=OnError("skip", max_errors=1))
    assert [len(numbers(loader)) for _ in range(3)] == [3, 3, 3]
    assert loader.left_out == 1


# --- resume


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loop_goes_on_where_it_was_also_behind_an_empty_batch(workers, shuffle):
    def make():
        return DataLoader(
            made.Mapped(24, BROKEN), batch_size=2, num_workers=workers,
            shuffle=shuffle, on_error="skip",
        )  # fmt: skip

    for position in (0, 1, 4, 8) if workers else range(9):
        torch.manual_seed(3)
        loader = make()
        iterator = iter(loader)
        before = [next(iterator).tolist() for _ in range(position)]
        state, counted = loader.state_dict(), loader.left_out
        rest = [batch.tolist() for batch in iterator]
        resumed = make()
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert resumed.left_out == counted
        torch.manual_seed(99)
        assert numbers(resumed) == rest, before
        assert resumed.left_out == 6
        assert sorted(chain(*before, *rest)) == [n for n in range(24) if n not in BROKEN]


# --- what is refused, and what does not change


@pytest.mark.parametrize(
    ("dataset", "given", "words"),
    [
        (made.Mapped(4, ()), {"on_error": "refill"}, "got Mapped, map-style: use on_error='skip'"),
        (made.Stream(4, ()), {"on_error": "refill", "batch_size": None}, "without batch_size"),
        (made.Mapped(4, ()), {"on_error": "hope"}, "on_error is 'hope', allowed are"),
        (made.Stream(4, ()), {"on_error": OnError("skip", max_errors=0.1)}, "give a count"),
        (made.Mapped(4, ()), {"on_error": "refill", "balance": "isf"}, "cannot be balanced: a pl"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(dataset, given, words):
    with pytest.raises(ValueError, match=r".") as raised:
        DataLoader(dataset, **given)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("workers", WORKERS)
def test_without_the_arguments_errors_are_torchs(workers):
    raised = []
    for kind in (torch_data.DataLoader, DataLoader):
        with pytest.raises((TypeError, AttributeError), match="SampleError") as caught:
            list(kind(made.Stream(6, {3}), batch_size=2, num_workers=workers))  # not a tensor
        traceback.clear_frames(caught.tb)  # or garbage collection waits 5 s for each worker
        with pytest.raises(Exception, match=r"k3") as caught:
            list(kind(made.Stream(6, {3}, "raise"), batch_size=2, num_workers=workers))
        raised.append((type(caught.value), str(caught.value).splitlines()[0]))
    assert raised[0] == raised[1]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("on_error", ["skip", "refill"])
def test_where_nothing_is_broken_batches_are_torchs(workers, on_error):
    stream = made.Stream(23, ())
    ours = DataLoader(stream, batch_size=4, num_workers=workers, on_error=on_error)
    theirs = torch_data.DataLoader(stream, batch_size=4, num_workers=workers)
    assert numbers(ours) == numbers(theirs)

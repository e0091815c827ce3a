"""Ranges ahead of need: the right bytes, within a bound of memory, each asked for once."""

import random
import threading

import pytest
from hypothesis import given, strategies as st

from counterpoise.workers.stores.read_ahead import ReadAhead, cut_range, join_ranges

DATA = random.Random(0).randbytes(10_000)
SPAN = st.tuples(st.integers(0, 9_999), st.integers(1, 600)).map(
    lambda span: (span[0], min(sum(span), len(DATA)))
)


@given(st.lists(SPAN, max_size=20), st.integers(0, 300), st.integers(1, 900))
def test_requests_cover_ranges_and_are_short(ranges, gap, most):
    requests = join_ranges(ranges, gap, most)
    assert all(0 < end - start <= most for start, end in requests)
    pieces = [(start, DATA[start:end]) for start, end in requests]
    for start, end in ranges:
        assert cut_range((start, end), pieces) == DATA[start:end]


class Reads:
    """A fetch that counts what was asked for, and what nobody has taken."""

    def __init__(self):
        self.asked, self.lock = [], threading.Lock()

    def __call__(self, thing, start, end):
        with self.lock:
            self.asked.append((thing, start, end))
        return thing[start:end]


@given(st.lists(SPAN, min_size=1, max_size=30), st.integers(1, 5), st.integers(1, 3000), st.data())
def test_any_order_gives_the_right_bytes(ranges, several, most, data):
    ahead = ReadAhead(Reads(), 4, most)
    wanted = [(DATA, *span) for span in ranges]
    ahead.expect(wanted)
    for _ in range(3):
        some = data.draw(st.lists(st.sampled_from(wanted), max_size=several))
        assert ahead.read(some) == [DATA[start:end] for _, start, end in some]
    ahead.expect(wanted[::-1])
    assert ahead.read(wanted) == [DATA[start:end] for _, start, end in wanted]
    ahead.expect([])
    assert ahead._held == 0
    assert not ahead._requests


def test_what_is_expected_is_asked_for_once_neighbours_together():
    reads = Reads()
    ahead = ReadAhead(reads, 4, 10**6)
    ahead.expect([(DATA, 0, 10), (DATA, 10, 20)])
    ahead.expect([(DATA, 10, 20), (DATA, 0, 10), (b"other", 0, 2)])
    assert ahead.read([(DATA, 0, 10), (DATA, 10, 20)]) == [DATA[:10], DATA[10:20]]
    assert ahead.read([(b"other", 0, 2)]) == [b"ot"]
    assert sorted(reads.asked, key=str) == sorted([(DATA, 0, 20), (b"other", 0, 2)], key=str)


def test_no_more_is_held_than_the_bound():
    reads, things = Reads(), [bytes([n]) * 1000 for n in range(50)]
    ahead = ReadAhead(reads, 4, 5000)
    wanted = [(thing, 0, 1000) for thing in things]
    ahead.expect(wanted)
    for number, each in enumerate(wanted):
        assert ahead._held <= 5000
        assert ahead.read([each]) == [things[number]]
        # read, held, and no further
        assert len(reads.asked) <= number + 1 + 5
    assert len(reads.asked) == 50


def test_an_error_is_its_readers_and_the_next_read_asks_again():
    failing = [OSError("once")]

    def fetch(thing, start, end):
        if failing:
            raise failing.pop()
        return thing[start:end]

    ahead = ReadAhead(fetch, 2, 100)
    ahead.expect([(DATA, 0, 10)])
    with pytest.raises(OSError, match="once"):
        ahead.read([(DATA, 0, 10)])
    assert ahead.read([(DATA, 0, 10)]) == [DATA[:10]]


def test_threads_share_what_was_read():
    reads = Reads()
    ahead = ReadAhead(reads, 4, 4000)
    wanted = [(DATA, at, at + 50) for at in range(0, 10_000, 50)]
    ahead.expect(wanted)
    wrong = []

    def read(some):
        wrong.extend(each for each in some if ahead.read([each]) != [DATA[each[1] : each[2]]])

    threads = [threading.Thread(target=read, args=(wanted[n::4],)) for n in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    assert ahead._held == 0

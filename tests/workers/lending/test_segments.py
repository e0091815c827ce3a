"""The division of a worker's memory: payloads never overlap, and room comes back."""

import random

import pytest

from counterpoise.workers.lending.segments import ALIGNMENT, LARGEST, SMALLEST, Segments, aligned


@pytest.mark.parametrize("seed", range(20))
def test_payloads_lie_apart_and_within_their_segments(seed: int) -> None:
    draw, book = random.Random(seed), Segments(40 << 10, 1 << 10, 8 << 10)
    live: list[tuple[int, int, int]] = []
    for _ in range(600):
        if live and draw.random() < 0.5:
            number, _, _ = live.pop(draw.randrange(len(live)))
            book.give(number, spoiled=draw.random() < 0.02)
            continue
        nbytes = int(2 ** draw.uniform(0, 12))
        place = book.take(nbytes)
        if place is None:
            continue
        number, start, end = place
        assert start + nbytes <= end <= book.size(number)
        assert start % ALIGNMENT == 0
        assert start + nbytes <= book.size(number)
        for other, first, end in live:
            assert other != number or start >= end or start + nbytes <= first
        live.append((number, start, start + nbytes))
        assert book.total_bytes <= book.most_bytes


@pytest.mark.parametrize("seed", range(20))
def test_room_that_is_not_used_is_given_to_the_next(seed: int) -> None:
    draw, book, before = random.Random(seed), Segments(8 << 10, 1 << 10, 8 << 10), (-1, 0)
    while (place := book.take(100, 500)) is not None:
        number, start, room = place
        assert room - start == min(500, book.size(number) - start)
        if number == before[0]:
            assert start == before[1]
        end = draw.randrange(start + 100, room + 1)
        book.shorten(number, end, room - end, 0)
        before = number, aligned(end)
    assert book.total_bytes == 8 << 10


def test_what_is_freed_in_order_is_used_again() -> None:
    book, live, numbers = Segments(1 << 20, 1 << 10, 4 << 10), list[int](), set[int]()
    for _ in range(1000):
        place = book.take(300)
        assert place is not None
        numbers.add(place[0])
        live.append(place[0])
        if len(live) > 8:
            book.give(live.pop(0))
    assert len(numbers) <= 5


def test_segments_grow_with_what_is_used_and_a_large_payload_has_its_own() -> None:
    book = Segments(1 << 30)
    sizes = []
    for _ in range(80):
        place = book.take(1 << 20)
        assert place is not None
        sizes.append(book.size(place[0]))
    assert sizes[0] == SMALLEST
    assert max(sizes) == LARGEST
    large = book.take(LARGEST + 1)
    assert large is not None
    assert book.size(large[0]) == LARGEST + SMALLEST


def test_there_is_no_room_beyond_the_limit() -> None:
    book = Segments(3 << 10, 1 << 10, 1 << 10)
    assert [book.take(1 << 10) is None for _ in range(4)] == [False, False, False, True]
    assert book.take(1 << 20) is None


def test_free_segments_make_room_for_a_larger_one() -> None:
    book = Segments(4 << 10, 1 << 10, 1 << 10)
    taken = [book.take(1 << 10) for _ in range(4)]
    for place in taken:
        assert place is not None
        book.give(place[0])
    assert book.take(3 << 10) is not None
    assert len(book.retired) == 3
    assert book.total_bytes <= 4 << 10


def test_a_spoiled_segment_is_given_up_once_it_is_empty() -> None:
    book = Segments(8 << 10, 1 << 10, 1 << 10)
    first, second = book.take(100), book.take(100)
    assert first is not None
    assert second is not None
    book.give(first[0], spoiled=True)
    assert not book.retired
    other = book.take(100)
    assert other is not None
    assert other[0] != first[0]
    book.give(second[0])
    assert book.retired == [first[0]]


def test_idle_memory_is_given_back() -> None:
    book = Segments(8 << 10, 1 << 10, 1 << 10)
    kept, gone = book.take(1 << 10), book.take(1 << 10)
    assert kept is not None
    assert gone is not None
    book.give(gone[0])
    book.trim()
    assert book.retired == [gone[0]]
    assert book.total_bytes == 1 << 10

"""The books of both sides: no run is written again that a rank may read."""

import random
from typing import Any

import pytest
from msgspec import structs

from counterpoise.workers.lending.borrower_book import BorrowerBook
from counterpoise.workers.lending.lender_book import LenderBook
from counterpoise.workers.lending.segments import Segments


def lender(most: int = 1 << 20) -> LenderBook:
    """Return the book of a worker with small segments."""
    return LenderBook(7, Segments(most, 1 << 10, 1 << 10), 1 << 9)


def added(book: LenderBook, nbytes: int = 100) -> Any:
    """Return the handle of a new payload."""
    handle = book.add(nbytes)
    assert handle is not None
    return handle


@pytest.mark.parametrize("seed", range(30))
def test_what_a_rank_may_read_is_not_written_again(seed: int) -> None:
    """Handles arrive late, ranks come and go, questions wait: a payload that is read is whole."""
    draw, book, memory = random.Random(seed), lender(6 << 10), dict[tuple[int, int], int]()
    ranks: dict[bytes, BorrowerBook] = {}
    reading: dict[bytes, list[Any]] = {}
    announced: list[Any] = []
    read, is_announced = 0, True
    for turn in range(800):
        match draw.randrange(6):
            case 0 | 1:
                nbytes, joined = draw.choice((60, 200)), None
                if draw.random() < 0.7 and not is_announced:
                    joined = book.join(nbytes)
                handle = joined or book.add(nbytes)
                if handle is not None:
                    memory[handle.segment, handle.offset] = handle.serial
                    announced.append(handle)
                is_announced = draw.random() < 0.3
            case 2:
                name = b"%d" % draw.randrange(3)
                if name in ranks and draw.random() < 0.1:
                    book.disconnect(name)
                    del ranks[name], reading[name]
                elif name not in ranks:
                    ranks[name], reading[name] = BorrowerBook(*book.connect(name)), []
            case 3 if announced:
                handle = draw.choice(announced)
                is_announced |= handle.serial == announced[-1].serial
                asked = book.free([handle.serial])
                for name, serials in asked.items():
                    ranks[name].ask(book.oldest, serials)
            case 4 if announced and ranks:
                name, handle = draw.choice(list(ranks)), draw.choice(announced)
                if ranks[name].may_read(handle):
                    reading[name].append(handle)
            case _:
                for name in ranks:
                    reading[name] = reading[name][draw.randrange(3) :]
                    in_use = {handle.serial for handle in reading[name]}
                    book.answer(name, ranks[name].answers(in_use))
        for name in ranks:
            for handle in reading[name]:
                read += 1
                assert memory[handle.segment, handle.offset] == handle.serial, turn
    assert read > 100


def test_a_payload_is_freed_when_all_who_were_sent_it_have_answered() -> None:
    book = lender()
    for name in (b"a", b"b", b"c"):
        book.connect(name)
    handle = added(book)
    assert book.free([handle.serial], [b"a", b"b", b"gone"]) == {b"a": [1], b"b": [1]}
    book.answer(b"c", [1])
    book.answer(b"a", [1])
    assert len(book) == 1
    book.answer(b"b", [1])
    assert len(book) == 0
    assert book.free([1], [b"a"]) == {}  # freed again: nothing


def test_payloads_join_a_run_as_long_as_it_has_room() -> None:
    book = lender()
    first = added(book)
    joined = [book.join(100) for _ in range(4)]
    assert [(each.serial, each.offset) for each in joined[:3] if each is not None] == [
        (first.serial, first.offset + 128 * n) for n in (1, 2, 3)
    ]
    assert joined[3] is None  # 512 bytes
    second = added(book, 200)
    assert second.serial == first.serial + 1
    assert (second.segment, second.offset) == (first.segment, 512)
    third = added(book)
    assert third.offset == 768  # the second has not used all of its room
    assert book.free([first.serial, second.serial, third.serial]) == {}
    assert len(book) == 0


def test_a_run_has_no_more_than_a_part_of_the_memory_and_a_large_payload_is_one() -> None:
    book = LenderBook(7, Segments(16 << 10, 1 << 10, 4 << 10))
    large = added(book, 3000)
    assert book.join(1) is None
    assert book.free([large.serial]) == {}
    small = added(book, 400)
    assert book.join(576) is not None
    assert book.join(64) is None
    assert [added(book, 64).serial, len(book)] == [small.serial + 1, 2]


@pytest.mark.parametrize("way", ["all freed", "refused"])
def test_nothing_joins_a_run_that_is_gone(way: str) -> None:
    book = lender()
    book.connect(b"a")
    handle = added(book)
    if way == "refused":
        book.refuse(handle)
    else:
        book.free_all()
    assert book.join(10) is None
    other = added(book)
    assert other.serial == handle.serial + 1
    assert book.join(10) is not None


def test_nobody_is_asked_where_nobody_reads() -> None:
    book = lender()
    handle = added(book)
    assert book.free([handle.serial]) == {}
    assert len(book) == 0


def test_a_rank_that_ends_has_answered() -> None:
    book = lender()
    book.connect(b"a")
    handles = [added(book) for _ in range(3)]
    book.free([handles[0].serial, handles[1].serial])
    book.disconnect(b"a")
    assert len(book) == 1
    assert book.free_all() == {}
    assert len(book) == 0


def test_a_rank_that_comes_late_reads_nothing_that_is_being_freed() -> None:
    book = lender()
    book.connect(b"a")
    freed, kept = added(book), added(book)
    book.free([freed.serial])
    late = BorrowerBook(*book.connect(b"b"))
    assert not late.may_read(freed)
    assert late.may_read(kept)
    assert late.may_read(added(book))


def test_a_handle_that_comes_after_the_answer_is_of_no_use() -> None:
    book = lender()
    rank = BorrowerBook(*book.connect(b"a"))
    handle = added(book)
    rank.ask(book.oldest, book.free([handle.serial])[b"a"])
    assert rank.may_read(handle)  # it has not answered
    assert rank.answers({handle.serial}) == []
    assert rank.owes
    assert rank.answers(()) == [handle.serial]
    assert not rank.may_read(handle)
    assert not rank.may_read(structs.replace(handle, serial=0))


def test_answers_are_forgotten_with_what_they_were_about() -> None:
    book = lender()
    rank = BorrowerBook(*book.connect(b"a"))
    for _ in range(1000):
        handle = added(book)
        rank.ask(book.oldest, book.free([handle.serial])[b"a"])
        book.answer(b"a", rank.answers(()))
        assert not rank.may_read(handle)
    assert len(rank._answered) <= 2


def test_a_payload_that_a_child_may_read_spoils_its_segment() -> None:
    book = lender()
    for name in (b"a", b"b"):
        book.connect(name)
    handle = added(book)
    book.free([handle.serial])
    book.answer(b"a", [handle.serial], spoiled=True)
    book.answer(b"b", [handle.serial])
    assert book.segments.retired == [handle.segment]


def test_a_handle_without_memory_is_taken_back() -> None:
    book = lender()
    book.refuse(added(book))
    assert (len(book), book.segments.total_bytes) == (0, 0)
    assert added(book).serial == 2

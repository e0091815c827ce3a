"""The slots' bookkeeping: every slot has one user, and there are few."""

import random

import pytest

from counterpoise.workers.arena.slot_book import SlotBook, slot_size


@pytest.mark.parametrize("seed", range(20))
def test_a_slot_has_one_user_and_room(seed: int) -> None:
    draw, book, used, most, most_bytes = random.Random(seed), SlotBook(), {}, 0, 0
    for _ in range(400):
        if used and draw.random() < 0.5:
            number = draw.choice(list(used))
            del used[number]
            book.drop(number) if draw.random() < 0.1 else book.take_back(number)
        else:
            nbytes = int(2 ** draw.uniform(0, 24))
            number, new = book.take(nbytes)
            assert number not in used
            assert nbytes <= book.sizes[number] <= max(4 * nbytes, 4096)
            assert new == (book.sizes[number] == slot_size(nbytes)) or not new
            used[number] = nbytes
        most = max(most, len(used))
        most_bytes = max(most_bytes, sum(book.sizes[each] for each in used))
        assert used.keys() <= book.sizes.keys()
        assert len(book.sizes) <= max(64, 2 * most)
        assert sum(book.sizes.values()) <= 2 * most_bytes
        assert not book.sizes.keys() & set(book.retired)


def test_equal_batches_need_no_more_slots_than_are_in_use() -> None:
    book, used = SlotBook(), []
    for number in range(100):
        used.append(book.take(100_000 + number)[0])
        if len(used) > 3:
            book.take_back(used.pop(0))
    assert len(book.sizes) == 4


# KiB of pixels in each of an epoch's batches, real ones; beside them three arrays of tokens.
EPOCHS = {
    "few sizes": [97_608, 9_996, 51_156, 20_580],
    "many sizes": [98_196, 30_576, 24_696, 39_984, 13_524, 14_700, 21_168, 4_704],
}


@pytest.mark.parametrize("in_use", [1, 2, 4])
@pytest.mark.parametrize("pixels", EPOCHS.values(), ids=EPOCHS)
def test_batches_of_different_sizes_need_no_new_slots_when_they_come_again(
    pixels: list[int], in_use: int
) -> None:
    book = SlotBook()
    for epoch in range(4):
        waiting: list[list[int]] = []
        for kibs in pixels:
            taken = [book.take(each << 10) for each in (kibs, *[kibs // 160] * 3)]
            assert epoch == 0 or not any(new for _, new in taken)
            waiting.append([number for number, _ in taken])
            if len(waiting) >= in_use:
                _give_all(book, waiting.pop(0))
        for numbers in waiting:
            _give_all(book, numbers)


def _give_all(book: SlotBook, numbers: list[int]) -> None:
    for number in numbers:
        book.take_back(number)


def test_slots_of_a_size_that_is_not_needed_any_more_make_room() -> None:
    book = SlotBook()
    for nbytes in range(100_000, 5_000_000, 100_000):
        book.take_back(book.take(nbytes)[0])
        assert sum(book.sizes.values()) <= 2 * slot_size(nbytes)
    assert book.retired


def test_slots_are_few_also_where_they_are_small() -> None:
    book = SlotBook()
    book.take_back(book.take(1 << 30)[0])
    nbytes = 1
    while nbytes < 1 << 24:  # of every size there is, each too large for those before
        book.take_back(book.take(nbytes)[0])
        nbytes = slot_size(nbytes) + 1
    assert len(book.sizes) == 64
    assert book.retired


def test_the_slot_used_last_comes_first() -> None:
    book = SlotBook()
    first, second = book.take(5_000)[0], book.take(5_000)[0]
    book.take_back(first)
    book.take_back(second)
    assert book.take(5_000) == (second, False)


def test_a_slot_that_nobody_has_cannot_be_given() -> None:
    book = SlotBook()
    number, _ = book.take(1)
    book.take_back(number)
    with pytest.raises(ValueError, match="free already"):
        book.take_back(number)
    with pytest.raises(KeyError):
        book.take_back(77)
    with pytest.raises(ValueError, match="cannot have 0 bytes"):
        book.take(0)

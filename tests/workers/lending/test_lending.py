"""Memory that is lent over real sockets: bytes, views, forks, ends, and what is left."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from counterpoise.balancer.protocol.messages import FreeSlots
from counterpoise.workers.arena.memory import make_memory
from counterpoise.workers.arena.views import views_alive
from counterpoise.workers.lending import borrower as borrower_module
from counterpoise.workers.lending import lender as lender_module
from counterpoise.workers.lending.borrower import Borrower
from counterpoise.workers.lending.lender import Lender

NAME = b"rank-0"


def mapped() -> int:
    """Return the number of lent segments that are mapped in this process."""
    return Path("/proc/self/maps").read_text().count("memfd:counterpoise")


def files() -> int:
    """Return the number of open descriptors."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Check that a test leaves no mapping, no view, no descriptor and no file."""
    gc.collect()
    before = mapped(), views_alive(), files()
    yield
    gc.collect()
    assert (mapped(), views_alive(), files()) == before
    assert not list(tmp_path.iterdir())


@pytest.fixture
def lender(tmp_path: Path) -> Iterator[Lender]:
    """Return a lender, which is closed after the test."""
    lender = Lender(str(tmp_path), 64 << 20)
    lender.begin()
    yield lender
    lender.close()


@pytest.fixture
def borrower(tmp_path: Path) -> Iterator[Borrower]:
    """Return a borrower, which is closed after the test."""
    borrower = Borrower(str(tmp_path), NAME)
    yield borrower
    borrower.close()


def read(borrower: Borrower, *handles: Any) -> list[Any]:
    """Return the payloads of handles that can be read."""
    views = borrower.views(handles)
    assert views is not None
    return views


def free(lender: Lender, *handles: Any) -> None:
    """Free payloads that this rank was sent."""
    lender.free(FreeSlots(tuple(handle.serial for handle in handles), (NAME,)))


def hear(lender: Lender) -> None:
    """Let a lender hear what ranks have answered, as it does with every message of the balancer."""
    lender.free(FreeSlots((), ()))


def test_what_is_written_is_read(lender: Lender, borrower: Borrower) -> None:
    big = os.urandom(3 << 20)
    handles = [lender.lend([b"ab", memoryview(b"cd")]), lender.lend([big]), lender.lend([b"x"])]
    assert lender.lend([b""]) is None
    views = read(borrower, *handles)
    assert [bytes(view) for view in views] == [b"abcd", big, b"x"]
    array = np.frombuffer(views[0], np.uint8)
    array[0] = 1  # writable, as torch's tensors are
    assert bytes(read(borrower, handles[0])[0]) == b"\1bcd"


def test_a_slot_is_written_again_only_after_its_last_view(
    lender: Lender, borrower: Borrower
) -> None:
    handles = [lender.lend([bytes([n]) * 200_000]) for n in range(4)]
    kept = np.frombuffer(read(borrower, *handles)[1], np.uint8)[7:]
    free(lender, *handles)
    for n in range(40):
        borrower.turn(())
        handle = lender.lend([bytes([100 + n]) * 200_000])
        assert handle is not None
        free(lender, handle)
        assert (kept == 1).all()
    book = lender._book
    assert 1 <= len(book) <= 5  # what was kept, and what is in the same microbatch
    del kept
    gc.collect()
    borrower.turn(())
    hear(lender)
    assert not len(book)


def test_a_microbatch_that_is_not_unpacked_is_not_written_again(
    lender: Lender, borrower: Borrower
) -> None:
    first, second = lender.lend([b"one"]), lender.lend([b"two"])
    assert first is not None
    assert second is not None
    read(borrower, first)
    free(lender, first, second)
    borrower.turn([second])
    hear(lender)
    assert len(lender._book) == 1
    assert bytes(read(borrower, second)[0]) == b"two"


def test_bytes_stay_readable_when_the_worker_has_ended(tmp_path: Path, borrower: Borrower) -> None:
    others = mapped()
    lender = Lender(str(tmp_path), 1 << 24)
    lender.begin()
    early, late = lender.lend([b"early"]), lender.lend([b"late"])
    assert late is not None
    view = read(borrower, early)[0]
    lender.close()
    borrower.turn([late])
    assert bytes(view) == b"early"
    assert bytes(read(borrower, late)[0]) == b"late"
    del view
    gc.collect()
    borrower.turn(())
    assert mapped() == others


def test_a_worker_that_ended_before_it_was_asked_has_nothing(
    tmp_path: Path, borrower: Borrower
) -> None:
    lender = Lender(str(tmp_path), 1 << 24)
    lender.begin()
    handle = lender.lend([b"gone"])
    lender.close()
    assert borrower.views([handle]) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": 5},
        {"serial": 0},
        {"segment": 9},
        {"offset": 1 << 20},
        {"nbytes": (1 << 20) + 1},
        {"nbytes": 0},
    ],
    ids=str,
)
def test_a_handle_of_nothing_is_of_no_use(
    lender: Lender, borrower: Borrower, wrong: dict[str, int]
) -> None:
    handle = lender.lend([b"right"])
    assert handle is not None
    assert borrower.views([handle, structs.replace(handle, **wrong)]) is None
    assert borrower.views([None, handle]) is not None


def test_a_handle_that_was_answered_is_of_no_use(lender: Lender, borrower: Borrower) -> None:
    handle = lender.lend([b"old"])
    read(borrower, handle)
    free(lender, handle)
    borrower.turn(())
    assert borrower.views([handle]) is None


def test_a_rank_that_ends_while_a_segment_is_made_is_left(
    tmp_path: Path, lender: Lender, borrower: Borrower, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Borrower(str(tmp_path), b"rank-1")
    first = lender.lend([bytes(1 << 20)])
    read(gone, first)
    read(borrower, first)

    def made(size: int) -> int:
        gone.close()
        gc.collect()
        return make_memory(size)

    monkeypatch.setattr(lender_module, "make_memory", made)
    second = lender.lend([b"x" * (1 << 20)])
    assert bytes(read(borrower, second)[0]) == b"x" * (1 << 20)
    free(lender, first, second)
    borrower.turn([])
    hear(lender)


def test_a_rank_that_knocks_reads_over_that_connection(
    lender: Lender, borrower: Borrower, tmp_path: Path
) -> None:
    before = lender.lend([b"before"])
    borrower.knock()
    (connection,) = borrower._lent.values()
    after = lender.lend([b"after"])
    borrower.knock()
    assert [bytes(each) for each in read(borrower, before, after)] == [b"before", b"after"]
    assert list(borrower._lent.values()) == [connection]


def test_a_rank_that_has_knocked_answers_what_it_was_never_sent(
    lender: Lender, borrower: Borrower
) -> None:
    borrower.knock()
    (connection,) = borrower._lent.values()
    connection.await_known()
    handle = lender.lend([b"p"])
    assert handle is not None
    lender.free(FreeSlots((handle.serial,), ()))
    assert len(lender._book) == 1
    borrower.turn(())
    hear(lender)
    assert not len(lender._book)


def test_a_rank_does_not_knock_at_many_doors(
    lender: Lender, borrower: Borrower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(borrower_module, "MOST_DOORS", 0)
    borrower.knock()
    assert not borrower._lent


def test_doors_that_nobody_opens_are_passed_over_and_removed(tmp_path: Path) -> None:
    ended = Lender(str(tmp_path), 1 << 20)
    ended.begin()
    door = next(tmp_path.iterdir())
    door.rename(tmp_path / "kept")
    ended.close()
    (tmp_path / "kept").rename(door)
    for directory in (tmp_path, tmp_path / "missing"):
        borrower = Borrower(str(directory), NAME)
        borrower.knock()
        assert not borrower._lent
    assert not door.exists()


def test_a_rank_that_is_interrupted_while_it_waits_for_a_worker_connects_again(
    lender: Lender, borrower: Borrower, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = lender.lend([b"p"])
    borrower.knock()
    (connection,) = borrower._lent.values()

    def interrupted(self: object) -> None:
        self._socket.recv(100)  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(connection), "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            borrower.views([handle])
    del connection
    assert bytes(read(borrower, handle)[0]) == b"p"


def test_two_ranks_are_both_asked(tmp_path: Path, lender: Lender, borrower: Borrower) -> None:
    other = Borrower(str(tmp_path), b"rank-1")
    handle = lender.lend([b"both"])
    views = read(borrower, handle) + read(other, handle)
    assert handle is not None
    lender.free(FreeSlots((handle.serial,), (NAME, b"rank-1")))
    del views[0]
    for each in (borrower, other):
        each.turn(())
    hear(lender)
    assert len(lender._book) == 1
    other.close()
    views.clear()
    hear(lender)
    assert not len(lender._book)


def test_memory_that_a_child_has_is_not_written_again(lender: Lender, borrower: Borrower) -> None:
    handle = lender.lend([b"p" * 100_000])
    view = read(borrower, handle)[0]
    asked, told = os.pipe()
    answered, answer = os.pipe()
    child = os.fork()
    if not child:
        os.read(asked, 1)
        os.write(answer, bytes([all(byte == ord("p") for byte in view)]))
        os._exit(0)
    del view
    free(lender, handle)
    for _ in range(20):
        borrower.turn(())
        new = lender.lend([b"n" * 100_000])
        free(lender, new)
    os.write(told, b"x")
    assert os.read(answered, 1) == b"\1"
    os.waitpid(child, 0)
    for descriptor in (asked, told, answered, answer):
        os.close(descriptor)


def test_without_room_nothing_is_lent(tmp_path: Path) -> None:
    lender = Lender(str(tmp_path), 2 << 20)
    lender.begin()
    assert lender.lend([bytes(1 << 20)]) is not None
    assert lender.lend([bytes(1 << 20)]) is not None
    assert lender.lend([bytes(1)]) is None
    lender.close()


@pytest.mark.parametrize("step", ["make_memory", "Mapping"])
def test_without_memory_nothing_is_lent(
    lender: Lender, borrower: Borrower, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def refuse(*_: int) -> int:
        raise OSError(28, "No space left on device")

    before = len([*Path("/proc/self/fd").iterdir()])
    with monkeypatch.context() as patch:
        patch.setattr(f"counterpoise.workers.lending.lender.{step}", refuse)
        assert lender.lend([b"none"]) is None
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    assert bytes(read(borrower, lender.lend([b"some"]))[0]) == b"some"


def test_idle_memory_is_given_back_on_both_sides(lender: Lender, borrower: Borrower) -> None:
    others = mapped()
    handles = [lender.lend([bytes(1 << 20)]) for _ in range(4)]
    read(borrower, *handles)
    assert mapped() >= others + 4
    free(lender, *handles)
    borrower.turn(())
    lender.trim()
    borrower.turn(())
    assert mapped() == others
    assert bytes(read(borrower, lender.lend([b"again"]))[0]) == b"again"


@pytest.mark.parametrize("most", [0, 64 << 20])
def test_a_rank_that_rests_keeps_what_is_small_and_answers_first(
    lender: Lender, borrower: Borrower, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("counterpoise.workers.lending.borrower.MOST_RESTING", most)
    others = mapped()
    handle = lender.lend([bytes(1 << 20)])
    read(borrower, handle)
    free(lender, handle)
    borrower.rest()
    hear(lender)
    lender.trim()  # nobody reads there any more
    assert (mapped() > others) == bool(most)
    known = dict(borrower._lent)
    assert bool(known) == bool(most)
    borrower.knock()
    assert bytes(read(borrower, lender.lend([b"again"]))[0]) == b"again"
    if most:
        assert borrower._lent == known

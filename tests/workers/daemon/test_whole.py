"""A worker's loop where a lease has whole microbatches: one payload each, or their samples."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from counterpoise.balancer.protocol.messages import (
    LAID_OUT,
    DecodeDone,
    Lease,
    Revoke,
    SampleFailed,
    SampleRef,
    Welcome,
    WholeMicrobatch,
)
from counterpoise.balancer.protocol.worker_session import SampleTask, WorkerSession
from counterpoise.workers.daemon import loop
from counterpoise.workers.daemon.activity import WorkerActivity
from counterpoise.workers.daemon.handler import Decoded, Loaded
from counterpoise.workers.daemon.identity import Identity
from counterpoise.workers.daemon.loop import MOST_LAID_OUT
from counterpoise.workers.daemon.payloads import Payloads
from counterpoise.workers.lending.lender import Lender
from tests.workers.daemon.test_loop import QUICK_S, Clock, Scripted, Taking, clock

__all__ = ["clock"]
ROOM = 1 << 20


def lease(number: int, sizes: Sequence[int], whole: Sequence[tuple[int, int]]) -> Lease:
    """Return a lease of so many samples, and these microbatches."""
    refs = tuple(SampleRef(each, each) for each in range(sum(sizes)))
    found = tuple(WholeMicrobatch(*each) for each in whole)
    return Lease(number, "decode", 0, refs, whole=found)


class LayingOut(Taking):
    """Lays out what it loads, unless a sample is in `unusual`."""

    lays_out = True

    def __init__(self, clock: Clock, bad: Sequence[int] = (), unusual: Sequence[int] = ()) -> None:
        super().__init__(clock, QUICK_S, bad)
        self.unusual = set(unusual)
        self.sizes: list[list[int]] = []

    def packed(self, loaded: Loaded) -> Decoded:
        return Decoded(loaded.key, (), b"sample", [b"x"])

    def laid_out(self, loaded: Sequence[Loaded], sizes: Sequence[int]) -> list[Decoded] | None:
        self.sizes.append([*sizes])
        if any(each.sample in self.unusual for each in loaded):
            return None
        return [Decoded("", (), b"batch %d" % size, [b"y" * (10 * size + 1)]) for size in sizes]


@pytest.fixture
def lender(tmp_path: Path) -> Iterator[Lender]:
    made = Lender(str(tmp_path), ROOM)
    yield made
    made.close()


def work(handler: LayingOut, payloads: Payloads, *messages: Any) -> Scripted:
    link: Any = Scripted(Welcome("", 1), *messages)
    worker = loop._Worker(link, Identity("w", 0, 0), handler, WorkerActivity(), payloads)
    worker.work(lambda: not (link.inbox or worker.session.tasks or worker.results), None)
    return link


def headers(link: Scripted) -> list[Any]:
    """Return the header of each sample, or the number of one that failed, in order."""
    found: list[Any] = []
    for sent in link.sent:
        if isinstance(sent, DecodeDone):
            found += [(item.ordinal, item.header) for item in sent.items]
        elif isinstance(sent, SampleFailed):
            found.append(sent.ordinal)
    return found


def test_whole_microbatches_are_one_payload_each_in_one_message(
    clock: Clock, lender: Lender
) -> None:
    handler = LayingOut(clock)
    link = work(handler, Payloads(lender), lease(1, [2, 3, 1], [(0, 2), (2, 3)]))
    assert headers(link) == [
        (0, b"batch 2"), (1, LAID_OUT),
        (2, b"batch 3"), (3, LAID_OUT), (4, LAID_OUT),
        (5, b"sample"),
    ]  # fmt: skip
    assert handler.sizes == [[2, 3]]
    (done,) = [each for each in link.sent if isinstance(each, DecodeDone)]
    assert [item.key for item in done.items] == [str(n) for n in range(6)]
    # Parts of one payload lie side by side, and the payloads in one run.
    handles = done.handles
    assert (len(handles.runs), handles.run_of) == (1, (0,) * 6)
    ends = [a + b for a, b in zip(handles.offsets, handles.lengths, strict=True)]
    assert (handles.offsets[0], handles.offsets[1], ends[1]) == (0, 10, 21)
    assert (handles.offsets[2], [*handles.offsets[3:5]], ends[4]) == (64, ends[2:4], 64 + 31)


@pytest.mark.parametrize(
    ("given", "due"),
    [
        ({"bad": [1]}, [1, (0, b"sample"), (2, b"sample")]),
        ({"unusual": [2]}, [(n, b"sample") for n in range(3)]),
    ],
)
def test_what_cannot_be_laid_out_is_sent_as_samples(
    clock: Clock, lender: Lender, given: dict[str, Any], due: list[Any]
) -> None:
    link = work(LayingOut(clock, **given), Payloads(lender), lease(1, [3], [(0, 3)]))
    assert headers(link) == due


def test_nothing_is_laid_out_where_payloads_travel_inline(clock: Clock) -> None:
    handler = LayingOut(clock)
    link = work(handler, Payloads(), lease(1, [3], [(0, 3)]))
    assert headers(link) == [(n, b"sample") for n in range(3)]
    assert not handler.sizes


def test_without_room_samples_are_sent_inline(clock: Clock, tmp_path: Path) -> None:
    small = Lender(str(tmp_path), 1)
    link = work(LayingOut(clock), Payloads(small), lease(1, [3], [(0, 3)]))
    small.close()
    assert headers(link) == [(n, b"sample") for n in range(3)]


def test_several_are_laid_out_together_but_not_without_end(clock: Clock, lender: Lender) -> None:
    handler, size = LayingOut(clock), MOST_LAID_OUT // 4
    link = work(
        handler, Payloads(lender), lease(1, [6 * size], [(n * size, size) for n in range(6)])
    )
    assert handler.sizes == [[size] * 4, [size] * 2]
    assert len(headers(link)) == 6 * size


# --- which ones


def tasks(*messages: Any) -> WorkerSession:
    session = WorkerSession()
    for message in (Welcome("", 1), *messages):
        session.handle(message)
    return session


def ordinals(found: list[list[SampleTask]]) -> list[list[int]]:
    return [[task.ref.ordinal for task in own] for own in found]


def test_a_microbatch_larger_than_what_is_laid_out_together_comes_alone() -> None:
    session = tasks(lease(1, [5, 2], [(0, 5), (5, 2)]))
    assert ordinals(session.next_whole(4)) == [[0, 1, 2, 3, 4]]
    assert ordinals(session.next_whole(4)) == [[5, 6]]
    assert session.next_whole(4) == []


def test_microbatches_of_another_lease_are_not_taken_along() -> None:
    session = tasks(lease(1, [2], [(0, 2)]), lease(2, [2], [(0, 2)]))
    assert [task.lease for own in session.next_whole(9) for task in own] == [1, 1]
    session.handle(Revoke(2))
    assert session.next_whole(9) == []


@pytest.mark.parametrize("whole", [[(0, 9)], [(0, -1)], [(0, 1)], [(-2, 2)], [(3, 2)], [(7, 2)]])
def test_what_does_not_fit_a_lease_is_no_microbatch(whole: list[tuple[int, int]]) -> None:
    session = tasks(lease(1, [4], whole))
    assert session.next_whole(9) == []
    assert len(session.tasks) == 4

"""A worker's loop: samples of a lease one after the other, and messages looked for in between."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from counterpoise.balancer.protocol.messages import (
    Message,
    SampleFailed,
    Welcome,
    WorkerFailed,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.parts import Probed, SampleRef
from counterpoise.balancer.protocol.payload_messages import DecodeDone, Lease, Revoke
from counterpoise.balancer.protocol.worker_session import SampleTask
from counterpoise.workers.daemon import loop
from counterpoise.workers.daemon.heartbeats import Identity, WorkerActivity
from counterpoise.workers.daemon.loop import LOOK_S
from counterpoise.workers.daemon.payloads import Payloads
from counterpoise.workers.daemon.results import Decoded
from counterpoise.workers.sources.interface import SampleError

QUICK_S, SLOW_S = LOOK_S / 100, 2 * LOOK_S


class Clock:
    """Time passes when a sample is worked on."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Scripted:
    """A link whose messages arrive as samples are done."""

    def __init__(self, *messages: Message) -> None:
        self.inbox: deque[Message] = deque(messages)
        self.sent: list[Any] = []
        self.looks = 0
        self.poller = self.handshakes = self

    def rejection_reason(self) -> str:
        return ""

    def poll(self, _ms: int) -> list[int]:
        return [1] if self.inbox else []

    def receive(self) -> tuple[Message, tuple[()]] | None:
        self.looks += not self.inbox
        return (self.inbox.popleft(), ()) if self.inbox else None

    def send(self, message: Message, _payloads: Sequence[Any]) -> None:
        self.sent.append(message)


class Taking:
    """Decodes samples in a given time each; those in `bad` fail."""

    looks_up = False

    def __init__(self, clock: Clock, took_s: float, bad: Iterable[int] = ()) -> None:
        self.clock, self.took_s, self.bad = clock, took_s, set(bad)
        self.opened, self.fails = 0, False
        self.begun: list[int] = []
        self.expected: list[list[int]] = []
        self.after: dict[int, Callable[[], None]] = {}

    def open(self, _job: str) -> tuple[int, str]:
        self.opened += 1
        if self.fails:
            raise OSError("no disk")
        return 100, "print"

    def look_up(self, refs: Sequence[SampleRef]) -> list[Probed]:
        raise NotImplementedError

    def file_of(self, _ref: SampleRef) -> str:
        return ""

    def key(self, ref: SampleRef) -> str:
        return str(ref.index)

    def expect(self, tasks: Iterable[SampleTask]) -> None:
        self.expected.append([task.ref.ordinal for task in tasks])

    def probe(self, ref: SampleRef, _epoch: int) -> Probed:
        return Probed(ref.ordinal, str(ref.index), (1,), 0)

    def decode(self, ref: SampleRef, _epoch: int) -> Decoded:
        self.begun.append(ref.ordinal)
        self.clock.now += self.took_s
        self.after.get(ref.ordinal, lambda: None)()
        if ref.ordinal in self.bad:
            raise SampleError(str(ref.index), "it does not decode")
        return Decoded(str(ref.index), (), b"", [b"x"])


def lease(number: int, *ordinals: int) -> Lease:
    return Lease(number, "decode", 0, tuple(SampleRef(each, each) for each in ordinals))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    return made


def work(link: Scripted, handler: Taking) -> WorkerActivity:
    """Work until nothing is left to do."""
    link.inbox.appendleft(Welcome("", 1))
    activity = WorkerActivity()
    made: Any = link
    works: Any = handler
    worker = loop.JobWorker(made, Identity("w", 0, 0), works, activity, Payloads())
    worker.work(lambda: not (link.inbox or worker.session.tasks or worker.results))
    return activity


def results(link: Scripted) -> list[Any]:
    """Return what was said of samples: ordinals that travelled together, or one that failed."""
    return [
        [item.ordinal for item in sent.items] if isinstance(sent, DecodeDone) else sent.ordinal
        for sent in link.sent
        if isinstance(sent, DecodeDone | SampleFailed)
    ]


def test_quick_samples_of_a_lease_are_done_at_one_look_and_travel_together(clock: Clock) -> None:
    link, handler = Scripted(lease(1, 4, 5, 6), lease(2, 7, 8)), Taking(clock, QUICK_S)
    activity = work(link, handler)
    assert results(link) == [[4, 5, 6], [7, 8]]
    assert link.looks == 2  # before the first, and when all are done
    assert activity.work_ms(clock.now) == (0, int(1000 * 5 * QUICK_S))


def test_threads_are_told_before_each_sample_what_comes_next(clock: Clock) -> None:
    handler = Taking(clock, QUICK_S)
    work(Scripted(lease(1, 4, 5, 6)), handler)
    assert [each for each in handler.expected if each] == [[4, 5, 6], [5, 6], [6]]


def test_what_is_revoked_while_a_slow_sample_is_decoded_is_not_begun(clock: Clock) -> None:
    link, handler = Scripted(lease(1, 4, 5, 6), lease(2, 7)), Taking(clock, SLOW_S)
    handler.after[5] = lambda: link.inbox.append(Revoke(1))
    work(link, handler)
    assert handler.begun == [4, 5, 7]
    assert results(link) == [[4, 5], [7]]


def test_quick_samples_do_not_put_off_looking_for_messages(clock: Clock) -> None:
    link, handler = Scripted(lease(1, *range(300))), Taking(clock, QUICK_S)
    handler.after[5] = lambda: link.inbox.append(Revoke(1))
    work(link, handler)
    assert 5 < handler.begun[-1] <= LOOK_S / QUICK_S + 1
    assert results(link) == [handler.begun]


def test_a_sample_that_fails_is_reported_at_once_and_the_others_follow(clock: Clock) -> None:
    link = Scripted(lease(1, 4, 5, 6))
    activity = work(link, Taking(clock, QUICK_S, bad=[5]))
    assert results(link) == [5, [4, 6]]
    assert activity.heartbeat("w", 0, clock.now, 0.0).ordinal == -1  # nothing is in work


def get_ready(handler: Taking) -> list[Any]:
    """Let a worker with a source start, and be asked for it; return what it says of the source."""
    made: Any = Scripted(Welcome("", 1))
    works: Any = handler
    worker = loop.JobWorker(made, Identity("w", 0, 0), works, WorkerActivity(), Payloads())
    worker.say_hello()
    worker.work(lambda: not made.inbox)
    assert isinstance(made.sent[0], WorkerHello)
    return [each for each in made.sent if isinstance(each, WorkerReady | WorkerFailed)]


def test_a_source_is_opened_when_the_balancer_asks_for_it(clock: Clock) -> None:
    handler = Taking(clock, QUICK_S)
    assert get_ready(handler) == [WorkerReady(100, "print", 1)]
    assert handler.opened == 1


def test_that_a_source_cannot_be_opened_is_said(clock: Clock) -> None:
    handler = Taking(clock, QUICK_S)
    handler.fails = True
    assert get_ready(handler) == [WorkerFailed("OSError: no disk", 1)]
    assert handler.opened == 1


def test_a_sample_that_cannot_be_named_ends_the_run_and_not_the_worker(clock: Clock) -> None:
    class Nameless(Taking):
        def key(self, ref: SampleRef) -> str:
            raise TypeError(f"key({ref.index}) returned None")

        def decode(self, ref: SampleRef, _epoch: int) -> Decoded:
            return Decoded(self.key(ref), (), b"", [b"x"])

    link = Scripted(lease(1, 3))
    work(link, Nameless(clock, 0.0))
    (failed,) = [each for each in link.sent if isinstance(each, SampleFailed)]
    assert (failed.key, failed.io) == ("3", True)
    assert failed.reason == "TypeError: key(3) returned None"

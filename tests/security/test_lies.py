"""What a lying worker gets in, beside an honest one, over tcp: the table of threats.md.

The liar opens the data first, and the honest worker comes with its first lie; only lies about the
data themselves are told to an honest worker that was first, and goes on when they were refused.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs

from counterpoise.balancer.pool.messages import FailedPlace, PartMade, PartMeasured
from counterpoise.loader import LoaderError
from counterpoise.workers.codec.batches import decode_batch, encode_batch
from tests.security.key_party import SAMPLES, Party, make, samples

Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Lie:
    """What a worker changes of what it says; what comes of it.

    outcome: "refused", the trainer gets what the honest worker has; "ends", the run ends with an
    error; "gets in". says: words of the refusal, or of the error. opened, measured, made: of these
    messages; frames: of what is kept.
    """

    name: str
    outcome: str
    says: str = ""
    opened: Change | None = None
    measured: Change | None = None
    made: Change | None = None
    frames: Change | None = None


def altered(frames: Sequence[Any]) -> list[Any]:
    """A byte in the middle of the largest frame is another one."""
    found = [bytearray(memoryview(frame).cast("B")) for frame in frames]
    largest = max(found, key=len)
    largest[len(largest) // 2] ^= 1
    return list(found)


def broken(message: Any) -> Any:
    failed = FailedPlace(0, "k", "it is broken, says the liar", False, "")
    more = {"costs": ((), *message.costs[1:])} if isinstance(message, PartMeasured) else {}
    return structs.replace(message, failed=(failed,), **more)


_first: list[Any] = []


def of_another(frames: Sequence[Any]) -> list[Any]:
    """The first sample, as often as there are samples."""
    batch = decode_batch([bytes(memoryview(each).cast("B")) for each in frames])
    _first[:] = _first or [batch[0]]
    return encode_batch([_first[0]] * len(batch))


def costs(change: Callable[[tuple[int, ...]], Any]) -> Change:
    return lambda m: structs.replace(m, costs=tuple(map(change, m.costs)))


LIES = (
    Lie("another fingerprint", "refused", "this worker's data",
        opened=lambda m: structs.replace(m, fingerprint="other")),
    Lie("a negative cost", "refused", "PartMeasured", measured=costs(lambda c: (-1,) * len(c))),
    Lie("rubbish for a batch", "ends", "header",
        frames=lambda f: [b"\xc1" * len(memoryview(each).cast("B")) for each in f]),
    Lie("a frame too many", "ends", "bytes", frames=lambda f: [*f, b"x"]),
    Lie("broken samples", "ends", "it is broken, says the liar", made=broken),
    Lie("broken when measured", "ends", "it is broken, says the liar", measured=broken),
    Lie("other label tokens", "ends", "their labels have", measured=costs(lambda c: (1,) * len(c))),
    Lie("another's sample", "gets in", frames=of_another),
    Lie("other costs", "gets in", measured=costs(lambda c: (1, *c[1:]))),
    Lie("altered frames", "gets in", frames=altered),
)  # fmt: skip


class Lying:
    """A worker's link that says what a lie makes of it; calls `told` with each message before."""

    def __init__(self, worker: Any, lie: Lie | None, told: Callable[[Any], None]) -> None:
        self._link, self._lie, self._told = worker.link, lie, told
        worker.link, keep = self, worker.store.keep
        if lie is not None and (change := lie.frames) is not None:
            worker.store.keep = lambda serial, frames: keep(serial, change(frames))

    def send(self, message: Any, frames: Any = ()) -> None:
        self._told(message)
        kinds = {"JobOpened": "opened", "PartMeasured": "measured", "PartMade": "made"}
        change = getattr(self._lie, kinds.get(type(message).__name__, ""), None)
        self._link.send(message if change is None else change(message), frames)

    def send_together(self, messages: Sequence[Any]) -> None:
        for message in messages:
            self.send(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)


def told(balancer: Party, root: Any, lie: Lie) -> list[Any]:
    """Return what a trainer gets of a balancer with an honest worker and a liar."""
    _first.clear()
    started = set()
    is_refused = lambda: any(lie.says in each for each in balancer.refusals)  # noqa: E731

    def start(name: str, lie: Lie | None, on: Callable[[Any], None]) -> None:
        def wrap(worker: Any) -> Any:
            Lying(worker, lie, on)
            return worker

        if name not in started:
            started.add(name)
            balancer.work(root, name, wrap=wrap)

    def when_liar_has_lied(message: Any) -> None:
        if isinstance(message, PartMade) or (lie.measured and isinstance(message, PartMeasured)):
            start("honest", None, lambda _: None)

    def when_honest(message: Any) -> None:
        if isinstance(message, PartMade | PartMeasured):
            start("liar", lie, lambda _: None)
            balancer.wait(is_refused)

    if lie.opened is None:
        start("liar", lie, when_liar_has_lied)
    else:
        start("honest", None, when_honest)
    found = samples(make(balancer.address, None))
    if lie.outcome == "refused":
        balancer.wait(is_refused)
    return found


def content(found: list[Any]) -> list[bytes]:
    return sorted(s["input_ids"].tobytes() + s["pixel_values"].tobytes() for s in found)


@pytest.fixture(scope="module")
def right(root):
    balancer = Party()
    balancer.work(root, "honest")
    found = content(samples(make(balancer.address, None)))
    balancer.close()
    return found


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_what_comes_of_a_lie(lie, root, right):
    with contextlib.closing(Party()) as balancer:
        if lie.outcome == "ends":
            with pytest.raises(LoaderError, match=lie.says):
                told(balancer, root, lie)
            return
        found = content(told(balancer, root, lie))
    assert len(found) == SAMPLES
    # Wrong costs change which samples go together, and nothing else.
    is_right = lie.outcome == "refused" or lie.name == "other costs"
    assert (found == right) == is_right

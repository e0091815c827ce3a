"""What a lying worker gets in, beside an honest one, over tcp: the table of threats.md.

The liar opens the data first, so that it is leased samples; only lies about the data themselves are
told to an honest worker that was first, and goes on when they were refused: without an honest
worker's results the trainer is there until then.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs

from counterpoise.balancer.protocol.parts import Probed
from counterpoise.loader import LoaderError
from counterpoise.workers.codec.fields import why_bad_layout
from counterpoise.workers.daemon.results import Decoded
from counterpoise.workers.daemon.source_handler import SourceHandler
from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.sources.registry import open_source
from tests.security.key_party import LIMIT_S, SAMPLES, Party, make, samples


@dataclass(frozen=True)
class Lie:
    """What a worker changes of what it says; what comes of it.

    outcome: "refused", the trainer gets what the honest worker has; "ends", the run ends with an
    error; "gets in". says: words of the refusal, or of the error.
    """

    name: str
    outcome: str
    says: str = ""
    opened: Any = None
    probed: Any = None
    decoded: Any = None


def payload_of(decoded: Decoded) -> bytes:
    return b"".join(bytes(each) for each in decoded.buffers)


def altered(decoded: Decoded) -> Decoded:
    """A byte in the middle, of the picture where there is one, is another one."""
    payload = bytearray(payload_of(decoded))
    payload[len(payload) // 2] ^= 1
    return structs.replace(decoded, buffers=[payload])


def broken(decoded: Decoded) -> Decoded:
    raise SampleError(decoded.key, "it is broken, says the liar")


_first: dict[str, Decoded] = {}


def of_another(decoded: Decoded) -> Decoded:
    """The first sample's layout and payload, under every name."""
    first = _first.setdefault("sample", decoded)
    return structs.replace(decoded, header=first.header, buffers=[payload_of(first)])


LIES = (
    Lie("another number", "refused", "this worker's data", lambda n, f: (n - 1, f)),
    Lie("another fingerprint", "refused", "this worker's data", lambda n, _: (n, "other")),
    Lie("an impossible number", "refused", "can be ordered", lambda _, f: (1 << 60, f)),
    Lie("one cost too many", "refused", "costs, ",
        probed=lambda p: structs.replace(p, cost=(*p.cost, 1))),
    Lie("a huge size", "refused", "a payload of ",
        probed=lambda p: structs.replace(p, nbytes=1 << 60)),
    Lie("a negative cost", "refused", "ProbeDone",
        probed=lambda p: structs.replace(p, cost=(-1,) * len(p.cost))),
    Lie("foreign ordinals", "refused", "where that is not",
        probed=lambda p: structs.replace(p, ordinal=p.ordinal + 1000)),
    Lie("rubbish for a layout", "refused", "with rubbish",
        decoded=lambda d: structs.replace(d, header=b"\xc1 rubbish")),
    Lie("a short payload", "refused", "with rubbish",
        decoded=lambda d: structs.replace(d, buffers=[payload_of(d)[:-1]])),
    Lie("a long payload", "refused", "with rubbish",
        decoded=lambda d: structs.replace(d, buffers=[payload_of(d) + b"x"])),
    Lie("a foreign key", "ends", "unlike the one that measured it",
        decoded=lambda d: structs.replace(d, key="foreign")),
    Lie("broken samples", "ends", "it is broken, says the liar", decoded=broken),
    Lie("other label tokens", "ends", "and their labels have",
        probed=lambda p: structs.replace(p, cost=(1,) * len(p.cost))),
    Lie("another's payload", "ends", "and their labels have", decoded=of_another),
    Lie("other costs", "gets in", probed=lambda p: structs.replace(p, cost=(1, *p.cost[1:]))),
    Lie("altered payloads", "gets in", decoded=altered),
)  # fmt: skip


class Handler(SourceHandler):
    """A worker's handler that says what a lie makes of it; it opens its data after others."""

    def __init__(
        self, root: Any, lie: Lie | None, after: threading.Event,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(None, (), 0, local=False, build=lambda job: open_source(job, root))
        self.lie, self.after, self.has_begun = lie, after, threading.Event()
        self.go_on = go_on

    def open(self, job: str) -> tuple[int, str]:
        assert self.after.wait(LIMIT_S)
        found = super().open(job)
        if self.lie is None or self.lie.opened is None:
            return found
        told: tuple[int, str] = self.lie.opened(*found)
        return told

    def probe(self, *task: Any) -> Any:
        return self._say("probed", super().probe(*task))

    def decode(self, *task: Any) -> Any:
        return self._say("decoded", super().decode(*task))

    def _say(self, what: str, found: Any) -> Probed | Decoded:
        change = None if self.lie is None else getattr(self.lie, what)
        if self.lie is None or change is not None or self.lie.opened is not None:
            self.has_begun.set()
        self.go_on()
        said: Probed | Decoded = found if change is None else change(found)
        return said


def told(party: Any, keys: Any, root: Any, lie: Lie) -> list[Any]:
    """Return what a trainer gets of a balancer with an honest worker and a liar."""
    _first.clear()
    balancer = party(keys / "balancer" if keys else None)
    balancer.coordinator.check_layout = why_bad_layout
    now = threading.Event()
    now.set()
    if lie.opened is None:
        liar = Handler(root, lie, now)
        honest = Handler(root, None, liar.has_begun)
    else:
        is_refused = lambda: any(lie.says in each for each in balancer.refusals)  # noqa: E731
        honest = Handler(root, None, now, lambda: balancer.wait(is_refused))
        liar = Handler(root, lie, honest.has_begun)
    own = keys / "worker" if keys else None
    balancer.work(root, "honest", own, handler=honest)
    balancer.work(root, "liar", own, handler=liar)
    balancer.wait(lambda: len(balancer.coordinator.workers) == 2)
    found = samples(make(balancer.address, keys / "trainer" if keys else None))
    if lie.outcome == "refused":
        balancer.wait(lambda: any(lie.says in each for each in balancer.refusals))
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


@pytest.mark.parametrize("keyed", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_what_comes_of_a_lie(lie, keyed, party, keys, root, right):
    own = keys if keyed else None
    if lie.outcome == "ends":
        with pytest.raises(LoaderError, match=lie.says):
            told(party, own, root, lie)
        return
    found = content(told(party, own, root, lie))
    assert len(found) == SAMPLES
    # Wrong costs change which samples go together, and nothing else.
    is_right = lie.outcome == "refused" or lie.name == "other costs"
    assert (found == right) == is_right

"""A signal's handler may raise at any line of a connection; who goes on gets the same."""

import random
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from counterpoise.balancer.parties import run_attempt
from counterpoise.loader.remote import connection
from tests.loader.alarms import Interrupted
from tests.loader.remote.balancer_here import BalancerHere
from tests.loader.remote.served import COUNT, Served, described, make_loader, taken
from tests.loader.remote.test_connection import WAYS

# Not in a test's own lines: one that is left before it gives a lock back holds up all tests after.
HERE = (
    str(Path(connection.__file__).parent),
    *("/trainer_session.py", "/rank_sockets.py", "/transport/sockets.py"),
)


class Interruptions:
    """Raises at one line of every second call or so."""

    def __init__(self, seed: int) -> None:
        self.raised, self._left = 0, 0
        self._chance = random.Random(seed)

    def next(self, source: Any) -> Any:
        """Return the next item; Interrupted where that was raised."""
        if self._chance.random() < 0.5:
            return next(source)
        self._left = self._chance.randrange(self._chance.choice([20, 60, 200, 600]))
        former = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return next(source)
        finally:
            sys.settrace(former)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not any(each in frame.f_code.co_filename for each in HERE):
            return self._trace if event == "call" else None
        if event == "line" and self._left >= 0:
            self._left -= 1
            if self._left < 0:
                self.raised += 1
                raise Interrupted
        return self._trace


@pytest.mark.parametrize("way", ["packed", "drawing", "counted here", "fields"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_call_that_was_interrupted_is_made_again(
    way: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what was lost is told again at once
    monkeypatch.setattr(connection, "BEAT_S", 0.02)
    monkeypatch.setattr(run_attempt, "AGAIN_S", 0.02)
    data, given, signals = Served(COUNT), WAYS[way], Interruptions(seed)
    with BalancerHere(data, serves=(True, seed == 0)) as balancer:
        remote, found = make_loader(data, balancer.address, **given), []
        source = iter(remote.with_info())
        while True:
            try:
                found.append(described(*signals.next(source)))
            except StopIteration:
                break
            except Interrupted:
                continue
        remote.close()
    assert found == taken(make_loader(data, **given))
    assert signals.raised

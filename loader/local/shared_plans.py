"""Plans windows once for all ranks of a host: one process plans, the others map what it has made.

All would make the same plan of the same costs; to make it takes about 30 times as long as to read
it. Where the process that plans ends, or cannot plan a window, the others plan it themselves.
"""

from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from ...balancer.planning.planner import WHOLE_EPOCH
from ...balancer.planning.problem.config import Planned, Window
from ...balancer.run.feed import FeedPlanner

if TYPE_CHECKING:
    from ..peers.exchange import Peers

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Planned).decode


class SharedPlanner:
    """A FeedPlanner of a host. group: begins the keys of a run."""

    def __init__(self, planner: FeedPlanner, host: "Peers", group: str) -> None:
        self._planner = planner
        self._host = host
        self._group = group

    @property
    def window_samples(self) -> int:
        """The number of samples of a window."""
        return self._planner.window_samples

    def plan(self, window: Window) -> Planned | None:
        """Return the steps of a window; None if the process that plans has not come so far."""
        key, host = f"{self._group}/plan/{window.start}", self._host
        if not host.is_planner:
            mapped = host.published(key)
            if mapped is None:
                return self._planner.plan(window) if host.planner_ended() else None
            if len(mapped) > 1:
                found = _decode(mapped)
                return structs.replace(found, batches=tuple(found.batches))
            return self._planner.plan(window)
        try:
            planned = self._planner.plan(window)
        except Exception:
            host.publish(key, b"-")  # they find out by themselves
            raise
        if planned is not None:
            host.publish(key, _encode(planned))
        return planned


def shared_planner(planner: FeedPlanner, host: "Peers", group: str) -> FeedPlanner:
    """Return what plans for a host; where there is one rank, or an epoch is one window, itself."""
    is_shared = host.shares_host and planner.window_samples < WHOLE_EPOCH
    return SharedPlanner(planner, host, group) if is_shared else planner

"""A rank's sockets, which are closed while a process is forked and open again by themselves.

ZeroMQ has threads of its own, and a process should not be forked while it has threads: a lock that
one of them holds stays locked in the child for ever, and Python 3.12 warns. So all connections of
the trainer close their sockets before workers are forked, and open them right after. For the
balancer a rank was cut off for a moment, which the protocol survives in any state: what was under
way is asked for again.
"""

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import zmq

from ...balancer.transport.finding import find_address
from ...balancer.transport.keys import PeerKeys
from ...balancer.transport.sockets import LINGER_MS, Link
from ...workers.processes.start_method import register_quiet
from ..step.errors import LoaderError
from ..step.waiting import WaitLog

logger = logging.getLogger(__name__)

# A balancer that is silent for so long is given up; its address is looked for at growing intervals.
PATIENCE_S, MOST_PAUSE_S = 600.0, 2.0


class RankSockets:
    """The link of a rank to its balancer: opened at first use, closed and opened again at will.

    `lock` is held while the link is used; `watched` are descriptors that wake its poller. The
    former connection is closed before another of the same name is opened, also where a signal's
    handler has raised in between: if the balancer heard of the former one last, it would take that
    for the one to answer, and the rank would never hear of it again. `before_closing` closes what
    others have opened in the context.
    """

    def __init__(self, endpoint: str, name: bytes, session: Any, keys: PeerKeys | None) -> None:
        self.lock = threading.RLock()
        self.watched: set[int] = set()
        self.patience_s = 0.0
        self._linger_ms = LINGER_MS["trainer"]
        self.owner = os.getpid()
        self._is_copy = False
        self.session = session
        self._address = endpoint
        self._endpoint = ""
        self.name = name
        self.before_closing: Callable[[], None] = lambda: None
        self._keys = keys
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._link: Link | None = None
        self._opened_at = math.inf  # until all that opening does is done
        _all.add(self)

    @property
    def is_open(self) -> bool:
        """Return whether there are sockets now."""
        return self._opened_at < math.inf

    @property
    def age_s(self) -> float:
        """Seconds since the sockets were opened; less than 0 while there are none."""
        return time.monotonic() - self._opened_at

    def refuse_forked_copy(self) -> None:
        """Raise LoaderError in a forked child: the balancer knows only the process it spoke to."""
        if self._is_copy:
            raise LoaderError(
                f"this loader's balancer and workers belong to process {self.owner}, and a forked "
                "child cannot use them: make a new DataLoader in the child"
            )

    def link(self) -> Link:
        """Return the link; a new one starts with what the balancer must be told."""
        if self._link is None or not self.is_open:
            self.drop()
            self._endpoint = self._find()
            self._context = zmq.Context()
            self._link = Link(self._context, self._endpoint, self.name, self._keys)
            for descriptor in self.watched:
                self._link.poller.register(descriptor, zmq.POLLIN)
            for message in self.session.reattach():
                self._link.send(message)
            self._opened_at = time.monotonic()
        return self._link

    def has_moved(self) -> bool:
        """Return whether the balancer is known to be elsewhere than this is connected to."""
        return find_address(self._address) not in ("", self._endpoint)

    def _find(self) -> str:
        """Return the balancer's address, once there is one; LoaderError after PATIENCE_S."""
        began, pause_s, log = time.monotonic(), 0.1, WaitLog(is_first=True)
        while not (address := find_address(self._address)):
            waited = time.monotonic() - began
            if waited > PATIENCE_S:
                raise LoaderError(
                    f"{self._address} has said no balancer's address for {waited:.0f} s"
                )
            if log.is_due(waited):
                text = "has waited %.0f s for a balancer's address in %s"
                logger.warning(text, waited, self._address)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)
        return address

    def context(self) -> "zmq.Context[zmq.Socket[bytes]]":
        """Return the context of the link's sockets."""
        self.link()
        assert self._context is not None  # the link is opened in one
        return self._context

    def watch(self, descriptors: set[int]) -> None:
        """Register these descriptors with the poller, and no others."""
        if self._link is not None:
            for descriptor in self.watched - descriptors:
                self._link.poller.unregister(descriptor)
            for descriptor in descriptors - self.watched:
                self._link.poller.register(descriptor, zmq.POLLIN)
        self.watched = set(descriptors)

    def give_up(self, linger_ms: int = 0) -> None:
        """Wait for no answer at the end, and at most `linger_ms` until messages are sent."""
        self.patience_s, self._linger_ms = 0.0, linger_ms

    def suspend(self) -> bool:
        """Close the sockets until they are needed; return False if they were closed already.

        What has arrived is kept.
        """
        link = self._link
        if link is None or not self.is_open or os.getpid() != self.owner:
            return False
        while (received := link.receive()) is not None:
            self.session.handle(*received)
        self.drop()
        return True

    def drop(self, is_gone: bool = False) -> None:
        """Close the sockets until they are needed; what has arrived is asked for again.

        is_gone: what was sent needs no time to leave, since the balancer is not there.
        """
        linger_ms = 0 if is_gone else self._linger_ms
        self._opened_at = math.inf
        self.before_closing()
        if self._link is not None:
            self._link.close(linger_ms)
        if self._context is not None:
            self._context.destroy(linger=linger_ms)
        self._link = self._context = None


# Every rank's sockets in this process.
_all: "weakref.WeakSet[RankSockets]" = weakref.WeakSet()


def _mark_copies() -> None:
    """Mark what a forked child has of its parent's: to ask for the process at each call costs."""
    for sockets in list(_all):
        sockets._is_copy = True


os.register_at_fork(after_in_child=_mark_copies)


@contextmanager
def closed_sockets() -> Iterator[None]:
    """Close the sockets of all connections while processes are forked, and open them again.

    Those that another thread is using at this moment stay open.
    """
    held = [sockets for sockets in list(_all) if sockets.lock.acquire(blocking=False)]
    suspended = [sockets for sockets in held if sockets.suspend()]
    try:
        yield
    finally:
        for sockets in suspended:
            sockets.link()
        for sockets in held:
            sockets.lock.release()


register_quiet(closed_sockets)

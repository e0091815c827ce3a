"""The payloads that a worker keeps for ranks to pull; no socket here.

The counterpart, in the rank, is loader/connect/pull_tracker.py. A payload is announced to the
balancer by its serial number, which is never used again, and kept until the balancer frees it. What
a rank was sent is its own: it may arrive after the payload was freed. So no message's delay, loss
or repetition can give a rank other bytes than were announced: it gets these, or none.
"""

import threading
from collections.abc import Sequence
from typing import Any

from ...balancer.protocol.messages import PulledPayloads, PullPayloads


class PayloadStore:
    """The payloads of one worker process, by serial number; safe to share between two threads."""

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes` is what this host has for them, whatever the balancer allows."""
        self.limit_bytes = limit_bytes
        self.nbytes = 0
        self._token = 0
        self._most_bytes = 0
        self._last = 0
        self._payloads: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._payloads)

    def begin(self, token: int, most_bytes: int) -> None:
        """Answer ranks that know this token from now on; payloads of another are forgotten."""
        with self._lock:
            if token != self._token:
                self._forget_all()
            self._token, self._most_bytes = token, min(most_bytes, self.limit_bytes)

    def end(self) -> None:
        """Keep no further payload; those that are here stay until they are freed."""
        with self._lock:
            self._most_bytes = 0

    def keep(self, payload: Any) -> int:
        """Keep a payload, in one buffer, and return its serial; 0 where there is no room."""
        nbytes = memoryview(payload).nbytes
        with self._lock:
            if not 0 < nbytes <= self._most_bytes - self.nbytes:
                return 0
            self._last += 1
            self._payloads[self._last] = payload
            self.nbytes += nbytes
            return self._last

    def answer(self, request: PullPayloads) -> tuple[PulledPayloads, list[Any]]:
        """Return the answer to a rank, and a payload for each serial in it."""
        with self._lock:
            known = self._payloads if request.token == self._token else {}
            found = [serial for serial in dict.fromkeys(request.serials) if serial in known]
            payloads = [known[serial] for serial in found]
        return PulledPayloads(request.number, tuple(found)), payloads

    def free(self, serials: Sequence[int]) -> None:
        """Forget payloads that nobody needs any more; unknown and repeated serials are ignored."""
        with self._lock:
            for serial in serials:
                payload = self._payloads.pop(serial, None)
                if payload is not None:
                    self.nbytes -= memoryview(payload).nbytes

    def free_all(self) -> None:
        """Forget all payloads: the balancer has forgotten this worker, or its job is over."""
        with self._lock:
            self._forget_all()

    def _forget_all(self) -> None:
        self._payloads.clear()
        self.nbytes = 0

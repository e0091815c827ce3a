"""The receiving process' view of its senders' slots: maps them once, and says what is free again.

A receiver never writes to a sender's books: it writes a number into a pipe when no tensor refers to
a slot any more. If the receiver dies, its tensors are gone and the sender ends with it. If the
sender dies, what it handed over stays readable: the receiver has it mapped.
"""

import contextlib
import os
from collections import deque
from collections.abc import Sequence
from typing import Any

from .memory import Mapping
from .sender import FREED
from .views import watched_view

# A pipe takes 4,096 bytes at once or none; more could be cut.
_MOST_AT_ONCE = 4096 // FREED.size


class _Sender:
    """One sender's slots. The pipe is closed when no tensor is left that could write to it."""

    def __init__(self, pipe: int) -> None:
        self.mappings: dict[int, Mapping] = {}
        self._pipe = pipe
        self._freed: deque[bytes] = deque()

    def free(self, number: int, inherited: bool) -> None:
        """Tell the sender that a slot is free; `inherited`: that it must not be used again."""
        if inherited:
            self.mappings.pop(number, None)
        self._freed.append(FREED.pack(number << 1 | inherited))
        freed: list[bytes] = []
        with contextlib.suppress(IndexError):  # other threads take some, too
            while len(freed) < _MOST_AT_ONCE:
                freed.append(self._freed.popleft())
        try:
            os.write(self._pipe, b"".join(freed))
        except BlockingIOError:  # the sender has asked for nothing in a long time
            self._freed.extend(freed)
        except OSError:
            pass  # the sender has ended

    def __del__(self, _close: Any = os.close) -> None:
        _close(self._pipe)


class Receiver:
    """The slots of all senders of a queue, in the process that receives."""

    def __init__(self) -> None:
        self._senders: dict[int, _Sender] = {}

    def learn(
        self,
        token: int,
        slots: Sequence[tuple[int, int]],
        retired: Sequence[int],
        descriptors: list[int],
    ) -> None:
        """Map a sender's new slots (number, size), and unmap those that it has retired.

        descriptors: of the slots, in order; before them the pipe's, of a sender that is new. They
        are closed. OSError where one cannot be mapped, or did not arrive.
        """
        try:
            new = token not in self._senders
            if len(descriptors) != len(slots) + new:
                raise OSError(
                    f"{len(slots) + new} descriptors of shared memory were sent and "
                    f"{len(descriptors)} arrived: this process has too many open files; raise the "
                    "limit (ulimit -n)"
                )
            if new:
                self._senders[token] = _Sender(descriptors.pop(0))
            sender = self._senders[token]
            for (number, size), descriptor in zip(slots, descriptors, strict=True):
                sender.mappings[number] = Mapping(descriptor, size)
            for number in retired:
                sender.mappings.pop(number, None)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def view(self, token: int, number: int, length: int) -> Any:
        """Return a slot's first bytes as a writable buffer; the slot is freed when it is gone.

        ValueError for a handle that no sender of this queue can have made.
        """
        sender = self._senders.get(token)
        mapping = None if sender is None else sender.mappings.get(number)
        if sender is None or mapping is None or not 0 < length <= mapping.size:
            raise ValueError(f"slot {number} of sender {token:x} has no {length} bytes here")
        free = sender.free
        return watched_view(mapping, length, lambda inherited: free(number, inherited))

"""A queue between processes for torch's iterator, whose messages are small and whose bytes stay.

It stands for multiprocessing's Queue on both ways: tasks to a worker, batches to the trainer. That
one has a thread that pickles and writes; it shares each tensor by a file of its own, filled page by
page. Here the process that puts writes the message itself, one packet of a unix socket, and large
tensors lie in slots that are used again (sender.py, receiver.py).

The trainer never waits for a worker: tasks that the socket has no room for are kept, and sent when
it puts or gets something next. A worker waits for the trainer, and reads its own tasks meanwhile:
the last of them says that the batch is not wanted any more.
"""

import array
import os
import queue
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch.multiprocessing

from . import frames
from .layout import Packet, Packets
from .malloc import release_freed_memory
from .memory import received_descriptors
from .packing import unpack
from .receiver import Receiver
from .sender import Sender
from .worker import this_worker

_BUFFER_BYTES = 4 << 20  # asked for; the kernel gives what it allows
_ANCILLARY = socket.CMSG_SPACE((frames.MOST_SLOTS + 1) * array.array("i").itemsize)
# How long the trainer waits for a batch before it tries again to send a task that had no room.
_AGAIN_S = 0.02

# The queues of this process with tasks that have not been sent, by identity.
_waiting: "dict[int, ArenaQueue]" = {}


class ArenaQueue:
    """One direction of a conversation; any process that has it may put, and one may get."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        for end in (self._reader, self._writer):
            end.setblocking(False)
        self._begin()

    def _begin(self) -> None:
        """Be the queue of this process: what was read and not taken yet, and slots, are its own."""
        self._process = os.getpid()
        self._read: deque[Any] = deque()
        self._unsent: deque[Packet] = deque()
        self._sender: Sender | None = None
        self._receiver = Receiver()
        self._space = bytearray(frames.MOST_BYTES)
        self._arrivals = select.poll()
        self._arrivals.register(self._reader, select.POLLIN)

    def __getstate__(self) -> Any:
        # Sockets can be pickled for a process that is being started, and nowhere else.
        return self._reader, self._writer

    def __setstate__(self, state: Any) -> None:
        self._reader, self._writer = state
        self._begin()

    def put(self, message: Any) -> None:
        """Send an object; raises what pickling raises.

        In a worker the trainer is sent such an error in place of the object.
        """
        self._own()
        worker = this_worker()
        if worker is None:
            self._send_or_keep(message)
            return
        if worker.work is not None:
            worker.end_task(message)
        try:
            layout = Packets(message, worker.sender)
        except Exception:
            layout = Packets(worker.failed(message), worker.sender)
        for packet in layout.packets():
            if not self._send_waiting(packet, worker.tasks):
                return

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next object; queue.Empty if none comes within `timeout` seconds."""
        self._own()
        worker = this_worker()
        if worker is not None:
            worker.tasks = self
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._read:
                if worker is not None and worker.work is not None:
                    worker.begin_task()
                return self._read.popleft()
            # Waited for first: to read where nothing is there yet is the dearer way to find out.
            if not self._wait(deadline if block else 0.0):
                if worker is not None:
                    release_freed_memory()
                raise queue.Empty
            self.receive()

    def close(self) -> None:
        """Close both ends in this process; what has arrived, and its tensors, stay."""
        _waiting.pop(id(self), None)
        for _, descriptors in self._unsent:
            for descriptor in descriptors:
                os.close(descriptor)
        self._unsent.clear()
        self._reader.close()
        self._writer.close()
        if self._sender is not None and self._process == os.getpid():
            self._sender.close()
        self._sender = None

    def __del__(self) -> None:
        # torch leaves its queue of results open, and `python -W error` minds
        if "_writer" in self.__dict__:
            self._reader.close()
            self._writer.close()

    def discard(self) -> None:
        """Forget messages that were not read: the process that was to read them has ended."""
        self._unsent.clear()
        _waiting.pop(id(self), None)
        while True:
            try:
                self._reader.recv(frames.MOST_BYTES)
            except BlockingIOError:
                return

    def cancel_join_thread(self) -> None:
        """Do nothing: there is no thread."""

    def receive(self) -> bool:
        """Read one message if there is one; return whether there was."""
        try:
            length, ancillary, _, _ = self._reader.recvmsg_into([self._space], _ANCILLARY)
        except BlockingIOError:
            return False
        if not length:
            raise EOFError("the other end of a loader's queue is closed")
        data = memoryview(self._space)[:length]
        kind = data[0]
        if kind == frames.BODY:
            self._read.append(self._unpack(data))
        elif kind == frames.BODY_AT:
            token, slot, length = frames.read_body_in_slot(data)
            self._read.append(self._unpack(memoryview(self._receiver.view(token, slot, length))))
        else:
            token, new, retired = frames.read_slots(data)
            self._receiver.learn(token, new, retired, received_descriptors(ancillary))
        return True

    def fileno(self) -> int:
        """Return what is readable when a message has arrived."""
        return self._reader.fileno()

    def _own(self) -> None:
        """Start empty in a forked child: messages read before, and slots, are its parent's."""
        if self._process != os.getpid():
            self._begin()

    def _unpack(self, body: memoryview) -> Any:
        token, pieces, pickled, copied = frames.read_body(body)
        buffers, start = [], 0
        for slot, length in pieces:
            if slot == frames.NO_SLOT:
                buffers.append(bytearray(copied[start : start + length]))
                start += length
            else:
                buffers.append(self._receiver.view(token, slot, length))
        return unpack(pickled, buffers)

    def _wait(self, deadline: float | None) -> bool:
        """Wait until something arrives; return whether it did before the deadline."""
        while True:
            for arena_queue in list(_waiting.values()):
                arena_queue.send_unsent()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if _waiting:
                left = _AGAIN_S if left is None else min(left, _AGAIN_S)
            if self._arrivals.poll(None if left is None else left * 1000):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def _send_or_keep(self, message: Any) -> None:
        """Send what there is room for, in order, and keep the rest."""
        if self._sender is None:
            self._sender = Sender()
        self._unsent.extend(Packets(message, self._sender).packets())
        self.send_unsent()

    def send_unsent(self) -> None:
        """Send what was kept, in order, as far as there is room."""
        while self._unsent:
            if not self._try_send(self._unsent[0]):
                _waiting[id(self)] = self
                return
            self._unsent.popleft()
        _waiting.pop(id(self), None)

    def _send_waiting(self, packet: Packet, tasks: "ArenaQueue | None") -> bool:
        """Send when there is room; return False if it is not wanted any more.

        tasks: the queue that this worker gets tasks by; None ends them.
        """
        poller = select.poll()
        while not self._try_send(packet):
            poller.register(self._writer, select.POLLOUT)
            if tasks is not None:
                poller.register(tasks, select.POLLIN)
            poller.poll()
            if tasks is not None and (arrived := tasks.waiting()) and arrived[-1] is None:
                return False
        return True

    def waiting(self) -> Sequence[Any]:
        """Return what has arrived and was not taken, and leave it."""
        while self.receive():
            pass
        return self._read

    def _try_send(self, packet: Packet) -> bool:
        """Send a message and close its descriptors; return False if there is no room for it."""
        parts, descriptors = packet
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        try:
            self._writer.sendmsg(parts, [rights] if descriptors else [])
        except (BlockingIOError, InterruptedError):
            return False
        except (BrokenPipeError, ConnectionResetError):
            pass  # the reader has ended
        for descriptor in descriptors:
            os.close(descriptor)
        return True


os.register_at_fork(after_in_child=_waiting.clear)  # its parent sends them


class LockFreeEvent:
    """An event that one process sets and others look at; it cannot be waited for.

    It has no lock. multiprocessing's has one, which a worker that is killed while it looks would
    keep, and then the trainer would wait for it for ever when it ends the others. context: the
    multiprocessing context of the processes.
    """

    def __init__(self, context: Any) -> None:
        self._times_set = context.Semaphore(0)

    def set(self) -> None:
        """Set it for good."""
        self._times_set.release()

    def is_set(self) -> bool:
        """Return whether it was set."""
        return bool(self._times_set.get_value())


class ArenaContext:
    """Any context of multiprocessing's, None for the interpreter's, but for its queues."""

    def __init__(self, context: Any = None) -> None:
        self._context = torch.multiprocessing if context is None else context

    def Queue(self) -> ArenaQueue:  # noqa: N802
        """Return a queue for tasks or batches; torch asks for none with a largest size."""
        return ArenaQueue()

    def Event(self) -> LockFreeEvent:  # noqa: N802
        """Return what tells the workers that the trainer has done with them."""
        return LockFreeEvent(self._context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

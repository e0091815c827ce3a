"""A network between processes on this machine whose cables can be pulled: small tcp proxies.

Nothing runs by itself: `Network.pump` forwards what there is for as long as its caller waits. Bytes
are never changed or left out within a connection (tcp would not either): a fault makes one way of
it late, or ends it with what was under way.
"""

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

CHUNK_BYTES = 1 << 16
STEP_S = 0.02
WAYS = ("there", "back")


@dataclass(slots=True)
class _Connection:
    """Both sockets of a connection, by the way for which they are the source."""

    sources: dict[str, socket.socket]
    pending: dict[str, bytes] = field(default_factory=lambda: dict.fromkeys(WAYS, b""))

    def sink(self, way: str) -> socket.socket:
        return self.sources["back" if way == "there" else "there"]

    def close(self) -> None:
        for each in self.sources.values():
            each.close()


class Cable:
    """A listening port whose connections lead to another port of this machine.

    `late` are the ways on which nothing moves; while `pulled`, whoever connects is let go at once.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self.late: set[str] = set()
        self.pulled = False
        self.connections: list[_Connection] = []

    def cut(self) -> int:
        """End all connections with what is under way; return how many there were."""
        count = len(self.connections)
        for each in self.connections:
            each.close()
        self.connections.clear()
        return count

    def close(self) -> None:
        """End everything."""
        self.cut()
        self._listening.close()

    def waits(self) -> tuple[list[socket.socket], list[socket.socket]]:
        """Return the sockets that should be read and written."""
        reading, writing = [self._listening], []
        for each in self.connections:
            for way in set(WAYS) - self.late:
                if each.pending[way]:
                    writing.append(each.sink(way))
                else:
                    reading.append(each.sources[way])
        return reading, writing

    def move(self, ready: set[socket.socket]) -> None:
        """Accept and forward what these sockets have or have room for."""
        if self._listening in ready:
            self._accept()
        for each in list(self.connections):
            try:
                for way in set(WAYS) - self.late:
                    _move(each, way, ready)
            except OSError:
                each.close()
                self.connections.remove(each)

    def _accept(self) -> None:
        near = self._listening.accept()[0]
        if self.pulled:
            near.close()
            return
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            return
        for each in (near, far):
            each.setblocking(False)
        self.connections.append(_Connection({"there": near, "back": far}))


class ProxyNetwork:
    """Cables to one port, by the name of who uses them."""

    def __init__(self, names: tuple[str, ...], target: int) -> None:
        self.cables = {name: Cable(target) for name in names}

    def pump(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Forward for so long, or until something has happened (looked at between the moves)."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not until():
            cables = list(self.cables.values())
            waits = [cable.waits() for cable in cables]
            reading = [each for readers, _ in waits for each in readers]
            writing = [each for _, writers in waits for each in writers]
            can_read, can_write, _ = select.select(reading, writing, [], min(left, STEP_S))
            ready = {*can_read, *can_write}
            for cable in cables:
                cable.move(ready)

    def close(self) -> None:
        """End all connections."""
        for cable in self.cables.values():
            cable.close()


def _move(connection: _Connection, way: str, ready: set[socket.socket]) -> None:
    """Move one way's bytes; OSError where the connection has ended."""
    source, sink = connection.sources[way], connection.sink(way)
    if not connection.pending[way] and source in ready:
        connection.pending[way] = source.recv(CHUNK_BYTES)
        if not connection.pending[way]:
            raise ConnectionResetError
    if connection.pending[way]:
        try:
            sent = sink.send(connection.pending[way])
        except BlockingIOError:
            return
        connection.pending[way] = connection.pending[way][sent:]

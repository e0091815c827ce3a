"""The balancer's shell: wait for a message or the time, ask the coordinator, send what it says."""

import time
from collections import deque
from collections.abc import Callable

import zmq

from .coordinator import Coordinator
from .memory import keep_freed_memory
from .messages import Refused
from .peers import Send
from .sockets import listen, receive_from, send
from .wire import WireError

# The last words may still be on their way when the balancer is stopped.
LINGER_MS = 500


def serve(
    coordinator: Coordinator,
    address: str,
    ready: Callable[[str], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    malformed: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve a coordinator on an address until `stop` says so (asked after every wait).

    `ready` is told the address that was bound, `malformed` each message that had to be dropped.
    Raises OSError if the address cannot be bound.
    """
    keep_freed_memory()
    with zmq.Context() as context, listen(context, address) as socket:
        ready(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        while not stop():
            timeout_ms = 1000 * (coordinator.next_deadline() - time.monotonic())
            if socket.poll(int(min(max(timeout_ms, 0), 1000))):
                _receive_all(coordinator, socket, malformed)
            _send_all(coordinator, socket, coordinator.tick(time.monotonic()))
        _send_all(coordinator, socket, coordinator.stop())
        socket.close(linger=LINGER_MS)


def _receive_all(
    coordinator: Coordinator, socket: "zmq.Socket[bytes]", malformed: Callable[[str], None]
) -> None:
    while (received := receive_from(socket)) is not None:
        peer, content = received
        if isinstance(content, WireError):
            malformed(str(content))
            _send_all(coordinator, socket, [Send(peer, Refused(str(content)))])
            continue
        message, frames = content
        size = sum(len(frame) for frame in frames)
        effects = coordinator.handle(peer, message, frames, size, time.monotonic())
        _send_all(coordinator, socket, effects)


def _send_all(coordinator: Coordinator, socket: "zmq.Socket[bytes]", effects: list[Send]) -> None:
    """Send effects; what cannot be sent is told to the coordinator, whose answer is sent too."""
    waiting = deque(effects)
    while waiting:
        effect = waiting.popleft()
        try:
            send(socket, effect.message, effect.payloads, to=effect.peer)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            waiting.extend(coordinator.gone(effect.peer, effect.message, time.monotonic()))

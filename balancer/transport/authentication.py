"""Who may come in: the balancer's answer to ZeroMQ's question about a peer's key, and its count.

Theory of operation. With keys, libzmq lets a connection through only if the peer proves that it has
the secret of a public key (CURVE) and this side says that the key is welcome (ZAP, ZeroMQ RFC 27: a
request on an inproc socket). The gate answers from the allow-list, in the balancer's own loop. What
comes in later carries the key, and is looked at again: the peers of a key that was removed are let
go, and a key speaks only for its role, so that a worker's cannot play a rank.
"""

import hmac
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zmq
from zmq.utils.monitor import recv_monitor_message

from ..protocol.messages import FROM_RANK, FROM_WORKER, Message
from .keys import AllowList, ServerKeys, public_text

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"counterpoise"
KINDS_OF_ROLE = {"worker": FROM_WORKER, "trainer": FROM_RANK}
# Handshakes that fail before the allow-list is asked; those that it refuses are counted there.
FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
# The allow-list is looked at when somebody knocks, and at least this often, in seconds.
LOOK_S = 1.0
# So much of a public key is told that its file can be found.
TOLD_CHARACTERS = 8
NOT_ALLOWED = "this key is not allowed (any more): ask who runs the balancer"


class KeyAuthenticator:
    """Lets peers in by their keys; `refused` is told of each that is not. Without keys, all."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        keys: ServerKeys | None,
        refused: Callable[[str], None],
    ) -> None:
        self._allowed = AllowList(keys.allowed) if keys is not None else None
        self._roles = self._allowed.roles() if self._allowed is not None else {}
        # Of connections for payloads in the clear: what each is known by, and its password.
        self.passwords: dict[bytes, bytes] = {}
        self._refused = refused
        self._users: dict[bytes, bytes] = {}
        self._looked = 0.0
        self._questions: zmq.Socket[bytes] | None = None
        self._monitors: list[zmq.Socket[bytes]] = []
        if keys is not None:
            self._questions = context.socket(zmq.REP)
            self._questions.setsockopt(zmq.LINGER, 0)
            self._questions.bind(ZAP_ENDPOINT)

    def watch(self, socket: "zmq.Socket[bytes]", poller: zmq.Poller) -> None:
        """Count the handshakes that fail on a listening socket; wake up for questions."""
        if self._questions is None:
            return
        self._monitors.append(socket.get_monitor_socket(FAILED))
        for each in (self._questions, self._monitors[-1]):
            poller.register(each, zmq.POLLIN)

    def attend(self, now: float) -> list[bytes]:
        """Answer all questions; return the peers whose key is not allowed any more."""
        while self._questions is not None and self._questions.poll(0):
            self._answer(self._questions)
        for monitor in self._monitors:
            while monitor.poll(0):
                recv_monitor_message(monitor)
                self._refused("a peer came without a key, or with a wrong idea of this balancer's")
        if self._allowed is None or now - self._looked < LOOK_S:
            return []
        self._looked = now
        self._roles = self._allowed.roles()
        gone = [peer for peer, user in self._users.items() if user not in self._roles]
        for peer in gone:
            del self._users[peer]
        return gone

    def objection(self, peer: bytes, user: bytes, message: Message) -> str:
        """Return why a message may not go on, empty if its key is allowed and has that role."""
        if self._allowed is None:
            return ""
        role, kind = self._roles.get(user), type(message).__name__
        if role is None:
            return NOT_ALLOWED
        if not isinstance(message, KINDS_OF_ROLE.get(role, ())):
            return f"a {role}'s key may not send {kind}: give each process the keys of its role"
        self._users[peer] = user
        return ""

    def forget(self, peer: bytes) -> None:
        """A peer cannot be reached any more."""
        self._users.pop(peer, None)

    def close(self) -> None:
        """Let go of the sockets."""
        for each in (self._questions, *self._monitors):
            if each is not None:
                each.close(linger=0)

    def _answer(self, questions: "zmq.Socket[bytes]") -> None:
        version, number, _, address, _, mechanism, *credentials = questions.recv_multipart()
        where = address.decode("ascii", "replace")
        user = self._user_of(where, mechanism, credentials)
        status, text = (b"200", b"OK") if user else (b"400", b"this key is not allowed")
        questions.send_multipart([version, number, status, text, user, b""])

    def _user_of(self, where: str, mechanism: bytes, credentials: list[bytes]) -> bytes:
        """Return who may come in with these credentials; empty, and counted, if nobody."""
        if mechanism == b"PLAIN":
            name, password = credentials
            if hmac.compare_digest(self.passwords.get(name, b""), password) and password:
                return name
            self._refused(
                f"a peer at {where} came with a password that is not (or no longer) known"
            )
            return b""
        key = public_text(credentials[0]) if mechanism == b"CURVE" and credentials else b""
        if self._allowed is not None:
            self._roles = self._allowed.roles()
        if key in self._roles:
            return key
        told = key[:TOLD_CHARACTERS].decode()
        self._refused(f"a peer at {where} came with a key that is not allowed: {told}...")
        return b""


@contextmanager
def open_gate(
    context: "zmq.Context[zmq.Socket[bytes]]",
    keys: ServerKeys | None,
    refused: Callable[[str], None],
) -> Iterator[KeyAuthenticator]:
    """Give a gate, and close it."""
    gate = KeyAuthenticator(context, keys, refused)
    try:
        yield gate
    finally:
        gate.close()

"""ZAP handler: decides which CURVE public keys may connect, and counts rejections.

Theory of operation. With keys, libzmq accepts a connection only if the peer proves that it has the
secret of a public key (CURVE) and this process allows that key (ZAP, ZeroMQ RFC 27: a request on an
inproc socket). The authenticator answers from the allow-list, in the balancer's own loop. Every
message that arrives later carries the peer's key and is checked again: peers whose key was removed
are disconnected, and a key is valid for its role only, so that a worker's cannot act as a rank.
"""

from collections.abc import Callable

import zmq

from ..job import messages as of_job
from ..parties import messages as of_parties
from ..pool import messages as of_pool
from ..protocol.messages import ListJobs, Message
from ..protocol.status_messages import GetStatus
from ..protocol.trace_messages import StartTrace, TraceSpans
from .keys import AllowList, ServerKeys, public_text
from .naming import read_job
from .sockets import is_readable, read_event

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
KINDS_OF_ROLE = {
    "worker": (*of_job.FROM_WORKER, *of_pool.FROM_WORKER, ListJobs, TraceSpans),
    "trainer": (*of_parties.FROM_TRAINER, GetStatus, ListJobs, StartTrace, TraceSpans),
}
# Handshakes that fail before the allow-list is asked; those that it rejects are counted there.
FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
# The allow-list is read again at every handshake, and at least this often, in seconds.
RECHECK_S = 1.0
# Enough of a public key to find its file.
SHOWN_KEY_CHARACTERS = 8
NOT_ALLOWED = "this key is not allowed (any more): ask who runs the balancer"


class KeyAuthenticator:
    """Accepts peers by their keys; calls `rejected` with a reason for each other one.

    Without keys it accepts all peers, and is never asked.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        keys: ServerKeys | None,
        rejected: Callable[[str], None],
    ) -> None:
        self._allowed = AllowList(keys.allowed) if keys is not None else None
        self._roles = self._allowed.roles() if self._allowed is not None else {}
        self._rejected = rejected
        self._keys: dict[bytes, bytes] = {}
        self._checked_at = 0.0
        self._monitors: list[zmq.Socket[bytes]] = []
        self._requests = context.socket(zmq.REP)
        self._requests.bind(ZAP_ENDPOINT)

    def watch(self, socket: "zmq.Socket[bytes]", poller: zmq.Poller) -> None:
        """Have a poller woken up by handshakes of a listening socket, and count those that fail."""
        if self._allowed is not None:
            self._monitors.append(socket.get_monitor_socket(FAILED))
            for watched in (self._requests, *self._monitors):
                poller.register(watched, zmq.POLLIN)

    def answer_requests(self) -> None:
        """Answer requests of connections that wait to be let in."""
        while self._allowed is not None and is_readable(self._requests):
            version, number, _, address, _, _, *credentials = self._requests.recv_multipart()
            key = public_text(credentials[0]) if credentials else b""
            self._roles = self._allowed.roles()
            status, text = b"200", b"OK"
            if key not in self._roles:
                status, text = b"400", b"this key is not allowed"
                where, shown = address.decode("ascii", "replace"), key[:SHOWN_KEY_CHARACTERS]
                self._rejected(
                    f"a peer at {where} has a key that is not allowed: {shown.decode()}..."
                )
            self._requests.send_multipart([version, number, status, text, key, b""])

    def find_revoked(self, now: float) -> list[bytes]:
        """Count failed handshakes; return the peers whose key is not allowed any more."""
        for monitor in self._monitors:
            while monitor.poll(0):
                read_event(monitor)
                self._rejected("a peer has no key, or another public key for this balancer")
        if self._allowed is None or now - self._checked_at < RECHECK_S:
            return []
        self._checked_at = now
        self._roles = self._allowed.roles()
        revoked = [peer for peer, key in self._keys.items() if key not in self._roles]
        for peer in revoked:
            del self._keys[peer]
        return revoked

    def rejection_reason(self, peer: bytes, key: bytes, message: Message) -> str:
        """Return why a message is rejected; empty if its key is allowed and has the right role."""
        if self._allowed is None:
            return ""
        (role, job), kind = self._roles.get(key, ("", "")), type(message).__name__
        if not role:
            return NOT_ALLOWED
        if job and read_job(peer) != job:
            return f"this key is for job {job} only: give each process the keys of its job"
        if not isinstance(message, KINDS_OF_ROLE.get(role, ())):
            return f"a {role}'s key may not send {kind}: give each process the keys of its role"
        self._keys[peer] = key
        return ""

    def forget(self, peer: bytes) -> None:
        """Forget a peer that cannot be reached any more."""
        self._keys.pop(peer, None)

    def close(self) -> None:
        """Close the sockets."""
        for socket in (self._requests, *self._monitors):
            socket.close(linger=0)

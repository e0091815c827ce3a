"""ZAP handler: decides which CURVE public keys may connect, and when, and counts rejections.

Theory of operation. With keys, libzmq accepts a connection only if the peer proves that it has the
secret of a public key (CURVE) and this process allows that key (ZAP, ZeroMQ RFC 27: a request on an
inproc socket). The authenticator answers from the allow-list, in the balancer's own loop. Every
message that arrives later carries the peer's key and is checked again: peers whose key was removed
are disconnected, and a key is valid for its role only, so that a worker's cannot act as a rank.
Without keys libzmq asks as well, on tcp, and everybody is accepted: but not before the answer.
Until then libzmq takes no message from the connection, so the loop decides how fast peers come in.
"""

import resource
from collections.abc import Callable, Collection

import zmq

from ..job import messages as of_job
from ..parties import messages as of_parties
from ..pool import messages as of_pool
from ..protocol.messages import ListJobs, Message
from ..protocol.status_messages import GetStatus
from ..protocol.trace_messages import StartTrace, TraceSpans
from .keys import AllowList, ServerKeys, public_text
from .naming import job_of
from .sockets import SERIAL_AFTER, is_readable, read_event_value

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"counterpoise"
KINDS_OF_ROLE = {
    "worker": (*of_job.FROM_WORKER, *of_pool.FROM_WORKER, ListJobs, TraceSpans),
    "trainer": (*of_parties.FROM_TRAINER, GetStatus, ListJobs, StartTrace, TraceSpans),
}
# Handshakes that fail before the allow-list is asked; those that it rejects are counted there.
FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
OPENED, CLOSED = zmq.EVENT_ACCEPTED, zmq.EVENT_DISCONNECTED
# Of the files that this process may open, connections of strangers get at most this part.
FILES_PART = 2
MOST_CONNECTIONS = 1 << 14
# The allow-list is read again at every handshake, and at least this often, in seconds.
RECHECK_S = 1.0
# Requests that are answered at a time: of those let in, the first are heard before the last.
MOST_ANSWERS = 16
# Peers that are told when their key is allowed no more; all others are when they say something.
MOST_PEERS = 1 << 16
# The user that everybody is where no keys are used.
ANYBODY = b"anybody"
# Enough of a public key to find its file.
SHOWN_KEY_CHARACTERS = 8
NOT_ALLOWED = "this key is not allowed (any more): ask who runs the balancer"


def most_connections() -> int:
    """Return how many connections strangers may have here: other files are for who is known."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files < 0 else min(MOST_CONNECTIONS, files // FILES_PART)


class KeyAuthenticator:
    """Accepts peers by their keys; calls `rejected` with a reason for each other one.

    Without keys it accepts everybody. events: (OPENED or CLOSED, descriptor) of connections, which
    the caller empties.
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
        self.events: list[tuple[int, int]] = []
        self._checked_at = 0.0
        # Connections are numbered in the order in which they are let in.
        self._let_in = 0
        self._monitors: list[zmq.Socket[bytes]] = []
        self._requests = context.socket(zmq.REP)
        self._requests.setsockopt(zmq.LINGER, 0)
        self._requests.bind(ZAP_ENDPOINT)

    def watch(self, socket: "zmq.Socket[bytes]", poller: zmq.Poller) -> None:
        """Have a poller woken up by handshakes of a listening socket, and count those that fail."""
        poller.register(self._requests, zmq.POLLIN)
        self._monitors.append(socket.get_monitor_socket(FAILED | OPENED | CLOSED))
        poller.register(self._monitors[-1], zmq.POLLIN)

    def answer_requests(self, readable: Collection[object]) -> None:
        """Answer requests of connections that wait to be let in, some at a time.

        readable: the sockets that can be read.
        """
        for _ in range(MOST_ANSWERS if self._requests in readable else 0):
            if not is_readable(self._requests):
                break
            self._answer(self._requests)

    def find_revoked(self, now: float) -> list[bytes]:
        """Count failed handshakes; return the peers whose key is not allowed any more."""
        for monitor in self._monitors:
            while monitor.poll(0):
                event, descriptor = read_event_value(monitor)
                if event in (OPENED, CLOSED):
                    self.events.append((event, descriptor))
                elif self._allowed is not None:
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
        if job and job_of(peer) != job:
            return f"this key is for job {job} only: give each process the keys of its job"
        if not isinstance(message, KINDS_OF_ROLE.get(role, ())):
            return f"a {role}'s key may not send {kind}: give each process the keys of its role"
        self._keys.pop(peer, None)
        self._keys[peer] = key
        if len(self._keys) > MOST_PEERS:  # the one that was silent for longest is not told
            del self._keys[next(iter(self._keys))]
        return ""

    def forget(self, peer: bytes) -> None:
        """Forget a peer that cannot be reached any more."""
        self._keys.pop(peer, None)

    def close(self) -> None:
        """Close the sockets."""
        for each in (self._requests, *self._monitors):
            each.close(linger=0)

    def _answer(self, requests: "zmq.Socket[bytes]") -> None:
        version, number, _, address, _, mechanism, *credentials = requests.recv_multipart()
        where = address.decode("ascii", "replace")
        user = self._authenticate(where, mechanism, credentials)
        status, text = (b"200", b"OK") if user else (b"400", b"this key is not allowed")
        if user:
            self._let_in += 1
            user = b"%s%s%d" % (user, SERIAL_AFTER.encode(), self._let_in)
        requests.send_multipart([version, number, status, text, user, b""])

    def _authenticate(self, where: str, mechanism: bytes, credentials: list[bytes]) -> bytes:
        """Return the user with these credentials; empty if they are rejected."""
        if mechanism == b"NULL" and self._allowed is None:
            return ANYBODY
        key = public_text(credentials[0]) if mechanism == b"CURVE" and credentials else b""
        if self._allowed is not None:
            self._roles = self._allowed.roles()
        if key in self._roles:
            return key
        shown = key[:SHOWN_KEY_CHARACTERS].decode()
        self._rejected(f"a peer at {where} has a key that is not allowed: {shown}...")
        return b""

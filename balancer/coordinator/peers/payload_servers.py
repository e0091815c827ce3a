"""The workers from which ranks pull payloads: their tokens, and what ranks connect with.

A worker says in its hello where it listens. It is given a token, by which ranks know it from then
on, and credentials, which only it and the ranks are told, over their connections to the balancer. A
worker that says hello again is another one here: nothing that it announced before is of use.
"""

from collections.abc import Callable

import msgspec

from ...protocol.job_spec import JobSpec
from ...protocol.messages import PayloadServer, ServePayloads
from .records import WorkerPeer

AS_ASKED = 'transport="inline" was given'


class PullCredentials(msgspec.Struct, frozen=True):
    """A worker's credentials for ranks: a key pair under CURVE (Z85), or only a password."""

    public: bytes
    secret: bytes


# Makes the credentials of a worker with this public key (empty: nothing would be encrypted); None
# if ranks may not connect to it.
MakeCredentials = Callable[[bytes], PullCredentials | None]


class PayloadServers:
    """Gives workers their tokens, and finds them by these."""

    def __init__(self, make_credentials: MakeCredentials | None, last_token: int) -> None:
        """Without `make_credentials` no worker serves; `last_token` was the last one given."""
        self._make_credentials = make_credentials
        self._last_token = last_token
        self._workers: dict[int, WorkerPeer] = {}

    def admit(self, worker: WorkerPeer) -> None:
        """Admit a worker that has an address as a server, if ranks may connect to it."""
        hello = worker.hello
        if not hello.address or self._make_credentials is None:
            return
        found = self._make_credentials(hello.key)
        if found is None:
            worker.why_inline = "the balancer has keys, and this worker would serve without"
            return
        self._last_token += 1
        worker.serves = PayloadServer(
            self._last_token, hello.address, hello.key, found.public, found.secret
        )
        self._workers[self._last_token] = worker

    def begin_job(self) -> None:
        """Return all workers to service, also those out of reach of a former job's ranks."""
        for worker in self._workers.values():
            worker.why_inline = ""

    def find(self, token: int) -> WorkerPeer | None:
        """Return the worker with a token, None if it is gone."""
        return self._workers.get(token)

    def remove(self, worker: WorkerPeer) -> None:
        """Forget a worker that is gone."""
        if worker.serves is not None:
            self._workers.pop(worker.serves.token, None)


def instruction(worker: WorkerPeer, transport: str, most_bytes: int) -> ServePayloads | None:
    """Return what a worker is told about its payloads; None if it can only send them inline.

    transport: that of the job.
    """
    server = worker.serves
    if server is None or worker.why_inline:
        return None
    # Of a key pair the worker needs only the public key, of a password the whole.
    secret = b"" if server.public else server.secret
    kept_bytes = 0 if transport == "inline" else most_bytes
    return ServePayloads(server.token, kept_bytes, server.public, secret)


def why_not_direct(worker: WorkerPeer, job: JobSpec | None) -> str:
    """Return why a worker cannot take part in a job whose payloads are to be pulled."""
    if job is None or job.transport != "direct" or worker.serves is not None:
        return ""
    why = worker.why_inline or worker.hello.transport
    return (
        f'the job has transport="direct", and this worker\'s payloads travel {why:.200}: start it '
        "with counterpoise worker --serve, or leave transport"
    )


def how_carried(worker: WorkerPeer, transport: str) -> str:
    """Return how a worker's payloads travel, and why, as text."""
    if worker.why_inline:
        return f"inline: {worker.why_inline}"
    if worker.serves is not None and transport == "inline":
        return f"inline: {AS_ASKED}"
    return worker.hello.transport

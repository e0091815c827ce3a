"""A balancer, its peers and a recording proxy for a test, over tcp on the loopback.

The balancer and its peers are threads of the test.
"""

import contextlib
import functools
import select
import socket
import threading
import time
from typing import Any

import zmq

from counterpoise import Balancer, Ranks
from counterpoise.balancer.job.jobs import PlayedJobs
from counterpoise.balancer.job.messages import JoinPool
from counterpoise.balancer.protocol.messages import ListJobs
from counterpoise.balancer.server.loop import new_credentials, serve
from counterpoise.balancer.transport.keys import new_pair, peer_keys, server_keys
from counterpoise.balancer.transport.naming import peer_name
from counterpoise.balancer.transport.sockets import connect, receive, send
from counterpoise.loader import DataLoader, RemoteDataset
from counterpoise.tools.cli import group
from counterpoise.workers.daemon.job_worker import WorkerSetup, open_remote_worker
from counterpoise.workers.daemon.jobs import JobsWorker, ServedBalancer
from counterpoise.workers.serving.frame_store import FrameStore
from counterpoise.workers.serving.server import PullServer
from counterpoise.workers.sources.registry import open_source

LIMIT_S = 120
SAMPLES = 12
SMALL: dict[str, Any] = {"tile_size": 32, "max_tiles": 4, "tokens_per_tile": 4}


def keygen(*words):
    return group.main(["keygen", *map(str, words)], standalone_mode=False)


class Party:
    """What is served, who was refused; `close` ends all threads."""

    def __init__(self, keys=None, address="tcp://127.0.0.1:0"):
        self.refusals = []
        self.news = threading.Condition()
        self.reasons = {}
        self._stop = threading.Event()
        self._threads = []
        self._bound = threading.Event()
        self.address = ""
        own = server_keys(keys) if keys else None
        credentials = functools.partial(new_credentials, has_keys=own is not None)
        self.jobs = PlayedJobs(int(time.time()), credentials)
        self._start(
            lambda: serve(
                self.jobs,
                address,
                ready=self._ready,
                stop=self._stop.is_set,
                refused=self._refused,
                keys=own,
            )
        )
        assert self._bound.wait(LIMIT_S)

    def work(self, root, name, keys=None, address=None, wrap=lambda worker: worker, serves=False):
        """Start a worker that reads below a root; what ends it goes to `reasons`.

        wrap: returns what is to work in a worker's place.
        """
        own = peer_keys(keys, "worker") if keys else None

        @contextlib.contextmanager
        def open_worker(balancer, endpoint, job):
            with contextlib.ExitStack() as ending:
                server, where, key = None, "", b""
                if serves:
                    pair = new_pair("worker") if own else None
                    server = PullServer("tcp://127.0.0.1:*", pair, FrameStore())
                    ending.callback(server.close)
                    where, key = server.endpoint, server.key
                hello = JoinPool(name, 0, "inline", where, key, 0)
                build = lambda described: open_source(described, root)  # noqa: E731
                setup = WorkerSetup(peer_name(job, name), hello, build, server)
                yield wrap(ending.enter_context(open_remote_worker(endpoint, setup, own)))

        def run():
            balancer = ServedBalancer(address or self.address, keys=own)
            try:
                reason = JobsWorker([balancer], open_worker, 1 << 30).work(self._stop.is_set)
            except ValueError as error:
                reason = str(error)
            with self.news:
                self.reasons[name] = reason
                self.news.notify_all()

        self._start(run)

    @property
    def workers(self):
        """The names of the workers that have the data of their job open."""
        return [
            worker.hello.name
            for job in [*self.jobs.jobs.values()]
            for worker in [*job.admission.workers.values()]
            if worker.opened is not None
        ]

    def wait(self, fact):
        """Wait until a fact is true; it is looked at after every piece of news."""
        with self.news:
            deadline = time.monotonic() + LIMIT_S
            while not fact() and time.monotonic() < deadline:
                self.news.wait(0.05)
            assert fact(), (self.refusals, self.reasons)

    def refused(self, words):
        """How often something with these words was refused."""
        return sum(words in reason for reason in self.refusals)

    def close(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()

    def _ready(self, address):
        self.address = address
        self._bound.set()

    def _refused(self, reason):
        with self.news:
            self.refusals.append(reason)
            self.news.notify_all()

    def _start(self, action):
        self._threads.append(threading.Thread(target=action, daemon=True))
        self._threads[-1].start()


@contextlib.contextmanager
def recorded(address):
    """Give the address of a proxy before another, and what has passed: a record for each way."""
    host, port = address.removeprefix("tcp://").split(":")
    listener = socket.create_server(("127.0.0.1", 0))
    seen, done = [], threading.Event()

    def pump(client):
        ends = contextlib.suppress(OSError)  # a peer that goes resets its connection
        with ends, client, socket.create_connection((host, int(port))) as server:
            other = {client: server, server: client}
            records = {client: bytearray(), server: bytearray()}
            seen.extend(records.values())
            while not done.is_set():
                for each in select.select([client, server], [], [], 0.1)[0]:
                    data = each.recv(1 << 16)
                    if not data:
                        return
                    records[each].extend(data)
                    other[each].sendall(data)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=pump, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}", seen
    finally:
        done.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def make(address, keys):
    return DataLoader(
        RemoteDataset("*.tar", arguments=SMALL), balance="fixed", batch_size=2,
        shuffle=True, ranks=Ranks(virtual=2), collate_fn=list, timeout=LIMIT_S,
        balancer=Balancer(address, keys=keys),
    )  # fmt: skip


def samples(loader):
    found = [sample for batch in loader for sample in batch]
    loader.close()
    return found


class Peer:
    """A socket to a balancer that asks which jobs there are."""

    def __init__(self, address, keys, name=b"peer", message=None):
        self.context = zmq.Context()
        self.socket = connect(self.context, address, name, keys)
        send(self.socket, message or ListJobs())

    def answer(self, wait_s=LIMIT_S):
        """Return what the balancer says, None if it says nothing."""
        if not self.socket.poll(int(1000 * wait_s)):
            return None
        answer: Any = receive(self.socket)
        return answer[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.destroy(linger=0)


def telling_pieces(payload):
    """Pieces of a payload that nothing else looks like (a run of zeros stands in any handshake)."""
    pieces = [payload[at : at + 48] for at in range(0, len(payload) - 48, 512)]
    return [piece for piece in pieces if len(set(piece)) >= 8]

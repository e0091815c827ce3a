"""A stranger who keeps opening connections at a balancer's port, and says nothing over them."""

import contextlib
import selectors
import socket
import threading

import pytest

from tests.tools.services.commands import LIMIT_S, limited
from tests.tools.services.conftest import processes as processes

pytestmark = [pytest.mark.slow, pytest.mark.long]
FILES, HELD, PATIENCE_S = 128, 400, 15


class Stranger:
    """Holds as many connections to an address as it can, and opens others for those that end."""

    def __init__(self, address):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._address, self._ends = (host, int(port)), threading.Event()
        self._open = selectors.DefaultSelector()
        for _ in range(HELD):
            self._begin()
        self._thread = threading.Thread(target=self._hold)
        self._thread.start()

    def close(self):
        self._ends.set()
        self._thread.join()

    def _begin(self):
        idle = socket.socket()
        idle.setblocking(False)
        idle.connect_ex(self._address)
        self._open.register(idle, selectors.EVENT_READ)

    def _hold(self):
        while not self._ends.is_set():
            for key, _ in self._open.select(0.1):
                with contextlib.suppress(OSError):
                    if key.fileobj.recv(1 << 10):
                        continue
                self._open.unregister(key.fileobj)
                key.fileobj.close()
                self._begin()
        for key in [*self._open.get_map().values()]:
            key.fileobj.close()


def test_who_has_a_key_comes_in_while_a_stranger_holds_connections(processes, made, root):
    keys = made / "ours"
    words = "balancer", "--listen", "tcp://127.0.0.1:0", "--keys", str(keys / "balancer")
    balancer = processes(command=limited(FILES, *words))
    line = balancer.wait_for("listening on ")
    address = line.partition("listening on ")[2].partition(";")[0]
    stranger = Stranger(address)
    try:
        worker = processes(
            "worker", address, "--root", str(root), "--keys", str(keys / "worker"),
            "--until-lost", str(PATIENCE_S),
        )  # fmt: skip
        heard = f"the balancer at {address} answers", "no balancer has answered for"
        with worker.news:
            worker.news.wait_for(lambda: heard_of(worker, *heard), LIMIT_S)
        assert heard_of(worker, heard[0])
    finally:
        stranger.close()


def heard_of(worker, *words):
    return [line for line in worker.lines if any(each in line for each in words)]

"""Ranks meet at each of torch's stores, on a connection that others do not share."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from counterpoise.loader import LoaderError
from counterpoise.loader.peers.exchange import Peers
from counterpoise.loader.peers.joining import join
from counterpoise.loader.peers.store import Entries, MeetingPoint, StoreState, _own_connection
from tests.forking.popen import Popen
from tests.loader.peers.memory_store import Clock, walk


class OldStore:
    """A store that can do what all could."""

    def __init__(self) -> None:
        inner = dist.HashStore()  # type: ignore[attr-defined]
        for name in ("add", "set", "get", "check", "delete_key"):
            setattr(self, name, getattr(inner, name))


def tcp_store() -> Any:
    torch_dist: Any = dist
    return torch_dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)


def connected(store: Any, number: int) -> list[Any]:
    """Return so many connections to a store: torch 2.6 has no `clone`."""
    torch_dist: Any = dist
    return [torch_dist.TCPStore("127.0.0.1", store.port, is_master=False) for _ in range(number)]


@pytest.fixture(params=["tcp", "prefix", "file", "hash", "old"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    torch_dist: Any = dist
    match request.param:
        case "tcp":
            return tcp_store()
        case "prefix":
            return torch_dist.PrefixStore("a", torch_dist.PrefixStore("b", tcp_store()))
        case "file":
            return torch_dist.FileStore(str(tmp_path / "store"), 4)
        case "hash":
            return torch_dist.HashStore()
    return OldStore()


def met(stores: list[Any]) -> list[Peers]:
    """Return ranks on three hosts that have met."""
    ways: dict[int, Iterator[float]] = {}
    for rank, each in enumerate(stores):
        point = MeetingPoint(each, "label", rank, tuple(range(len(stores))))
        ways[rank] = join(point, "train", {"data": "x"}, 30.0, "aabc"[rank])
    found = walk(ways, Clock())
    assert all(isinstance(each, Peers) for each in found.values()), found
    return [each for _, each in sorted(found.items()) if isinstance(each, Peers)]


def test_values_travel_by_any_store(store: Any) -> None:
    connections = [_own_connection(store, 30.0)[0] for _ in range(4)]
    peers = met(connections)
    for number in range(3):
        values = tuple(bytes([rank, 0, 255]) * 1000 for rank in range(4))
        for each, value in zip(peers, values, strict=True):
            each.post(f"key/{number}", value)
        for each in peers:
            while (found := each.gather(f"key/{number}")) is None:
                pass
            assert found == values
    for each in peers:
        each.end("key")
        each.close()


def test_an_entry_is_appended_to_by_all_at_once(store: Any) -> None:
    entries = Entries(store, "x")
    for number in (2, 0, 2):
        entries.append("key", number, bytes([number]) * 300)
    assert entries.has_some("key")
    assert entries.collect("key", 3) == {2: b"\2" * 300, 0: bytes(300)}
    entries.delete("key", numbers=3)
    assert not entries.has("key")
    assert not entries.has("key/2")


def test_a_large_value_travels_by_tcp() -> None:
    store = tcp_store()
    peers = met(connected(store, 4))
    values = tuple(os.urandom(7 << 20 if rank == 2 else 10) for rank in range(4))
    for each, value in zip(peers, values, strict=True):
        each.post("key", value)
    for each in peers:
        while (found := each.gather("key")) is None:
            pass
        assert found == values
        each.close()


def test_a_wait_on_the_groups_connection_does_not_hold_up_ours() -> None:
    store = tcp_store()
    mine, has_ended = _own_connection(store, 30.0)
    waiting = threading.Thread(target=store.get, args=["late"])
    waiting.start()
    mine.set("other", b"1")
    assert mine.check(["other"])
    assert not has_ended()
    mine.set("late", b"1")
    waiting.join()


SERVER = """
import time
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(60)
"""


def test_a_store_that_is_stopped_or_gone_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    torch_dist: Any = dist
    server = Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    store = torch_dist.TCPStore("127.0.0.1", port, None, is_master=False, wait_for_workers=False)
    connected = [_own_connection(store, 0.5) for _ in range(2)]
    stopped, gone = (Entries(each, "x", StoreState(ended)) for each, ended in connected)
    stopped.set("key", b"1")
    os.kill(server.pid, signal.SIGSTOP)
    status = Path(f"/proc/{server.pid}/stat")
    while status.read_text().rpartition(")")[2].split()[0] != "T":  # a moment later
        pass
    with pytest.raises(LoaderError, match=r"\(Socket Timeout\)"):
        stopped.has("key")
    os.kill(server.pid, signal.SIGCONT)
    # Its answer may come now: to a request that was given up.
    with pytest.raises(LoaderError, match=r"\(Socket Timeout\)"):
        stopped.has("other")
    gone.set("key", b"1")
    capfd.readouterr()
    server.kill()
    server.wait()
    with pytest.raises(LoaderError, match=r"\(the connection was closed\)"):
        gone.has("key")
    # Torch would have written a stack of twenty lines.
    assert capfd.readouterr().err == ""


def test_forked_processes_do_not_disturb_their_parents_peers() -> None:
    store = tcp_store()
    peers = met(connected(store, 4))
    child = os.fork()
    if not child:
        # As a worker that ends: it closes what it has, and says goodbye to nobody.
        del store, peers
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for each in peers:
        each.post("key", b"value")
    for each in peers:
        while (found := each.gather("key")) is None:
            pass
        assert found == (b"value",) * 4
        each.close()

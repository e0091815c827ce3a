"""The parts of `make faults`: what it finds left, its network, its comparison."""

import os
import socket
import subprocess

import pytest

from tests.faults import leftovers
from tests.faults.proxy import ProxyNetwork
from tests.faults.trials import Trials, compare
from tests.forking.popen import MARK

LIMIT_S = 20.0


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_process_that_lives_on_is_found_by_its_mark():
    pipe, planted = subprocess.PIPE, f"{MARK}=planted"
    with subprocess.Popen(["cat"], env={MARK: "planted"}, stdin=pipe, stdout=pipe) as child:
        child.stdin.write(b"there?\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"there?\n"  # its environment can be read by now
        assert leftovers.processes(planted) == [f"process {child.pid}"]
        assert leftovers.processes(planted, but=child.pid) == []
        child.kill()
    assert leftovers.processes(planted) == []


def test_a_listening_socket_is_found_by_its_port(listening):
    port = listening.getsockname()[1]
    assert leftovers.listeners(port) == [f"a socket listens on port {port}"]
    listening.close()
    assert leftovers.listeners(port) == []


def test_unix_sockets_are_found_open_and_as_files(tmp_path):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(path))
        assert leftovers.unix_sockets(tmp_path) == [f"socket {path}"]
        path.rename(tmp_path / "moved")
        assert len(leftovers.unix_sockets(tmp_path)) == 2
    (tmp_path / "moved").unlink()
    assert leftovers.unix_sockets(tmp_path) == []


def test_shared_memory_that_nobody_has_open_is_found():
    before = leftovers.segments()
    path = leftovers.SHARED_MEMORY / f"counterpoise-planted-{os.getpid()}"
    try:
        with path.open("wb"):
            assert leftovers.shared_memory(before) == []
        assert leftovers.shared_memory(before) == [f"shared memory {path.name}"]
    finally:
        path.unlink()
    assert leftovers.shared_memory(before) == []


def test_temporary_files_and_descriptors_are_found(tmp_path):
    before = leftovers.descriptors(os.getpid())
    assert leftovers.more_descriptors(os.getpid(), before, "us") == []
    with (tmp_path / "planted").open("w"):
        assert leftovers.temporary_files(tmp_path) == ["temporary planted"]
        (found,) = leftovers.more_descriptors(os.getpid(), before, "us")
        assert found.startswith("1 file descriptors of us more")
        assert "planted" in found


def test_what_is_left_is_given_time_to_go():
    answers = iter([["a", "b"], ["a"], []])
    assert leftovers.settled(lambda: next(answers)) == []
    assert leftovers.settled(lambda: ["stays"], within_s=0.0) == ["stays"]


@pytest.fixture
def ends(listening):
    """A network and both ends of a connection through its only cable."""
    network = ProxyNetwork(("peer",), listening.getsockname()[1])
    near = socket.create_connection(("127.0.0.1", network.cables["peer"].port))
    network.pump(LIMIT_S, lambda: bool(network.cables["peer"].connections))
    far = listening.accept()[0]
    for each in (near, far):
        each.setblocking(False)
    yield network, near, far
    for each in (network, near, far):
        each.close()


def arrives(network, end):
    """Return what comes next at an end: bytes, or that the connection was ended."""
    found = []

    def look():
        try:
            found.append(end.recv(1000))
        except BlockingIOError:
            return False
        except ConnectionResetError:
            found.append(b"")
        return True

    network.pump(LIMIT_S, look)
    return found[0]


def test_one_way_can_be_late_and_comes_in_order(ends):
    network, near, far = ends
    network.cables["peer"].late = {"there"}
    near.send(b"late")
    far.send(b"in time")
    assert arrives(network, near) == b"in time"
    with pytest.raises(BlockingIOError):
        far.recv(1)
    network.cables["peer"].late = set()
    assert arrives(network, far) == b"late"


def test_a_cut_ends_both_sides_and_a_pulled_cable_lets_nobody_in(ends):
    network, near, far = ends
    assert network.cables["peer"].cut() == 1
    assert arrives(network, near) == arrives(network, far) == b""
    network.cables["peer"].pulled = True
    with socket.create_connection(("127.0.0.1", network.cables["peer"].port)) as again:
        again.setblocking(False)
        assert arrives(network, again) == b""
    assert network.cables["peer"].connections == []


def step(number, *keys):
    return (number, [[0, list(keys), "digest"]])


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ([step(0, "a"), step(1, "b")], (0, 0, 0)),
        ([step(0, "a")], (1, 0, 1)),
        ([step(0, "a"), step(1, "b"), step(1, "b")], (0, 1, 1)),
        ([step(1, "b"), step(0, "a")], (0, 0, 2)),
    ],
)
def test_what_is_missing_what_comes_twice_and_what_differs_is_counted(found, wrong):
    trials = Trials()
    compare([[step(0, "a"), step(1, "b")]], [found], [], trials)
    assert (trials.lost, trials.duplicated, trials.digest_mismatches) == wrong


def test_a_step_that_was_redelivered_must_be_the_same():
    trials = Trials()
    due = [step(0, "a"), step(1, "b")]
    compare([due], [due], [(0, step(1, "b")), (0, step(1, "c"))], trials)
    assert trials.digest_mismatches == trials.wrong == 1

"""A balancer is found by its address, or by a file that says it; over IPv6 too."""

import socket

import pytest
import zmq

from counterpoise.balancer.protocol.messages import JobList, ListJobs
from counterpoise.balancer.transport.finding import (
    checked_address,
    find_address,
    needs_ipv6,
    write_address,
)
from counterpoise.balancer.transport.sockets import connect, receive, send
from counterpoise.workers.serving.address import serving_address, shown_address
from tests.security.key_party import LIMIT_S, Party


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_a_file_says_where_a_balancer_is_now(tmp_path):
    path = tmp_path / "a b.addr"
    given = f"file://{tmp_path}/a%20b.addr"
    assert checked_address(given) == given
    assert find_address(given) == ""
    assert (
        write_address(path, "tcp://10.0.0.1:5555") == find_address(given) == "tcp://10.0.0.1:5555"
    )
    written = write_address(path, "tcp://0.0.0.0:5556")
    assert written == find_address(given) == f"tcp://{socket.getfqdn()}:5556"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("text", ["", "no address", "tcp://" + "x" * 400, "file:///etc/passwd"])
def test_a_file_without_an_address_is_waited_for(tmp_path, text):
    path = tmp_path / "balancer.addr"
    path.write_text(text)
    assert find_address(f"file://{path}") == ""


@pytest.mark.parametrize("given", ["file://relative", "http://10.0.0.1:5555", "10.0.0.1:5555"])
def test_what_can_be_no_address_is_told_apart(given):
    with pytest.raises(ValueError, match=r"file:///shared/balancer\.addr"):
        checked_address(given)


def test_a_name_that_has_only_ipv6_needs_it(monkeypatch):
    six = (socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", 0))
    four = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("10.0.0.1", 0))
    for found, needs in (([six], True), ([six, four], False), ([four], False)):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, found=found: found)
        assert needs_ipv6("tcp://balancer.cluster:5555") == needs


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_balancer_listens_and_is_reached_over_ipv6():
    party = Party(address="tcp://[::1]:0")
    try:
        assert party.address.startswith("tcp://[::1]:")
        with zmq.Context() as context, connect(context, party.address, b"peer") as peer:
            send(peer, ListJobs())
            assert peer.poll(1000 * LIMIT_S)
            answer = receive(peer)
            assert answer is not None
            assert isinstance(answer[0], JobList)
        own = serving_address(party.address, "auto", has_keys=False, is_insecure=False)
        assert own == "tcp://[::1]:*"
        assert shown_address("tcp://[::]:7", party.address) == "tcp://[::1]:7"
    finally:
        party.close()

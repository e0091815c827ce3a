"""A loader finds its balancer: from the environment, by a file that says it later, by another."""

import logging
import threading

import pytest

from counterpoise.balancer.transport.naming import read_job
from counterpoise.loader import DataLoader, RemoteDataset
from counterpoise.loader.remote import rank_sockets
from counterpoise.loader.step.errors import LoaderError
from counterpoise.loader.step.waiting import WaitLog
from tests.loader.remote.served import connect_to


def make(**more):
    return DataLoader(RemoteDataset("*.tar"), balance="fixed", batch_size=1, shuffle=True, **more)


def test_data_that_workers_elsewhere_can_read_go_through_the_environment_s(monkeypatch):
    monkeypatch.setenv("COUNTERPOISE_BALANCER", "tcp://127.0.0.1:9")
    assert make()._arguments.balancer.address == "tcp://127.0.0.1:9"
    assert make(balancer="tcp://127.0.0.1:8")._arguments.balancer.address == "tcp://127.0.0.1:8"
    local = DataLoader([1, 2], balance="fixed", batch_size=1, shuffle=True, cost={"tokens": [1, 2]})
    assert local._arguments.balancer.address is None


def test_a_rank_s_name_has_its_job():
    connection = connect_to("tcp://127.0.0.1:9", "run-a")
    assert read_job(connection._sockets.name) == "run-a"


def test_a_rank_waits_for_the_address_and_follows_it(tmp_path):
    path = tmp_path / "balancer.addr"
    sockets = connect_to(f"file://{path}")._sockets
    sockets.give_up()  # nobody is there to whom messages would have to be sent
    threading.Timer(0.2, path.write_text, ("tcp://127.0.0.1:9",)).start()
    sockets.link()
    assert sockets._endpoint == "tcp://127.0.0.1:9"
    assert not sockets.has_moved()
    path.unlink()
    assert not sockets.has_moved()  # nobody says where it is
    path.write_text("tcp://127.0.0.1:8")
    assert sockets.has_moved()
    sockets.drop()
    sockets.link()
    assert sockets._endpoint == "tcp://127.0.0.1:8"
    sockets.drop()


def test_a_rank_that_finds_no_address_says_what_it_waits_for(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(rank_sockets, "PATIENCE_S", 0.2)
    monkeypatch.setattr(WaitLog, "is_due", lambda *_: True)
    given = f"file://{tmp_path}/balancer.addr"
    connection = connect_to(given)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(LoaderError, match="no balancer's address"),
    ):
        connection._sockets.link()
    assert f"for a balancer's address in {given}" in caplog.text

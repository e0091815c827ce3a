"""Commands that cannot run say why in a line, and end with status 2."""

import contextlib
import socket
import threading

import pytest

from counterpoise.tools.cli import main
from tests.tools.services.commands import LIMIT_S

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["balancer", "--listen", "tcp://0.0.0.0:0"], "--insecure if the network is private"),
        (["balancer", "--listen", "nonsense://x"], "give an address such as"),
        (["balancer", "--supervise", "--listen", "tcp://127.0.0.1:0"], "has no port"),
        (["worker", "tcp://127.0.0.1:1", "--root", "/nowhere"], "does not exist"),
        (["worker", "nonsense", "--root", "."], "not a balancer's address"),
        (["worker", "tcp://127.0.0.1:1", "--root", ".", "--allow", "x"], "is not a transform"),
        (
            ["worker", "tcp://127.0.0.1:1", "--root", ".", "--allow", "no_such:f"],
            "cannot be imported",
        ),
        (["worker", "tcp://127.0.0.1:1=0", "--root", "."], "write NAME=WEIGHT"),
        (["worker", "--root", "."], "Missing argument"),
    ],
)
def test_a_command_that_cannot_run_says_why_and_exits_with_2(capfd, words, reason):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert reason in capfd.readouterr().err


def test_a_worker_that_finds_no_balancer_says_so_and_exits_with_3(processes):
    command = processes("worker", "tcp://127.0.0.1:1", "--root", ".", "--until-lost", "0.2")
    assert command.process.wait(LIMIT_S) == 3
    command.wait_for("no balancer has answered for")


def test_a_port_that_is_taken_is_one_line(processes):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        command = processes("balancer", "--listen", address)
        assert command.process.wait(LIMIT_S) == 2
        command.wait_for("the port is taken: stop what listens there, or choose another")
        assert len(command.lines) == 1


def test_a_worker_whose_connections_are_ended_hears_that_keys_may_be_lacking(processes):
    """As a balancer with keys does, where its answer is lost with the connection."""
    with socket.create_server(("127.0.0.1", 0)) as ending:

        def end_all():
            with contextlib.suppress(OSError):
                while True:
                    ending.accept()[0].close()

        threading.Thread(target=end_all, daemon=True).start()
        address = f"tcp://127.0.0.1:{ending.getsockname()[1]}"
        worker = processes("worker", address, "--root", ".")
        line = worker.wait_for("which has not answered for")
        assert "it ends each connection; if it has keys, give --keys" in line
        assert worker.end() == 0
        ending.shutdown(socket.SHUT_RDWR)

"""What a process of test_processes runs: meets its peers, and exchanges values until told not to.

    python rank_process.py TASK PORT HOSTS RANK

HOSTS has a letter for each rank: those with the same pretend to share a host.
"""

import os
import sys
import threading
import time
from datetime import timedelta

import torch.distributed as dist

from counterpoise.loader import LoaderError
from counterpoise.loader.peers import joining, members
from counterpoise.loader.peers.exchange import Peers
from counterpoise.loader.peers.joining import meet
from counterpoise.loader.step.ranks import Ranks

TIMEOUT_S = 5.0
TASK, PORT, HOSTS, RANK = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_missing(text: str) -> None:
    """Say who is missing, and stay until all have: the others ask this process, too."""
    say(f"missing: {text}")
    sys.stdin.read()


def gathered(peers: Peers, key: str, reasons: list[str]) -> tuple[bytes, ...]:
    """Return the values of a key, once they are there."""
    while (values := peers.gather(key)) is None:
        reasons[:] = [peers.describe_missing(key)]
        time.sleep(peers.pause_s())
    return values


def exchange(peers: Peers, progress: list[float]) -> None:
    """Exchange values for ever."""
    for number in range(1_000_000):
        peers.post(f"costs/{number}", bytes([RANK]) * 5_000)
        values = gathered(peers, f"costs/{number}", [])
        assert values == tuple(bytes([rank]) * 5_000 for rank in range(peers.ranks))
        progress[:] = [time.monotonic(), number]
        time.sleep(0.01)


def watch(peers: Peers) -> None:
    """Exchange values in a thread; say who is missing when that stands still."""
    progress, errors = [time.monotonic(), -1.0], []

    def run() -> None:
        try:
            exchange(peers, progress)
        except LoaderError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    say("started")
    while thread.is_alive() and time.monotonic() - progress[0] < TIMEOUT_S:
        time.sleep(0.05)
    reason = peers.describe_missing(f"costs/{progress[1] + 1:.0f}")
    say_missing(errors[0] if errors else reason)


def open_group_while_waiting(peers: Peers) -> None:
    """Make a process group while a thread waits for a rank that posts after that."""
    if RANK == 0:
        peers.post("key", b"0")
        found: list[tuple[bytes, ...]] = []
        thread = threading.Thread(target=lambda: found.append(gathered(peers, "key", [])))
        thread.start()
        time.sleep(0.5)
        dist.new_group()
        say(f"new group, {'waiting' if thread.is_alive() else 'not waiting'}")
        thread.join()
        say(f"gathered {b''.join(found[0]).decode()}")
    else:
        dist.new_group()
        time.sleep(1.0)
        peers.post("key", b"1")
        gathered(peers, "key", [])
    peers.close()


def run() -> None:
    """Do the task."""
    # Ranks with one letter see each other if they really can.
    machine = members.this_machine()
    setattr(joining, "this_machine", lambda: f"{machine} {HOSTS[RANK]}")  # noqa: B010 for mypy
    dist.init_process_group(
        "gloo", f"tcp://127.0.0.1:{PORT}", timedelta(seconds=60), len(HOSTS), RANK
    )
    if TASK == "late" and len(HOSTS) - 1 == RANK:
        say("started")
        time.sleep(60)
    try:
        peers = meet(Ranks().find(), "train", {"data": "x"}, TIMEOUT_S)
    except LoaderError as error:
        say_missing(str(error))
    else:
        open_group_while_waiting(peers) if TASK == "new_group" else watch(peers)
    os._exit(0)


if __name__ == "__main__":
    run()

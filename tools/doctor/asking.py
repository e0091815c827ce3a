"""Asks a balancer for the status of its jobs: what `doctor`, `top` and `trace` have in common."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ...balancer.protocol.messages import JobList, ListJobs
from ...balancer.protocol.status_messages import GetStatus, StatusReport
from ...balancer.transport.asking import observe
from ...balancer.transport.keys import PeerKeys, peer_keys


def asking_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ADDRESS, --keys and --job to a command, which is given the keys themselves."""
    keys = click.option(
        "--keys", type=click.Path(path_type=Path), metavar="FOLDER",
        callback=lambda _context, _option, folder: folder and peer_keys(folder, "trainer"),
        help="A trainer's keys, made by counterpoise keygen.",
    )  # fmt: skip
    job = click.option("--job", default="", metavar="NAME", help="Only this job.  [default: all]")
    return click.argument("address", metavar="ADDRESS")(keys(job(command)))


@contextmanager
def all_jobs(
    address: str, keys: PeerKeys | None, only: str = ""
) -> Iterator[Callable[[float], dict[str, StatusReport | str] | str]]:
    """Give a function that asks for the status of each job, or of `only` one.

    It is given the seconds to wait, and returns by job its report or why there is none, or why the
    balancer does not answer.
    """
    only = only or (keys.job if keys else "")
    with observe(address, keys, only) as observer:

        def ask_all(timeout_s: float) -> dict[str, StatusReport | str] | str:
            names: tuple[str, ...] = (only,)
            if not only:
                listed = observer.ask(ListJobs(), JobList, timeout_s)
                if isinstance(listed, str):
                    return listed
                names = listed.names
            return {name: observer.ask(GetStatus(name), StatusReport, timeout_s) for name in names}

        yield ask_all

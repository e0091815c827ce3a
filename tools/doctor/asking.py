"""Asks a balancer, as a peer that takes no part in its jobs: for its status, or for a trace."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from ...balancer.protocol.messages import JobList, ListJobs, Message, PeerRejected
from ...balancer.protocol.status_messages import (
    MICROSECONDS,
    UNKNOWN_US,
    ClockOffset,
    GetStatus,
    StatusReport,
)
from ...balancer.transport.finding import checked_address, find_address
from ...balancer.transport.keys import PeerKeys, peer_keys
from ...balancer.transport.naming import peer_name
from ...balancer.transport.sockets import Handshakes, connect, receive, send, zmq  # type: ignore[attr-defined]
from ...balancer.transport.wire import WireError
from .installation import find_role

T = TypeVar("T")

QUESTIONS = 5
# Waiting for an answer is interrupted this often, to check for a refused handshake.
POLL_MS = 200


def asking_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ADDRESS, --keys and --job to a command, which is given the keys themselves."""
    keys = click.option(
        "--keys", type=click.Path(path_type=Path), metavar="FOLDER",
        callback=lambda _context, _option, folder: own_keys(folder),
        help="A trainer's keys, made by counterpoise keygen.",
    )  # fmt: skip
    job = click.option("--job", default="", metavar="NAME", help="Only this job.  [default: all]")
    return click.argument("address", metavar="ADDRESS")(keys(job(command)))


def own_keys(folder: Path | None) -> PeerKeys | None:
    """Return the keys in a folder, if there is one."""
    return peer_keys(folder, find_role(folder)) if folder else None


@dataclass(frozen=True, slots=True)
class Answers:
    """A balancer's last status report (None without an answer) and the seconds each answer took.

    ahead_us: the balancer's clock minus this machine's; error: the reason why no more answers came.
    """

    status: StatusReport | None = None
    times_s: tuple[float, ...] = ()
    ahead_us: int = UNKNOWN_US
    error: str = ""


def ask(address: str, timeout_s: float, keys: PeerKeys | None, job: str = "") -> Answers:
    """Ask for the status a few times, to measure times and clocks; keep the last answer."""
    clock, times, last = ClockOffset(), list[float](), None
    with questions(address, keys, job) as ask_once:
        for _ in range(QUESTIONS):
            start = time.monotonic()
            answer = ask_once(timeout_s)
            if isinstance(answer, str):
                return Answers(last, tuple(times), clock.ahead_us, answer)
            last = answer
            times.append(time.monotonic() - start)
            clock.note(answer.clock_us, round(time.time() * MICROSECONDS))
    return Answers(last, tuple(times), clock.ahead_us)


@contextmanager
def questions(
    address: str, keys: PeerKeys | None, job: str = ""
) -> Iterator[Callable[[float], StatusReport | str]]:
    """Give a function that asks the balancer for its status, over one connection.

    It is given the seconds to wait, and returns the report, or the reason why there is none.
    """
    with _observer(address, keys, job) as (peer, handshakes):
        numbers = itertools.count()

        def ask_once(timeout_s: float) -> StatusReport | str:
            number, until = next(numbers), time.monotonic() + timeout_s
            send(peer, GetStatus(number))
            while True:
                answer = _answer(peer, handshakes, until, StatusReport)
                # One that came too late is of an earlier question.
                if isinstance(answer, str) or answer.number >= number:
                    return answer

        yield ask_once


@contextmanager
def all_jobs(
    address: str, keys: PeerKeys | None, only: str = ""
) -> Iterator[Callable[[float], dict[str, StatusReport | str] | str]]:
    """Give a function that asks for the status of each job, or of `only` one.

    It is given the seconds to wait, and returns by job what `questions` gives, or why nobody
    answers.
    """
    only = only or (keys.job if keys else "")
    with ExitStack() as stack:
        asked = {only: stack.enter_context(questions(address, keys, only))} if only else {}
        lister = None if only else stack.enter_context(_observer(address, keys, ""))

        def ask_all(timeout_s: float) -> dict[str, StatusReport | str] | str:
            names: tuple[str, ...] = (only,)
            if lister is not None:
                send(lister[0], ListJobs())
                listed = _answer(*lister, time.monotonic() + timeout_s, JobList)
                if isinstance(listed, str):
                    return listed
                names = listed.names
            for name in names:
                if name not in asked:
                    asked[name] = stack.enter_context(questions(address, keys, name))
            return {name: asked[name](timeout_s) for name in names}

        yield ask_all


def asked_once(
    address: str,
    keys: PeerKeys | None,
    job: str,
    question: Message,
    kind: type[T],
    timeout_s: float,
) -> T | str:
    """Ask the balancer one question; return its answer, of a kind, or why there is none."""
    with _observer(address, keys, job) as (peer, handshakes):
        send(peer, question)
        return _answer(peer, handshakes, time.monotonic() + timeout_s, kind)


@contextmanager
def _observer(
    address: str, keys: PeerKeys | None, job: str
) -> Iterator[tuple["zmq.Socket[bytes]", Handshakes]]:
    """Give the connection of a peer that takes no part; job: whose, "" for its keys' or any."""
    name = peer_name(job or (keys.job if keys else ""), "doctor")
    with (
        zmq.Context() as context,
        connect(
            context,
            find_address(checked_address(address)) or address,
            name,
            keys,
            monitored=Handshakes.EVENTS,
        ) as peer,
    ):
        handshakes = Handshakes(peer, keyed=keys is not None)
        try:
            yield peer, handshakes
        finally:
            handshakes.close()


def _answer(
    peer: "zmq.Socket[bytes]", handshakes: Handshakes, until: float, kind: type[T]
) -> T | str:
    """Return the next answer of a kind, or the reason why there is none."""
    while (left := until - time.monotonic()) > 0:
        if not peer.poll(max(1, min(POLL_MS, int(1000 * left)))):
            if refusal := handshakes.rejection_reason():
                return refusal
            continue
        try:
            received = receive(peer)
        except WireError as error:
            return f"it does not speak this protocol: {error}"
        if received is not None and isinstance(received[0], kind):
            return received[0]
        if received is not None and isinstance(received[0], PeerRejected):
            return f"it refuses the request: {received[0].reason}"
    return "no answer in time"

"""The doctor's look at a running job: it asks the balancer a few times, as a visitor."""

import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from ...balancer.protocol.clock_offset import NOT_MEASURED, ClockFilter, Offset
from ...balancer.protocol.messages import GetStatus, PeerRejected, StatusReport
from ...balancer.protocol.wire import WireError
from ...balancer.transport.keys import PeerKeys, peer_keys
from ...balancer.transport.sockets import Handshakes, connect, receive, send, zmq  # type: ignore[attr-defined]
from .finding import BAD, Finding
from .installation import find_role
from .status import judge_overview

QUESTIONS = 5
# A wait for an answer ends at least this often, to look whether the balancer turned us away.
LOOK_MS = 200


@dataclass(frozen=True, slots=True)
class Answers:
    """What a balancer answered last (None: nothing), how long each answer took, and its clock.

    clock: how far this machine's is ahead of the balancer's; trouble: why there are no more.
    """

    overview: StatusReport | None = None
    times_s: tuple[float, ...] = ()
    clock: Offset = NOT_MEASURED
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found; of a job, its overview, or that it could not be asked."""

    findings: list[Finding]
    overview: StatusReport | None = None
    unasked: bool = False


def examine_job(
    address: str, timeout_s: float, keys: Path | None = None, skew_ms: float = 500.0
) -> Examined:
    """Ask the balancer at an address, and judge its answers.

    `keys`: a trainer's folder. Raises ValueError for no address, or no such keys.
    """
    own = peer_keys(keys, find_role(keys)) if keys else None
    # To a balancer with keys a bare connection is a peer without one, and is counted as such.
    reason = "" if own else _unreachable(address, timeout_s)
    answers = Answers(trouble=reason) if reason else ask(address, timeout_s, own)
    if own and answers.overview is None:
        reason = _unreachable(address, timeout_s)
    if reason:
        advice = "is the balancer running there, and does a firewall let you through?"
        return Examined([Finding("address", BAD, f"{address}: {reason}", advice)], unasked=True)
    if answers.overview is None:
        advice = "give --keys if it has keys; or something else listens there, or another version"
        found = f"{address}: {answers.trouble or 'no answer'}"
        return Examined([Finding("balancer", BAD, found, advice)], unasked=True)
    judged = judge_overview(address, answers.overview, answers.times_s, answers.clock, skew_ms)
    return Examined(judged, answers.overview)


def ask(address: str, timeout_s: float, keys: PeerKeys | None) -> Answers:
    """Ask a few times; the last overview is the one that counts."""
    clock, times, last = ClockFilter(), list[float](), None
    name = f"doctor.{os.getpid()}.{time.monotonic_ns()}".encode()
    with zmq.Context() as context, connect(context, address, name, keys, watched=True) as peer:
        handshakes = Handshakes(peer, keyed=keys is not None)
        try:
            for _ in range(QUESTIONS):
                start = time.monotonic()
                number = clock.ask(start, time.time())
                send(peer, GetStatus(number))
                answer = _answer(peer, handshakes, start + timeout_s)
                if isinstance(answer, str):
                    return Answers(last, tuple(times), clock.best(), answer)
                last, now = answer, time.monotonic()
                clock.answered(answer.number, answer.clock_us, now)
                times.append(now - start)
        finally:
            handshakes.close()
    return Answers(last, tuple(times), clock.best())


def _answer(peer: "zmq.Socket[bytes]", handshakes: Handshakes, until: float) -> StatusReport | str:
    """Return the next overview, or why there is none."""
    while (left := until - time.monotonic()) > 0:
        if not peer.poll(max(1, min(LOOK_MS, int(1000 * left)))):
            if refusal := handshakes.refusal():
                return refusal
            continue
        try:
            received = receive(peer)
        except WireError as error:
            return f"it does not speak our protocol: {error}"
        if received is not None and isinstance(received[0], StatusReport):
            return received[0]
        if received is not None and isinstance(received[0], PeerRejected):
            return f"it refuses: {received[0].reason}"
    return "no answer in time"


def _unreachable(address: str, timeout_s: float) -> str:
    """Why nothing can be reached at an address; empty if it can."""
    match = re.fullmatch(r"tcp://\[?([^\]]+)\]?:(\d+)", address)
    if match is None:
        if address.startswith("ipc://"):
            path = address.removeprefix("ipc://")
            return "" if os.path.exists(path) else "there is no such socket"  # noqa: PTH110
        raise ValueError(f"{address!r} is no address; give one such as tcp://HOST:5555")
    try:
        with socket.create_connection((match[1], int(match[2])), timeout_s):
            return ""
    except (OSError, OverflowError) as error:
        return str(getattr(error, "strerror", None) or error).lower()

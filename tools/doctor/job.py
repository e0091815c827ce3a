"""Asks a running job's balancer for its status, as a peer that takes no part in the run."""

import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from ...balancer.protocol.messages import GetStatus, PeerRejected, StatusReport
from ...balancer.protocol.status_messages import NOT_MEASURED, ClockFilter, Offset
from ...balancer.protocol.wire import WireError
from ...balancer.transport.keys import PeerKeys, peer_keys
from ...balancer.transport.sockets import Handshakes, connect, receive, send, zmq  # type: ignore[attr-defined]
from .finding import BAD, Finding
from .installation import find_role
from .status import judge_status

QUESTIONS = 5
# Waiting for an answer is interrupted this often, to check for a refused handshake.
POLL_MS = 200


@dataclass(frozen=True, slots=True)
class Answers:
    """A balancer's last status report (None without an answer) and the seconds each answer took.

    clock: this machine's clock minus the balancer's; error: the reason why no more answers came.
    """

    status: StatusReport | None = None
    times_s: tuple[float, ...] = ()
    clock: Offset = NOT_MEASURED
    error: str = ""


@dataclass(frozen=True, slots=True)
class Examination:
    """Findings; of a job also its status, or that it did not answer."""

    findings: list[Finding]
    status: StatusReport | None = None
    unanswered: bool = False


def examine_job(
    address: str, timeout_s: float, keys: Path | None = None, skew_ms: float = 500.0
) -> Examination:
    """Ask the balancer at an address for its status, and judge the answers.

    keys: a trainer's folder. Raises ValueError if the address is malformed or the keys are missing.
    """
    own = peer_keys(keys, find_role(keys)) if keys else None
    # A balancer with keys counts a bare TCP connection as a refused peer, so do not try one first.
    reason = "" if own else _unreachable(address, timeout_s)
    answers = Answers(error=reason) if reason else ask(address, timeout_s, own)
    if own and answers.status is None:
        reason = _unreachable(address, timeout_s)
    if reason:
        advice = "check that the balancer runs there and that no firewall is in between"
        return Examination(
            [Finding("address", BAD, f"{address}: {reason}", advice)], unanswered=True
        )
    if answers.status is None:
        advice = (
            "give --keys if it has keys; otherwise another program or another version listens there"
        )
        found = f"{address}: {answers.error or 'no answer'}"
        return Examination([Finding("balancer", BAD, found, advice)], unanswered=True)
    judged = judge_status(address, answers.status, answers.times_s, answers.clock, skew_ms)
    return Examination(judged, answers.status)


def ask(address: str, timeout_s: float, keys: PeerKeys | None) -> Answers:
    """Ask for the status a few times, to measure times and clocks; keep the last answer."""
    clock, times, last = ClockFilter(), list[float](), None
    name = f"doctor.{os.getpid()}.{time.monotonic_ns()}".encode()
    with (
        zmq.Context() as context,
        connect(context, address, name, keys, monitored=Handshakes.EVENTS) as peer,
    ):
        handshakes = Handshakes(peer, keyed=keys is not None)
        try:
            for _ in range(QUESTIONS):
                start = time.monotonic()
                number = clock.request(start, time.time())
                send(peer, GetStatus(number))
                answer = _answer(peer, handshakes, start + timeout_s)
                if isinstance(answer, str):
                    return Answers(last, tuple(times), clock.best(), answer)
                last, now = answer, time.monotonic()
                clock.record_response(answer.number, answer.clock_us, now)
                times.append(now - start)
        finally:
            handshakes.close()
    return Answers(last, tuple(times), clock.best())


def _answer(peer: "zmq.Socket[bytes]", handshakes: Handshakes, until: float) -> StatusReport | str:
    """Return the next status report, or the reason why there is none."""
    while (left := until - time.monotonic()) > 0:
        if not peer.poll(max(1, min(POLL_MS, int(1000 * left)))):
            if refusal := handshakes.rejection_reason():
                return refusal
            continue
        try:
            received = receive(peer)
        except WireError as error:
            return f"it does not speak this protocol: {error}"
        if received is not None and isinstance(received[0], StatusReport):
            return received[0]
        if received is not None and isinstance(received[0], PeerRejected):
            return f"it refuses the request: {received[0].reason}"
    return "no answer in time"


def _unreachable(address: str, timeout_s: float) -> str:
    """Return why an address cannot be reached, "" if it can."""
    match = re.fullmatch(r"tcp://\[?([^\]]+)\]?:(\d+)", address)
    if match is None:
        if address.startswith("ipc://"):
            path = address.removeprefix("ipc://")
            return "" if os.path.exists(path) else "there is no such socket"  # noqa: PTH110
        raise ValueError(f"{address!r} is not an address; give one such as tcp://HOST:5555")
    try:
        with socket.create_connection((match[1], int(match[2])), timeout_s):
            return ""
    except (OSError, OverflowError) as error:
        return str(getattr(error, "strerror", None) or error).lower()

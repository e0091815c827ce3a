"""The doctor's look at a running job: pings to its balancer, and what the answers say."""

import os
import re
import socket
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from ..balancer.keys import PeerKeys, peer_keys
from ..balancer.messages import Ping, Refused, Status
from ..balancer.sockets import connect, receive, send, zmq  # type: ignore[attr-defined]
from ..balancer.wire import WireError
from .doctor_finding import BAD, Finding, judge
from .doctor_installation import find_role

PINGS = 5
# A balancer that takes longer than this to say hello is busy with something else.
SLOW_S = 0.1
GIB = 2**30


def examine_job(address: str, timeout_s: float, keys: Path | None = None) -> list[Finding]:
    """What a few pings to the balancer at an address say.

    `keys`: a trainer's or worker's folder. Raises ValueError for no address, or no such keys.
    """
    own = peer_keys(keys, find_role(keys)) if keys else None
    if reason := _unreachable(address, timeout_s):
        advice = "is the balancer running there, and does a firewall let you through?"
        return [Finding("address", BAD, f"{address}: {reason}", advice)]
    answers, times, trouble = _ping(address, timeout_s, own)
    return judge_answers(address, answers, times, trouble)


def judge_answers(
    address: str, answers: Sequence[Status], times_s: Sequence[float], trouble: str
) -> list[Finding]:
    """What to think of a balancer's answers. `trouble`: why there are no more, if there are none.

    >>> found = judge_answers("tcp://h:1", [Status(2, 0, "")], [0.001], "")
    >>> [one.level for one in found]
    ['good', 'good', 'good', 'good']
    """
    if not answers:
        advice = "give --keys if it has keys; or something else listens there, or another version"
        return [Finding("balancer", BAD, f"{address}: {trouble or 'no answer'}", advice)]
    last, middle = answers[-1], statistics.median(times_s)
    return [
        judge(
            "balancer",
            f"{address} answers in {1000 * middle:.1f} ms",
            warn=middle > SLOW_S and "it is busy or far away: batches will be late as well",
        ),
        judge(
            "workers",
            f"{last.workers} ready",
            bad=not last.workers and f"start some: counterpoise worker {address} --root FOLDER",
        ),
        judge("payloads held", f"{last.held_bytes / GIB:.2f} GiB"),
        _waiting(answers),
    ]


def _waiting(answers: Sequence[Status]) -> Finding:
    """What the run waits for, if it is the same all the time."""
    seen = {answer.waiting for answer in answers}
    held = {answer.held_bytes for answer in answers}
    if seen == {""}:
        return judge("run", "no run is waiting for anything")
    still = len(seen) == 1 and len(held) == 1 and not answers[-1].held_bytes
    return judge(
        "run",
        f"waits for {answers[-1].waiting or 'nothing'}",
        warn=still and answers[-1].waiting == "decoded samples" and "workers are behind: add some",
    )


def _ping(
    address: str, timeout_s: float, keys: PeerKeys | None
) -> tuple[list[Status], list[float], str]:
    """Answers to a few pings, how long each took, and what went wrong, if anything did."""
    answers: list[Status] = []
    times: list[float] = []
    name = f"doctor.{os.getpid()}.{time.monotonic_ns()}".encode()
    with zmq.Context() as context, connect(context, address, name, keys) as peer:
        for _ in range(PINGS):
            start = time.monotonic()
            send(peer, Ping())
            try:
                answer = _next(peer, start + timeout_s)
            except WireError as error:
                return answers, times, f"it does not speak our protocol: {error}"
            if isinstance(answer, str):
                return answers, times, answer
            answers.append(answer)
            times.append(time.monotonic() - start)
    return answers, times, ""


def _next(peer: "zmq.Socket[bytes]", until: float) -> Status | str:
    """The next Status, or why there is none."""
    while (left := until - time.monotonic()) > 0:
        if not peer.poll(max(1, int(1000 * left))):
            continue
        received = receive(peer)
        if received is not None and isinstance(received[0], Status):
            return received[0]
        if received is not None and isinstance(received[0], Refused):
            return f"it refuses: {received[0].reason}"
    return "no answer in time"


def _unreachable(address: str, timeout_s: float) -> str:
    """Why nothing can be reached at a TCP address; empty if it can, or for other transports."""
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

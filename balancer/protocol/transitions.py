"""The protocol as tables: for each party, what it does with an event in a state, and what follows.

A row is looked up by (state, event) and names an action. The action's handler returns an outcome,
and the row maps it to the next state; nothing else changes a state. The coordinator and the two
sessions only walk these tables, and `protocol.md` is generated from them. A message for which
there is no row is dropped and counted.

An event is the class name of a message, or one of the party's own events in small letters.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

State = str
ABSENT = "absent"
W_WAITING, W_PREPARING, W_READY = "worker waiting", "worker preparing", "worker ready"
R_ATTACHED, R_RUNNING = "rank attached", "rank running"


class Outcome(StrEnum):
    """The result of an action, as far as the next state depends on it."""

    DONE = "done"
    ADMITTED = "admitted"
    NO_JOB = "no job yet"
    JOB_SENT = "job sent"
    REPEATED = "same hello"
    REFUSED = "refused"
    POSTPONED = "postponed"
    # The message answers a Welcome that is not the latest one, or is asked for once more.
    OUTDATED = "outdated"


class Event(StrEnum):
    """Events of the coordinator that are not messages."""

    JOB_STARTED = "job started"
    JOB_ENDED = "job ended"
    # Nothing was received from a worker for the heartbeat timeout.
    HEARTBEAT_TIMEOUT = "heartbeat timeout"
    # A message to the peer could not be delivered.
    UNREACHABLE = "unreachable"
    # A newer process has the worker's name.
    REPLACED = "replaced"
    # A worker cannot do what others can, or what it sends is rubbish.
    TURNED_AWAY = "turned away"
    # The trainer that started a worker has ended it.
    ENDED = "ended"
    # The hello of a rank was kept until it was known if those in its way are here.
    POSTPONED_HELLO = "postponed hello"


class Transition(msgspec.Struct, frozen=True):
    """An action, and the next state for each outcome that it can have.

    The party has a method for each action, which is named like it: "send job" is `send_job`, or
    `_send_job` of a session.
    """

    action: str
    after: Mapping[Outcome, State]


Table = dict[tuple[State, str], Transition]


def _to(action: str, state: State) -> Transition:
    """Return a row with one next state."""
    return Transition(action, {Outcome.DONE: state})


def handlers_of(session: object, table: Table) -> dict[str, Any]:
    """Return for each action on a message the method that is named like it."""
    actions = {row.action for (_, event), row in table.items() if event[0].isupper()}
    return {action: getattr(session, f"_{action.replace(' ', '_')}") for action in actions}


WORKER_STATES = (W_WAITING, W_PREPARING, W_READY)
# How a worker is forgotten, whatever its state.
WORKER_ENDS = (
    (Event.TURNED_AWAY, "turn away"),
    ("WorkerBye", "release worker"),
    (Event.ENDED, "release worker"),
    (Event.HEARTBEAT_TIMEOUT, "lose worker"),
    (Event.UNREACHABLE, "lose worker"),
    (Event.REPLACED, "lose worker"),
)
RANK_STATES = (R_ATTACHED, R_RUNNING)
# What a rank sends in a run that does not end it.
IN_RUN = (
    ("RequestBatch", "record request"),
    ("Ack", "acknowledge"),
    ("PullFailed", "judge pull"),
    ("LabelCount", "add labels"),
)
RANK_ENDS = (
    ("RankBye", "release rank"),
    (Event.UNREACHABLE, "lose rank"),
)
# After a worker's result; it is refused when the worker has sent too much rubbish.
RESULT = {Outcome.DONE: W_READY, Outcome.REFUSED: ABSENT}
COORDINATOR: Table = {
    (ABSENT, "WorkerHello"): Transition(
        "register worker",
        {Outcome.NO_JOB: W_WAITING, Outcome.JOB_SENT: W_PREPARING, Outcome.REFUSED: ABSENT},
    ),
    (W_WAITING, "WorkerHello"): Transition(
        "register worker",
        {
            Outcome.REPEATED: W_WAITING,
            Outcome.NO_JOB: W_WAITING,
            Outcome.JOB_SENT: W_PREPARING,
            Outcome.REFUSED: ABSENT,
        },
    ),
    (W_PREPARING, "WorkerHello"): _to("send job", W_PREPARING),
    (W_READY, "WorkerHello"): _to("ignore", W_READY),
    (W_WAITING, Event.JOB_STARTED): _to("send job", W_PREPARING),
    (W_PREPARING, "WorkerReady"): Transition(
        "accept worker",
        {Outcome.ADMITTED: W_READY, Outcome.REFUSED: ABSENT, Outcome.OUTDATED: W_PREPARING},
    ),
    (W_PREPARING, "WorkerFailed"): Transition(
        "report worker failure",
        {Outcome.DONE: W_WAITING, Outcome.REFUSED: ABSENT, Outcome.OUTDATED: W_PREPARING},
    ),
    (W_READY, "WorkerReady"): _to("confirm worker", W_READY),
    (W_READY, "ProbeDone"): Transition("store costs", RESULT),
    (W_READY, "DecodeDone"): Transition("store payloads", RESULT),
    (W_READY, "SampleFailed"): Transition("store failure", RESULT),
    **{(state, Event.JOB_ENDED): _to("close source", W_WAITING) for state in WORKER_STATES},
    **{(s, event): _to(action, ABSENT) for event, action in WORKER_ENDS for s in WORKER_STATES},
    # Heartbeats come over a connection of their own, whose peer has no state.
    (ABSENT, "WorkerHeartbeat"): _to("record heartbeat", ABSENT),
    (ABSENT, "RankHello"): Transition(
        "greet rank",
        {Outcome.ADMITTED: R_ATTACHED, Outcome.POSTPONED: ABSENT, Outcome.REFUSED: ABSENT},
    ),
    (ABSENT, Event.POSTPONED_HELLO): Transition(
        "admit rank", {Outcome.ADMITTED: R_ATTACHED, Outcome.REFUSED: ABSENT}
    ),
    **{
        (state, "RankHello"): Transition(
            "check rank", {Outcome.REPEATED: state, Outcome.REFUSED: ABSENT}
        )
        for state in RANK_STATES
    },
    **{(state, "StartRun"): _to("start run", R_RUNNING) for state in RANK_STATES},
    **{(R_RUNNING, message): _to(action, R_RUNNING) for message, action in IN_RUN},
    **{
        (state, message): _to("identify rank", state)
        for message in ("LabelCount", "RequestBatch")
        for state in (ABSENT, R_ATTACHED)
    },
    (ABSENT, "GetStatus"): _to("report status", ABSENT),
    **{(state, "Ping"): _to("answer ping", state) for state in (ABSENT, *RANK_STATES)},
    **{(state, "WorkersEnded"): _to("release ended workers", state) for state in RANK_STATES},
    **{(s, event): _to(action, ABSENT) for event, action in RANK_ENDS for s in RANK_STATES},
    (ABSENT, Event.UNREACHABLE): _to("confirm loss", ABSENT),
}

JOINING, SERVING, ENDED = "joining", "serving", "ended"
WORKER: Table = {
    (JOINING, "Welcome"): _to("open source", SERVING),
    (SERVING, "Welcome"): _to("open source", SERVING),
    (SERVING, "Lease"): _to("queue lease", SERVING),
    (SERVING, "Revoke"): _to("drop lease", SERVING),
    **{
        (state, message): _to(action, after or state)
        for message, action, after in (
            ("PayloadsFreed", "free payloads", ""),
            ("ServePayloads", "change carriage", ""),
            ("StopServing", "change carriage", ""),
            ("UnknownPeer", "say hello", ""),
            ("PeerRejected", "end", ENDED),
            ("Bye", "end", ENDED),
        )
        for state in (JOINING, SERVING)
    },
}

ATTACHED, RUNNING, FAILED = "attached", "running", "failed"
# The rank's own event: its training loop starts the next run.
BEGIN = "begin"
RANK: Table = {
    **{(state, BEGIN): _to("begin", RUNNING) for state in (JOINING, ATTACHED, RUNNING, FAILED)},
    **{(state, "Ready"): _to("store ready", ATTACHED) for state in (JOINING, ATTACHED)},
    (RUNNING, "Ready"): _to("store ready", RUNNING),
    (RUNNING, "Batch"): _to("store batch", RUNNING),
    (RUNNING, "LabelTotal"): _to("store labels", RUNNING),
    (RUNNING, "EpochEnd"): _to("store end", RUNNING),
    # A rank that has not begun a run has nothing that it could tell a new balancer.
    (RUNNING, "UnknownPeer"): _to("return", RUNNING),
    **{
        (state, message): _to(action, after or state)
        for message, action, after in (
            ("RunFailed", "fail", FAILED),
            ("Pong", "store status", ""),
            ("BalancerStops", "await restart", ""),
            ("Notice", "store notice", ""),
            ("PeerRejected", "fail", FAILED),
            ("Bye", "leave", ENDED),
        )
        for state in (JOINING, ATTACHED, RUNNING)
    },
    (FAILED, "Bye"): _to("leave", ENDED),
}

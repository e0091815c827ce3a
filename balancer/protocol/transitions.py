"""The protocol as tables: for each party, what it does with an event in a state, and what follows.

A row is looked up by (state, event) and names an action. The action's handler returns an outcome,
and the row maps it to the next state; nothing else changes a state. The coordinator and the two
sessions only walk these tables, and `docs/protocol.md` is generated from them. A message for which
there is no row is dropped and counted.

An event is the class name of a message, or one of the party's own events in small letters.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Generic, TypeVar

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
    # A newer process has the worker's name, or plays one of the rank's ranks.
    REPLACED = "replaced"
    # A worker cannot do what others can, or what it sends is rubbish.
    TURNED_AWAY = "turned away"
    # The trainer that started a worker has ended it.
    ENDED = "ended"
    # A rank may have ended with a former launch of the trainer: if not, it introduces itself again.
    DOUBTED = "doubted"
    # The hello of a rank of another job was kept until it was known if the job's ranks are here.
    POSTPONED_HELLO = "postponed hello"


class Action(StrEnum):
    """The coordinator's actions; `Coordinator` has a handler for each."""

    REGISTER_WORKER = "register worker"
    SEND_JOB = "send job"
    IGNORE = "ignore"
    CLOSE_SOURCE = "close source"
    ACCEPT_WORKER = "accept worker"
    CONFIRM_WORKER = "confirm worker"
    REPORT_WORKER_FAILURE = "report worker failure"
    STORE_COSTS = "store costs"
    STORE_PAYLOADS = "store payloads"
    STORE_FAILURE = "store failure"
    RELEASE_WORKER = "release worker"
    RELEASE_ENDED_WORKERS = "release ended workers"
    LOSE_WORKER = "lose worker"
    TURN_AWAY = "turn away"
    RECORD_HEARTBEAT = "record heartbeat"
    GREET_RANK = "greet rank"
    ADMIT_RANK = "admit rank"
    CHECK_RANK = "check rank"
    START_RUN = "start run"
    RECORD_REQUEST = "record request"
    ACKNOWLEDGE = "acknowledge"
    JUDGE_PULL = "judge pull"
    ADD_LABELS = "add labels"
    IDENTIFY_RANK = "identify rank"
    ANSWER_PING = "answer ping"
    REPORT_STATUS = "report status"
    RELEASE_RANK = "release rank"
    LOSE_RANK = "lose rank"
    CONFIRM_LOSS = "confirm loss"
    END_REPLACED_RANK = "end replaced rank"
    END_DOUBTED_RANK = "end doubted rank"


class WorkerAction(StrEnum):
    """A worker's actions on the coordinator's messages."""

    OPEN_SOURCE = "open source"
    QUEUE_LEASE = "queue lease"
    DROP_LEASE = "drop lease"
    FREE_PAYLOADS = "free payloads"
    CHANGE_CARRIAGE = "change carriage"
    SAY_HELLO = "say hello"
    END = "end"


class RankAction(StrEnum):
    """A rank's actions on the coordinator's messages."""

    BEGIN = "begin"
    STORE_READY = "store ready"
    STORE_BATCH = "store batch"
    STORE_LABELS = "store labels"
    STORE_END = "store end"
    STORE_STATUS = "store status"
    AWAIT_RESTART = "await restart"
    RETURN = "return"
    FAIL = "fail"
    LEAVE = "leave"


A = TypeVar("A", bound=StrEnum)


class Transition(msgspec.Struct, Generic[A], frozen=True):
    """An action, and the next state for each outcome that it can have."""

    action: A
    after: Mapping[Outcome, State]


Table = Mapping[tuple[State, str], Transition[A]]


def _to(action: A, state: State) -> Transition[A]:
    """Return a row with one next state."""
    return Transition(action, {Outcome.DONE: state})


def handlers_of(session: object, actions: Iterable[A]) -> dict[A, Any]:
    """Return for each action the method that is named like it: `_open_source` for "open source"."""
    return {action: getattr(session, f"_{action.replace(' ', '_')}") for action in actions}


WORKER_STATES = (W_WAITING, W_PREPARING, W_READY)
# How a worker is forgotten, whatever its state.
WORKER_ENDS = (
    (Event.TURNED_AWAY, Action.TURN_AWAY),
    ("WorkerBye", Action.RELEASE_WORKER),
    (Event.ENDED, Action.RELEASE_WORKER),
    (Event.HEARTBEAT_TIMEOUT, Action.LOSE_WORKER),
    (Event.UNREACHABLE, Action.LOSE_WORKER),
    (Event.REPLACED, Action.LOSE_WORKER),
)
# After a worker's result; it is refused when the worker has sent too much rubbish.
RESULT = {Outcome.DONE: W_READY, Outcome.REFUSED: ABSENT}
COORDINATOR: dict[tuple[State, str], Transition[Action]] = {
    (ABSENT, "WorkerHello"): Transition(
        Action.REGISTER_WORKER,
        {Outcome.NO_JOB: W_WAITING, Outcome.JOB_SENT: W_PREPARING, Outcome.REFUSED: ABSENT},
    ),
    (W_WAITING, "WorkerHello"): Transition(
        Action.REGISTER_WORKER,
        {
            Outcome.REPEATED: W_WAITING,
            Outcome.NO_JOB: W_WAITING,
            Outcome.JOB_SENT: W_PREPARING,
            Outcome.REFUSED: ABSENT,
        },
    ),
    (W_PREPARING, "WorkerHello"): _to(Action.SEND_JOB, W_PREPARING),
    (W_READY, "WorkerHello"): _to(Action.IGNORE, W_READY),
    (W_WAITING, Event.JOB_STARTED): _to(Action.SEND_JOB, W_PREPARING),
    (W_PREPARING, "WorkerReady"): Transition(
        Action.ACCEPT_WORKER,
        {
            Outcome.ADMITTED: W_READY,
            Outcome.REFUSED: ABSENT,
            Outcome.OUTDATED: W_PREPARING,
        },
    ),
    (W_PREPARING, "WorkerFailed"): Transition(
        Action.REPORT_WORKER_FAILURE,
        {Outcome.DONE: W_WAITING, Outcome.REFUSED: ABSENT, Outcome.OUTDATED: W_PREPARING},
    ),
    (W_READY, "WorkerReady"): _to(Action.CONFIRM_WORKER, W_READY),
    (W_READY, "ProbeDone"): Transition(Action.STORE_COSTS, RESULT),
    (W_READY, "DecodeDone"): Transition(Action.STORE_PAYLOADS, RESULT),
    (W_READY, "SampleFailed"): Transition(Action.STORE_FAILURE, RESULT),
    **{(state, Event.JOB_ENDED): _to(Action.CLOSE_SOURCE, W_WAITING) for state in WORKER_STATES},
    **{(s, event): _to(action, ABSENT) for event, action in WORKER_ENDS for s in WORKER_STATES},
    # Heartbeats come over a connection of their own, whose peer has no state.
    (ABSENT, "WorkerHeartbeat"): _to(Action.RECORD_HEARTBEAT, ABSENT),
    (ABSENT, "RankHello"): Transition(
        Action.GREET_RANK,
        {
            Outcome.ADMITTED: R_ATTACHED,
            Outcome.POSTPONED: ABSENT,
            Outcome.REFUSED: ABSENT,
        },
    ),
    (ABSENT, Event.POSTPONED_HELLO): Transition(
        Action.ADMIT_RANK, {Outcome.ADMITTED: R_ATTACHED, Outcome.REFUSED: ABSENT}
    ),
    (R_ATTACHED, "RankHello"): Transition(
        Action.CHECK_RANK, {Outcome.REPEATED: R_ATTACHED, Outcome.REFUSED: ABSENT}
    ),
    (R_RUNNING, "RankHello"): Transition(
        Action.CHECK_RANK, {Outcome.REPEATED: R_RUNNING, Outcome.REFUSED: ABSENT}
    ),
    (R_ATTACHED, "StartRun"): _to(Action.START_RUN, R_RUNNING),
    (R_RUNNING, "StartRun"): _to(Action.START_RUN, R_RUNNING),
    (R_RUNNING, "RequestBatch"): _to(Action.RECORD_REQUEST, R_RUNNING),
    (R_RUNNING, "Ack"): _to(Action.ACKNOWLEDGE, R_RUNNING),
    (R_RUNNING, "PullFailed"): _to(Action.JUDGE_PULL, R_RUNNING),
    (R_RUNNING, "LabelCount"): _to(Action.ADD_LABELS, R_RUNNING),
    (ABSENT, "LabelCount"): _to(Action.IDENTIFY_RANK, ABSENT),
    (R_ATTACHED, "LabelCount"): _to(Action.IDENTIFY_RANK, R_ATTACHED),
    (ABSENT, "RequestBatch"): _to(Action.IDENTIFY_RANK, ABSENT),
    (R_ATTACHED, "RequestBatch"): _to(Action.IDENTIFY_RANK, R_ATTACHED),
    (ABSENT, "Ping"): _to(Action.ANSWER_PING, ABSENT),
    (R_ATTACHED, "Ping"): _to(Action.ANSWER_PING, R_ATTACHED),
    (R_RUNNING, "Ping"): _to(Action.ANSWER_PING, R_RUNNING),
    (ABSENT, "GetStatus"): _to(Action.REPORT_STATUS, ABSENT),
    (R_ATTACHED, "WorkersEnded"): _to(Action.RELEASE_ENDED_WORKERS, R_ATTACHED),
    (R_RUNNING, "WorkersEnded"): _to(Action.RELEASE_ENDED_WORKERS, R_RUNNING),
    (R_ATTACHED, "RankBye"): _to(Action.RELEASE_RANK, ABSENT),
    (R_RUNNING, "RankBye"): _to(Action.RELEASE_RANK, ABSENT),
    (R_ATTACHED, Event.UNREACHABLE): _to(Action.LOSE_RANK, ABSENT),
    (R_RUNNING, Event.UNREACHABLE): _to(Action.LOSE_RANK, ABSENT),
    (ABSENT, Event.UNREACHABLE): _to(Action.CONFIRM_LOSS, ABSENT),
    (R_ATTACHED, Event.REPLACED): _to(Action.END_REPLACED_RANK, ABSENT),
    (R_RUNNING, Event.REPLACED): _to(Action.END_REPLACED_RANK, ABSENT),
    (R_RUNNING, Event.DOUBTED): _to(Action.END_DOUBTED_RANK, ABSENT),
}

JOINING, SERVING, ENDED = "joining", "serving", "ended"
WORKER: dict[tuple[State, str], Transition[WorkerAction]] = {
    (JOINING, "Welcome"): _to(WorkerAction.OPEN_SOURCE, SERVING),
    (SERVING, "Welcome"): _to(WorkerAction.OPEN_SOURCE, SERVING),
    (SERVING, "Lease"): _to(WorkerAction.QUEUE_LEASE, SERVING),
    (SERVING, "Revoke"): _to(WorkerAction.DROP_LEASE, SERVING),
    **{
        (state, message): _to(action, after or state)
        for message, action, after in (
            ("PayloadsFreed", WorkerAction.FREE_PAYLOADS, ""),
            ("ServePayloads", WorkerAction.CHANGE_CARRIAGE, ""),
            ("StopServing", WorkerAction.CHANGE_CARRIAGE, ""),
            ("UnknownPeer", WorkerAction.SAY_HELLO, ""),
            ("PeerRejected", WorkerAction.END, ENDED),
            ("Bye", WorkerAction.END, ENDED),
        )
        for state in (JOINING, SERVING)
    },
}

ATTACHED, RUNNING, FAILED = "attached", "running", "failed"
# The rank's own event: its training loop starts the next run.
BEGIN = "begin"
RANK: dict[tuple[State, str], Transition[RankAction]] = {
    **{
        (state, BEGIN): _to(RankAction.BEGIN, RUNNING)
        for state in (JOINING, ATTACHED, RUNNING, FAILED)
    },
    (JOINING, "Ready"): _to(RankAction.STORE_READY, ATTACHED),
    (ATTACHED, "Ready"): _to(RankAction.STORE_READY, ATTACHED),
    (RUNNING, "Ready"): _to(RankAction.STORE_READY, RUNNING),
    (RUNNING, "Batch"): _to(RankAction.STORE_BATCH, RUNNING),
    (RUNNING, "LabelTotal"): _to(RankAction.STORE_LABELS, RUNNING),
    (RUNNING, "EpochEnd"): _to(RankAction.STORE_END, RUNNING),
    # A rank that has not begun a run has nothing that it could tell a new balancer.
    (RUNNING, "UnknownPeer"): Transition(
        RankAction.RETURN, {Outcome.DONE: RUNNING, Outcome.REFUSED: FAILED}
    ),
    **{
        (state, message): _to(action, after or state)
        for message, action, after in (
            ("RunFailed", RankAction.FAIL, FAILED),
            ("Pong", RankAction.STORE_STATUS, ""),
            ("BalancerStops", RankAction.AWAIT_RESTART, ""),
            ("PeerRejected", RankAction.FAIL, FAILED),
            ("Bye", RankAction.LEAVE, ENDED),
        )
        for state in (JOINING, ATTACHED, RUNNING)
    },
    (FAILED, "Bye"): _to(RankAction.LEAVE, ENDED),
}

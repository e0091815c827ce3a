"""The protocol's page, made from the transition tables and message records that the code uses."""

from collections.abc import Iterator
from typing import Any, get_type_hints

from counterpoise.balancer.protocol import messages, parts, status_messages
from counterpoise.balancer.protocol.transitions import (
    BEGIN,
    COORDINATOR,
    RANK,
    WORKER,
    Event,
    Outcome,
    Table,
    Transition,
)

OWN_EVENTS = ", ".join(f"*{event}*" for event in (*Event, BEGIN))
INTRODUCTION = f"""# The protocol

*Written by `make docs` from `balancer/protocol/` (`transitions.py`, `messages.py`); do not edit.*

Version {messages.PROTOCOL_VERSION}, of the [remote wing](architecture.md#the-remote-wing): plain
and local loops have no messages. Three parties talk over ZeroMQ: **workers** and **ranks**
(trainer processes) each have a DEALER socket, the balancer's **coordinator** one ROUTER.

A message is one header frame and its payload frames. The header is the msgpack array
`[version, kind, field, ...]` with the fields in the order below; payload frames are raw bytes. A
header is checked against the record of its kind before anything else looks at it: frame count,
header size, container lengths, field types. What does not fit is dropped, counted, and answered
with `PeerRejected`.

Every message may be lost with its connection and may arrive twice: a rank that has waited for a
second sends its open `RequestBatch`es again; a second `Ack`, result or hello changes nothing.

Each party has one table: for a state and an event, the action and the next state, by the outcome of
the action where it has several. Nothing else changes a state. A message for which there is no row
is dropped and counted. Events in small letters are not messages:
{OWN_EVENTS}.
"""


def protocol_page() -> str:
    """Return the whole page."""
    sections = [
        INTRODUCTION,
        "## A microbatch's way\n\n" + EXAMPLE,
        "## Coordinator\n\n" + diagram(COORDINATOR) + table(COORDINATOR),
        "## Worker\n\n" + diagram(WORKER) + table(WORKER),
        "## Rank\n\n" + diagram(RANK) + table(RANK),
        "## Messages\n",
        "### Worker to coordinator\n\n" + "\n".join(map(record, messages.FROM_WORKER)),
        "### Coordinator to worker\n\n" + "\n".join(map(record, messages.TO_WORKER)),
        "### Rank to coordinator\n\n" + "\n".join(map(record, messages.FROM_RANK)),
        "### Coordinator to rank\n\n" + "\n".join(map(record, messages.TO_RANK)),
        "### Beside a job\n\n" + "\n".join(map(record, messages.BESIDE_JOBS)),
        "### Between ranks and workers\n\n" + "\n".join(map(record, messages.BETWEEN_PEERS)),
        "### Parts of messages\n\n" + "\n".join(map(record, _parts())),
    ]
    return "\n".join(part.rstrip() + "\n" for part in sections)


EXAMPLE = """```
worker                    coordinator                     rank
  | WorkerHello  ------------> |                            |
  | <------------  Welcome     |                            |
  | WorkerReady  ------------> | <------------  RankHello   |
  |                            | Ready  ------------------> |
  |                            | <-------------  StartRun   |
  |                            | <---------  RequestBatch   |
  | <------  Lease (probe)     |                            |
  | ProbeDone  --------------> |  ... the window is planned |
  | <-----  Lease (decode)     |                            |
  | DecodeDone + payloads ---> |                            |
  |                            | Batch + payloads  -------> |  or Batches
  |                            | <------------------  Ack   |  or with the next RequestBatch
  | <-- Lease, with FreeSlots  |                            |
```
"""


def table(rows: Table) -> str:
    """Return a table of transitions as Markdown.

    >>> end = Transition("end", {Outcome.DONE: "ended"})
    >>> print(table({("joining", "Bye"): end}))
    | state | event | action | next state |
    |---|---|---|---|
    | joining | `Bye` | end | ended |
    <BLANKLINE>
    """
    lines = ["| state | event | action | next state |", "|---|---|---|---|"]
    for (state, event), row in rows.items():
        after = ", ".join(f"{next_}{_condition(row, o)}" for o, next_ in row.after.items())
        lines.append(f"| {state} | {_event(event)} | {row.action} | {after} |")
    return "\n".join(lines) + "\n"


def diagram(rows: Table) -> str:
    """Return the moves between states as a Mermaid diagram; what stays in a state is left out."""
    moves: dict[tuple[str, str], list[str]] = {}
    for (state, event), row in rows.items():
        for outcome, after in row.after.items():
            if state != after:
                moves.setdefault((state, after), []).append(event + _condition(row, outcome))
    lines = ["```mermaid", "stateDiagram-v2"]
    for (state, after), events in moves.items():
        lines.append(f"    {_word(state)} --> {_word(after)}: {', '.join(events)}")
    return "\n".join([*lines, "```", "", ""])


def record(kind: type[Any]) -> str:
    """Return one kind of message with its fields as a Markdown item."""
    hints = get_type_hints(kind)
    listed = ", ".join(f"{name}: {_name(hints[name])}" for name in kind.__struct_fields__)
    with_payloads = kind in messages.WITH_PAYLOADS
    carries = " A payload frame per item without a serial." if with_payloads else ""
    text = " ".join((kind.__doc__ or "").split())
    return f"- **{kind.__name__}**({listed}). {text}{carries}"


def _parts() -> Iterator[type[Any]]:
    yield from (
        parts.SampleRef,
        parts.Probed,
        parts.BatchItem,
        parts.PayloadServer,
        parts.Hole,
        parts.Weights,
        parts.EpochPosition,
    )
    yield from (status_messages.WorkerStatus, status_messages.TrainerStatus)


def _name(hint: Any) -> str:
    if isinstance(hint, type) and not getattr(hint, "__args__", ()):
        return hint.__name__
    return f"[{_name(hint.__args__[0])}]"


def _event(event: str) -> str:
    """Return a message's name as code, another event as words."""
    return f"`{event}`" if event[0].isupper() else str(event)


def _condition(row: Transition, outcome: Outcome) -> str:
    """Return under which outcome a row leads to a state, empty if it leads to one only."""
    return f" ({outcome})" if len(row.after) > 1 else ""


def _word(state: str) -> str:
    return state.replace(" ", "_")

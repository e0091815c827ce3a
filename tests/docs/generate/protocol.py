"""The protocol's page, made from the message records and limits that the code uses."""

from typing import Any, get_args, get_origin, get_type_hints

from counterpoise.balancer.job import messages as of_job
from counterpoise.balancer.parties import messages as of_parties
from counterpoise.balancer.pool import messages as of_pool
from counterpoise.balancer.protocol import messages, parts, status_messages, trace_messages
from counterpoise.balancer.protocol.records import ArrayRecord
from counterpoise.balancer.run.tasks import MicrobatchFacts
from counterpoise.balancer.transport.sockets import MAX_REMOTE_FRAME_BYTES
from counterpoise.balancer.transport.wire import (
    MAX_FRAMES,
    MAX_HEADER_BYTES,
    MAX_JOINED,
    MAX_JOINED_BYTES,
    SMALL_KINDS,
    Several,
)
from counterpoise.workers.serving.server import MAX_REQUEST_BYTES


def _size(nbytes: int) -> str:
    return f"{nbytes >> 20:,} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


Kinds = tuple[type[ArrayRecord], ...]
BOTH: Kinds = (messages.UnknownPeer, messages.PeerRejected, messages.Bye)
# Who says what to whom: a section of the page each.
ALL: dict[str, Kinds] = {
    "Worker to balancer": (messages.ListJobs, *of_job.FROM_WORKER, *of_pool.FROM_WORKER),
    "Balancer to worker": (messages.JobList, *of_job.TO_WORKER, *of_pool.TO_WORKER, *BOTH),
    "Trainer to balancer": of_parties.FROM_TRAINER,
    "Balancer to trainer": (
        *(kind for kind in get_args(of_parties.ToTrainer) if kind not in BOTH), *of_job.TO_TRAINER,
        messages.BalancerStops, *BOTH,
    ),
    "Between trainers and workers": (of_job.PullFrames, of_job.PulledFrames),
    "Status and traces": (
        status_messages.GetStatus, status_messages.StatusReport, trace_messages.StartTrace,
        trace_messages.TraceSpans, trace_messages.TraceReport,
    ),
    "Several in one": (Several,),
    "Parts of messages": (
        of_pool.FailedPlace, of_parties.GivenPiece, parts.PayloadServer, MicrobatchFacts,
        parts.Hole, parts.Weights, parts.EpochPosition, status_messages.WorkerStatus,
        status_messages.TrainerStatus, trace_messages.Span, trace_messages.PartySpans,
    ),
}  # fmt: skip
# A microbatch's way: who says what to whom.
WAY: tuple[tuple[str, type[ArrayRecord], str], ...] = (
    ("trainer", of_parties.JoinJob, "balancer"), ("trainer", of_parties.BeginRun, "balancer"),
    ("worker", messages.ListJobs, "balancer"), ("balancer", messages.JobList, "worker"),
    ("worker", of_job.JoinPool, "balancer"), ("balancer", of_job.OpenJob, "worker"),
    ("worker", of_job.JobOpened, "balancer"), ("balancer", parts.Ready, "trainer"),
    ("balancer", of_parties.RunBegun, "trainer"), ("trainer", of_parties.WantBatches, "balancer"),
    ("balancer", of_pool.DoPart, "worker"), ("worker", of_pool.PartMeasured, "balancer"),
    ("balancer", of_pool.DoPart, "worker"), ("worker", of_pool.PartMade, "balancer"),
    ("balancer", of_job.WorkersAt, "trainer"), ("balancer", of_parties.GiveBatch, "trainer"),
    ("trainer", of_job.PullFrames, "worker"), ("worker", of_job.PulledFrames, "trainer"),
    ("trainer", of_parties.WantBatches, "balancer"), ("balancer", of_pool.FreeParts, "worker"),
)  # fmt: skip
INTRODUCTION = f"""# The protocol

*Written by `make docs` from the records of `balancer/protocol/`, `balancer/job/`, `balancer/pool/`
and `balancer/parties/`; do not edit.*

Version {messages.PROTOCOL_VERSION}, of the [remote wing](architecture.md#the-remote-wing):
plain and local loops have no messages. Three parties talk over ZeroMQ:

- The **balancer** has one ROUTER.
- A **worker** has a DEALER, and a ROUTER where trainers pull frames.
- A **trainer** process plays one rank or several. It has a DEALER to the balancer, and one to each
  worker that it pulls from.

A peer's name is `JOB|REST`: it says which job a message is for.

Every message may be lost, late, or come twice. Everything has a number, so a second copy changes
nothing: a part, what a worker keeps (its serial), a microbatch (its rank, index and version). What
is lost is said again:

- A trainer says again with each `TrainerBeat` what was not answered.
- A worker's `PoolBeat` names what it works on and what it keeps. The balancer sends a part again
  that is not there, and frees again what is not wanted.
- A peer that the balancer does not know is told so (`UnknownPeer`), and begins again with its
  hello: `JoinPool` or `JoinJob`.
"""
FRAMES = f"""## Frames and sizes

A message is one header frame, and after some kinds payload frames: raw bytes, as many as the field
`frames` says. The header is the msgpack array `[version, kind, field, ...]` with all fields in the
order below. It is checked against the record of its kind before anything else looks at it: number
of frames, size, lengths of containers, types of fields. What does not fit is dropped, counted, and
answered with `PeerRejected`.

Kinds that are marked *together* have no payload frames. Several small ones to one peer travel as
one message, `Several`: up to {MAX_JOINED} headers, up to {_size(MAX_JOINED_BYTES)}.

| what | at most |
|---|---|
| frames of a message | {MAX_FRAMES:,} |
| a header | {_size(MAX_HEADER_BYTES)} |
| a frame over tcp | {_size(MAX_REMOTE_FRAME_BYTES)} |
| a frame to a worker's ROUTER | {_size(MAX_REQUEST_BYTES)} |
"""


def protocol_page() -> str:
    """Return the whole page."""
    way = "\n".join(f"    {sender}->>{to}: {kind.__name__}" for sender, kind, to in WAY)
    sections = [
        INTRODUCTION,
        "## A microbatch's way\n\nThe first `DoPart` asks what samples cost, where nobody knows "
        "it. The second asks for a\nmicrobatch, once its window is planned.\n\n"
        f"```mermaid\nsequenceDiagram\n    participant worker\n    participant balancer\n"
        f"    participant trainer\n{way}\n```",
        FRAMES,
        "## Messages\n",
        *(f"### {title}\n\n" + "\n".join(map(record, kinds)) for title, kinds in ALL.items()),
    ]
    return "\n".join(part.rstrip() + "\n" for part in sections)


def record(kind: type[ArrayRecord]) -> str:
    """Return one kind of message with its fields as a Markdown item."""
    hints = get_type_hints(kind)
    listed = ", ".join(f"{name}: {_name(hints[name])}" for name in kind.__struct_fields__)
    text = " ".join((kind.__doc__ or "").split())
    carries = " Payload frames follow." if kind in of_job.WITH_FRAMES else ""
    together = " (*together*)" if kind in SMALL_KINDS else ""
    return f"- **{kind.__name__}**({listed}). {text}{carries}{together}"


def _name(hint: Any) -> str:
    """Return a type as text: [x] is an array of x, [x, y] one of these two.

    >>> _name(tuple[int, ...]), _name(tuple[tuple[int, str], ...])
    ('[int]', '[[int, str]]')
    """
    if get_origin(hint) is tuple:
        return f"[{', '.join(_name(each) for each in get_args(hint) if each is not ...)}]"
    return str(hint.__name__)

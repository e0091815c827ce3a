"""Read and write the CSV of torch.distributed.pipelining: a row per rank, a cell per action.

Torch's `_PipelineScheduleRuntime._load_csv` reads what `write_csv` writes: its "compute_only" form
if a program has only forward and backward passes, its "compute_comms" form if it is lowered. To the
first torch adds messages, REDUCE_GRAD and FSDP's UNSHARD and RESHARD by itself; to the second it
adds nothing, and without REDUCE_GRAD it silently leaves out the division of the gradients by the
number of microbatches. So `write_csv` adds these to lowered programs. torch 2.15 has actions that
wait for messages and reductions, too, and refuses a lowered table without them. `read_csv` reads
both, without the waits, and the output of torch's `_dump_csv`: an empty cell is an idle step and is
skipped; `(0F7;7B3)OVERLAP_F_B` means that a rank may run two passes at once, and is read as these
passes in order. Torch's actions have no text form for our other kinds (S, T, EF ...).
"""

import csv
import io
import re

from .program import NO_MICROBATCH, Pass, Program, format_pass, parse_pass

COMPUTE = ("F", "B", "I", "W")
MESSAGES = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")
TORCH_KINDS = (*COMPUTE, *MESSAGES, "UNSHARD", "RESHARD", "REDUCE_GRAD")
# Kinds of torch 2.15, which say until when memory is held: a program of ours does not.
WAITS = {kind: f"WAIT_{kind}" for kind in ("SEND_F", "SEND_B", "REDUCE_GRAD")}
_GROUP = re.compile(r"\(([^()]*)\)OVERLAP_F_B")


def write_csv(program: Program, waits: bool = False) -> str:
    r"""Return a program as torch's CSV.

    A lowered program gets UNSHARD, REDUCE_GRAD and RESHARD for each stage that has none, and with
    `waits` what torch 2.15 asks for (older ones cannot read it): reductions are waited for at once,
    messages at the end. Raises ValueError if the program has a kind that torch lacks.

    >>> row = (Pass(0, "F", 0), Pass(0, "B", 0))
    >>> write_csv(Program((row,), (0,), 1))
    '0F0,0B0\n'
    """
    foreign = sorted({item.kind for row in program.ranks for item in row} - set(TORCH_KINDS))
    if foreign:
        raise ValueError(
            f"torch's CSV has no kind {', '.join(foreign)}; it has {' '.join(TORCH_KINDS)}: "
            "export this program as text"
        )
    # torch adds these passes itself when it lowers a schedule, but not to one that has messages.
    rows = program.ranks
    if any(item.kind in MESSAGES for row in rows for item in row):
        rows = tuple(_with_parameter_actions(row) for row in rows)
        rows = tuple(_with_waits(row) for row in rows) if waits else rows
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([format_pass(item) for item in row] for row in rows)
    return text.getvalue()


def _with_parameter_actions(row: tuple[Pass, ...]) -> tuple[Pass, ...]:
    """Return a rank's row with each stage gathered, reduced and dropped around its passes."""
    have = set(row)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, item in enumerate(row):
        if item.kind in COMPUTE:
            first.setdefault(item.stage, at)
            last[item.stage] = at
    before: dict[int, list[Pass]] = {}
    after: dict[int, list[Pass]] = {}
    for stage, at in last.items():
        # A stage's gradients are complete with its last B or W, which is then its last pass.
        kinds = ["REDUCE_GRAD"] if row[at].kind in ("B", "W") else []
        if Pass(stage, "UNSHARD") not in have:
            before[first[stage]] = [Pass(stage, "UNSHARD")]
            kinds.append("RESHARD")
        after[at] = [Pass(stage, name) for name in kinds if Pass(stage, name) not in have]
    parts = ((*before.get(at, ()), item, *after.get(at, ())) for at, item in enumerate(row))
    return tuple(item for part in parts for item in part)


def _with_waits(row: tuple[Pass, ...]) -> tuple[Pass, ...]:
    """Return a rank's row in which each reduction is waited for at once, messages at the end."""
    out: list[Pass] = []
    sent: list[Pass] = []
    for item in row:
        out.append(item)
        if item.kind in WAITS:
            wait = Pass(item.stage, WAITS[item.kind], item.microbatch)
            (sent if item.kind in MESSAGES else out).append(wait)
    return (*out, *sent)


def read_csv(text: str, name: str = "") -> Program:
    r"""Return the program of torch's CSV; the rows give its placement and microbatches.

    Raises ValueError for a cell that is no action of torch's (naming rank and cell), a stage on
    two ranks, a stage on no rank, and a table without passes.

    >>> read_csv("0F0,,0B0\n1F0,1B0\n").placement
    (0, 1)
    """
    lines = csv.reader(io.StringIO(text))
    rows = tuple(_read_row(rank, cells) for rank, cells in enumerate(lines))
    numbers = [item.microbatch for row in rows for item in row]
    microbatches = max(numbers, default=NO_MICROBATCH) + 1
    if not microbatches:
        raise ValueError("the CSV has no passes; give one row per rank, with cells such as 0F0")
    return Program(rows, _placement(rows), microbatches, name=name)


def _read_row(rank: int, cells: list[str]) -> tuple[Pass, ...]:
    row: list[Pass] = []
    for number, cell in enumerate(cells, start=1):
        group = _GROUP.fullmatch(cell.strip())
        words = (word.strip() for word in (group[1] if group else cell).split(";"))
        place = f"rank {rank}, cell {number}"
        row.extend(_read_pass(word, place) for word in words if word)
    return tuple(item for item in row if item.kind not in WAITS.values())


def _read_pass(word: str, place: str) -> Pass:
    try:
        item = parse_pass(word)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    if item.kind not in (*TORCH_KINDS, *WAITS.values()):
        known = " ".join(TORCH_KINDS)
        raise ValueError(f"{place}: torch has no kind {item.kind!r}, it has {known}")
    return item


def _placement(rows: tuple[tuple[Pass, ...], ...]) -> tuple[int, ...]:
    holder: dict[int, int] = {}
    for rank, row in enumerate(rows):
        for item in row:
            if holder.setdefault(item.stage, rank) != rank:
                raise ValueError(
                    f"stage {item.stage} is on rank {holder[item.stage]} and on rank {rank}; "
                    "keep each stage on one rank"
                )
    missing = next((stage for stage in range(len(holder)) if stage not in holder), None)
    if missing is not None:
        raise ValueError(f"stage {missing} is on no rank; number the stages 0 to {max(holder)}")
    return tuple(holder[stage] for stage in sorted(holder))

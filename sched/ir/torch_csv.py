"""Read and write the CSV of torch.distributed.pipelining: a row per rank, a cell per action.

`write_csv` writes torch's "compute_only" form: `_PipelineScheduleRuntime._load_csv` reads it, and
adds messages, REDUCE_GRAD and FSDP's UNSHARD and RESHARD by itself. `read_csv` reads the
"compute_comms" form too, without torch 2.15's waits, and the output of torch's `_dump_csv`: an
empty cell is an idle step and is skipped; `(0F7;7B3)OVERLAP_F_B` means that a rank may run two
passes at once, and is read as these passes in order. Torch's actions have no text form for our
other kinds (S, T, EF ...).
"""

import csv
import io
import re

from .program import NO_MICROBATCH, Pass, Program, format_pass, parse_pass

COMPUTE = ("F", "B", "I", "W")
MESSAGES = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")
TORCH_KINDS = (*COMPUTE, *MESSAGES, "UNSHARD", "RESHARD", "REDUCE_GRAD")
# Kinds of torch 2.15, which say until when memory is held: a program of ours does not.
WAITS = ("WAIT_SEND_F", "WAIT_SEND_B", "WAIT_REDUCE_GRAD")
_GROUP = re.compile(r"\(([^()]*)\)OVERLAP_F_B")


def write_csv(program: Program) -> str:
    r"""Return a program as torch's CSV.

    Raises ValueError if the program has a kind that torch lacks, or is lowered.

    >>> row = (Pass(0, "F", 0), Pass(0, "B", 0))
    >>> write_csv(Program((row,), (0,), 1))
    '0F0,0B0\n'
    """
    present = {pass_.kind for row in program.ranks for pass_ in row}
    if foreign := sorted(present - set(TORCH_KINDS)):
        raise ValueError(
            f"torch's CSV has no kind {', '.join(foreign)}; it has {' '.join(TORCH_KINDS)}: "
            "export this program as text"
        )
    if present & set(MESSAGES):
        raise ValueError("torch adds the messages itself: export the program without --lower")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([format_pass(pass_) for pass_ in row] for row in program.ranks)
    return text.getvalue()


def read_csv(text: str, name: str = "") -> Program:
    r"""Return the program of torch's CSV; the rows give its placement and microbatches.

    Raises ValueError for a cell that is no action of torch's (naming rank and cell), a stage on
    two ranks, a stage on no rank, and a table without passes.

    >>> read_csv("0F0,,0B0\n1F0,1B0\n").placement
    (0, 1)
    """
    lines = csv.reader(io.StringIO(text))
    rows = tuple(_read_row(rank, cells) for rank, cells in enumerate(lines))
    numbers = [pass_.microbatch for row in rows for pass_ in row]
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
    return tuple(pass_ for pass_ in row if pass_.kind not in WAITS)


def _read_pass(word: str, place: str) -> Pass:
    try:
        pass_ = parse_pass(word)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    if pass_.kind not in (*TORCH_KINDS, *WAITS):
        known = " ".join(TORCH_KINDS)
        raise ValueError(f"{place}: torch has no kind {pass_.kind!r}, it has {known}")
    return pass_


def _placement(rows: tuple[tuple[Pass, ...], ...]) -> tuple[int, ...]:
    holder: dict[int, int] = {}
    for rank, row in enumerate(rows):
        for pass_ in row:
            if holder.setdefault(pass_.stage, rank) != rank:
                raise ValueError(
                    f"stage {pass_.stage} is on rank {holder[pass_.stage]} and on rank {rank}; "
                    "keep each stage on one rank"
                )
    missing = next((stage for stage in range(len(holder)) if stage not in holder), None)
    if missing is not None:
        raise ValueError(f"stage {missing} is on no rank; number the stages 0 to {max(holder)}")
    return tuple(holder[stage] for stage in sorted(holder))

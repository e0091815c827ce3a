"""Passes: the units of work of pipeline ranks, and their text form.

The forward of stage 2 for microbatch 0 is written `2F0`. Stages are numbered in model order (as
torch numbers them): with 4 ranks and 2 chunks per rank there are 8 stages, and the program's
placement gives the rank and the chunk of each. Vocabulary and encoder passes are divided over the
ranks instead of the model: their stage is the number of the rank that holds the shard.
"""

import re
from dataclasses import dataclass

NO_MICROBATCH = -1
_TEXT = re.compile(r"(\d+)([A-Z_]+?)(\d*)")


@dataclass(frozen=True, slots=True, order=True)
class Pass:
    """One pass; `microbatch` is NO_MICROBATCH for work done once a step, such as the optimizer.

    >>> str(Pass(2, "F", 0))
    '2F0'
    """

    stage: int
    kind: str
    microbatch: int = NO_MICROBATCH

    def __str__(self) -> str:
        """Return the text form; `parse_pass` reads it."""
        return format_pass(self)


def format_pass(item: Pass) -> str:
    """Return a pass as stage, kind, microbatch.

    >>> format_pass(Pass(stage=12, kind="SEND_F", microbatch=7))
    '12SEND_F7'
    >>> format_pass(Pass(stage=0, kind="O"))
    '0O'
    """
    tail = "" if item.microbatch == NO_MICROBATCH else item.microbatch
    return f"{item.stage}{item.kind}{tail}"


def parse_pass(text: str) -> Pass:
    """Return the pass of a text form. Raises ValueError for anything else.

    The kind need not be registered; `check` reports unknown kinds.

    >>> parse_pass("2F0")
    Pass(stage=2, kind='F', microbatch=0)
    >>> parse_pass("F0")
    Traceback (most recent call last):
    ...
    ValueError: 'F0' is not a pass; write stage, kind, microbatch, such as 2F0
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a pass; write stage, kind, microbatch, such as 2F0")
    stage, kind, microbatch = match.groups()
    return Pass(int(stage), kind, int(microbatch) if microbatch else NO_MICROBATCH)

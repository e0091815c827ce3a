"""Defines the job that a pool runs and the reports that it sends.

A job is a plain function and a payload. `work(payload, slot)` runs in every worker's process; it
returns when it is done and may be ended by a signal at any time.
"""

import json
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

# A report is below 4096 bytes, even if every character of its message is escaped.
_MESSAGE_BYTES = 1800
_ERROR_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """One worker's place: `incarnation` counts how often the slot's process was started again."""

    index: int
    workers: int
    incarnation: int


Work = Callable[[Any, WorkerSlot], None]


class PoolEndedError(Exception):
    """Raised by `work`: the whole pool ends, with this text, and no worker is started again."""


@dataclass(frozen=True, slots=True)
class PoolJob:
    """N processes that run `work`.

    `restart` bounds how often, over all workers, one that died is started again.
    """

    work: Work
    payload: object
    workers: int
    restart: int = 0

    def __post_init__(self) -> None:
        if self.workers < 0 or self.restart < 0:
            raise ValueError(
                f"a pool needs 0 or more workers and restarts, got {self.workers} and "
                f"{self.restart}"
            )


@dataclass(frozen=True, slots=True)
class Report:
    """An event in a pool: `loading`, `started`, `ready`, `exited` or `failed`.

    `worker` is None where the supervisor is meant. An `exited` process has a
    `code` (its status) or a `signal` (what killed it); `restarted` says that another takes its
    place. A `failed` report without a worker means the end of the whole pool.
    """

    event: str
    worker: int | None = None
    pid: int = 0
    incarnation: int = 0
    code: int | None = None
    signal: int | None = None
    restarted: bool = False
    message: str = ""


def format_report(report: Report) -> bytes:
    """Return one line of JSON, short enough for one packet; cuts a long message.

    >>> parse_report(format_report(Report("exited", worker=1, code=3))).code
    3
    """
    message = " ".join(report.message.split()).encode(errors="replace")[:_MESSAGE_BYTES]
    fields = asdict(report) | {"message": message.decode(errors="ignore")}
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def parse_report(line: bytes) -> Report:
    """Return the report that `format_report` wrote."""
    return Report(**json.loads(line))


def describe_error(error: BaseException) -> str:
    """Return an error in one line.

    >>> describe_error(KeyError("width"))
    "KeyError: 'width'"
    """
    text = " ".join(str(error).split())[:_ERROR_CHARACTERS]
    return f"{type(error).__name__}: {text}".rstrip(": ")


def locate_error(error: BaseException) -> str:
    """Return an error in one line, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return describe_error(error) + where

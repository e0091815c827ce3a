"""Classifies the failures of a sample, and repeats reads that the disk failed.

There are three kinds. "io": the disk or the network (an OSError with an error number); the sample
itself may be fine, so it is read again with growing pauses and then raised under every error
policy. "data": a SampleError, or an OSError without a number, which is how decoders complain.
"code": anything else that a transform raised. Another try changes nothing about these two.
"""

import errno
import json
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar, get_args

from .visible_text import visible


class SampleError(ValueError):
    """A sample that cannot be used, and why: a fact about the data, which a retry cannot change."""

    def __init__(self, key: str, reason: str, source: str = "") -> None:
        """`source` is the file that the sample is in, where that is known."""
        key = str(key)  # who raises it may name a sample by its index
        reason = visible(reason)  # names of members are in it
        super().__init__(key, reason, source)
        self.key = key
        self.reason = reason
        self.source = source

    def __str__(self) -> str:
        place = f" of {visible(self.source)}" if self.source else ""
        return f"sample {self.key!r}{place}: {self.reason}"


ErrorAction = Literal["raise", "skip", "refill"]
ERROR_ACTIONS: tuple[ErrorAction, ...] = get_args(ErrorAction)
BALANCED = (
    "and cannot be balanced: a plan is made from all samples of a window, and another sample in a "
    "hole's place would change the batches of all ranks"
)


def refuse_refill(action: ErrorAction, reason: str) -> None:
    """Raise ValueError for "refill" where there is a reason why it cannot be.

    >>> refuse_refill("skip", "got a list")
    """
    if action == "refill" and reason:
        raise ValueError(
            "on_error='refill' takes the next sample of an IterableDataset in batches of "
            f"batch_size, {reason}: use on_error='skip', which leaves the sample out"
        )


Kind = Literal["data", "io", "code"]
T = TypeVar("T")
_ERROR_CHARACTERS = 1000
LONGEST_REASON = 2000


class DataChangedError(OSError):
    """A file of the data set is not what it was when it was indexed; `filename` names it."""

    @classmethod
    def at(cls, path: str, fault: str = "") -> Self:
        """Return the error about a file; `what` was found there."""
        text = "it changed after it was indexed; start again to read it as it is now"
        return cls(errno.ESTALE, f"{fault}; {text}" if fault else text, path)


class RepeatedReadError(OSError):
    """A read that was repeated already where it failed, as a store's is (workers/stores)."""


# The answer would be the same a second later.
_LASTING = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    DataChangedError,
)


# A failed read is repeated so many times, each after a longer pause (seconds).
RETRIES = (0.1, 0.2, 0.4)


@dataclass(frozen=True, slots=True)
class SkippedSample:
    """A sample that could not be used: its key, the reason, the kind of failure, and its file."""

    key: str
    reason: str
    kind: Kind
    source: str = ""

    @classmethod
    def from_error(cls, error: Exception, key: str, source: str = "") -> Self:
        """Describe the sample that raised `error`; a SampleError knows its key better.

        >>> SkippedSample.from_error(SampleError("a", "no text"), "0")
        SkippedSample(key='a', reason='no text', kind='data', source='')
        """
        if isinstance(error, SampleError):
            return cls(error.key, error.reason, "data", error.source or source)
        return cls(key, explain_failure(error), classify_failure(error), source)

    def line(self) -> str:
        """Return the sample as one line of JSON, a dead letter.

        >>> SkippedSample("a", "no text", "data", "x.tar").line()
        '{"key": "a", "source": "x.tar", "reason": "no text", "kind": "data"}'
        """
        first = {"key": self.key, "source": self.source}
        return json.dumps({**first, "reason": self.reason[:LONGEST_REASON], "kind": self.kind})


def load_with_retries(
    load: Callable[..., T],
    sleep: Callable[[float], None],
    retries: Sequence[float] = RETRIES,
    source: Callable[[], str] | None = None,
    arguments: tuple[Any, ...] = (),
) -> T:
    """Return what `load(*arguments)` returns, trying again while the disk or the network fails.

    Raises the last error. With `source`, an I/O error names the file (or else what that returns)
    and how often it was tried.
    """
    tries = 0
    while True:
        tries += 1
        try:
            return load(*arguments)
        except OSError as error:
            if classify_failure(error) != "io" or isinstance(error, RepeatedReadError):
                raise
            if tries <= len(retries) and not isinstance(error, _LASTING):
                sleep(retries[tries - 1])
            elif source is None:
                raise
            else:
                raise _locate_io_error(error, source(), tries) from error


def classify_failure(error: Exception) -> Kind:
    """Return the kind of a failure.

    >>> [classify_failure(kind("a", "b")) for kind in (SampleError, TimeoutError, KeyError)]
    ['data', 'io', 'code']
    """
    if isinstance(error, SampleError):
        return "data"
    if isinstance(error, OSError):
        numbered = error.errno is not None or isinstance(error, TimeoutError | ConnectionError)
        return "io" if numbered else "data"
    return "code"


def explain_failure(error: Exception) -> str:
    """Return the reason in one line, without the key."""
    if isinstance(error, SampleError):
        return error.reason
    return f"{type(error).__name__}: {error}"


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


def _locate_io_error(error: OSError, source: str, tries: int) -> OSError:
    """Return an I/O error that also names the file (or source) and the number of tries.

    >>> _locate_io_error(OSError(5, "Input/output error"), "a.tar", 4)
    OSError(5, 'Input/output error (tried 4 times)')
    >>> str(_)
    "[Errno 5] Input/output error (tried 4 times): 'a.tar'"
    """
    text = error.strerror or f"{type(error).__name__}: {error}"
    times = f"tried {tries} times" if tries > 1 else "not tried again"
    where = source if error.filename is None else error.filename
    return OSError(error.errno or errno.EIO, f"{text} ({times})", where)

"""Classifies the failures of a sample, and repeats reads that the disk failed.

There are three kinds. "io": the disk or the network (an OSError with an error number); the sample
itself may be fine, so it is read again with growing pauses and then raised under every error
policy. "data": a SampleError, or an OSError without a number, which is how decoders complain.
"code": anything else that a transform raised. Another try changes nothing about these two.
"""

import errno
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

from .interface import SampleError

Kind = Literal["data", "io", "code"]
T = TypeVar("T")
_ERROR_CHARACTERS = 1000


class DataChangedError(OSError):
    """A file of the data set is not what it was when it was indexed; `filename` names it."""

    @classmethod
    def at(cls, path: str, what: str = "") -> Self:
        """Return the error about a file; `what` was found there."""
        text = "it changed after it was indexed; start again to read it as it is now"
        return cls(errno.ESTALE, f"{what}; {text}" if what else text, path)


# The answer would be the same a second later.
_LASTING = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    DataChangedError,
)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The repeats of a failed read: `retries` at most, the n-th after backoff_s * 2**n seconds.

    >>> RetryPolicy(backoff_s=0.5, backoff_max_s=3.0).pauses()
    (0.5, 1.0, 2.0)
    """

    retries: int = 3
    backoff_s: float = 0.1
    backoff_max_s: float = 5.0

    def __post_init__(self) -> None:
        if self.retries < 0 or self.backoff_s < 0 or self.backoff_max_s < 0:
            raise ValueError("retries, backoff_s and backoff_max_s must not be negative")

    def pauses(self) -> tuple[float, ...]:
        """Return the pauses before each further try, in seconds."""
        return tuple(
            min(self.backoff_s * 2**number, self.backoff_max_s) for number in range(self.retries)
        )


RETRIES = RetryPolicy()


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
        return cls(key, reason_of(error), kind_of(error), source)


def load_with_retries(
    load: Callable[..., T],
    sleep: Callable[[float], None],
    policy: RetryPolicy = RETRIES,
    source: Callable[[], str] | None = None,
    arguments: tuple[Any, ...] = (),
) -> T:
    """Return what `load(*arguments)` returns, trying again while the disk or the network fails.

    Raises the last error. With `source`, an I/O error names the file (or else what that returns)
    and how often it was tried.
    """
    pauses, tries = None, 0
    while True:
        try:
            tries += 1
            return load(*arguments)
        except OSError as error:
            if kind_of(error) != "io":
                raise
            pauses = pauses or iter(policy.pauses())
            pause = None if isinstance(error, _LASTING) else next(pauses, None)
            if pause is not None:
                sleep(pause)
            elif source is None:
                raise
            else:
                raise _located(error, source(), tries) from error


def kind_of(error: Exception) -> Kind:
    """Return the kind of a failure.

    >>> kind_of(SampleError("a", "no text")), kind_of(TimeoutError()), kind_of(KeyError("x"))
    ('data', 'io', 'code')
    """
    if isinstance(error, SampleError):
        return "data"
    if isinstance(error, OSError):
        numbered = error.errno is not None or isinstance(error, TimeoutError | ConnectionError)
        return "io" if numbered else "data"
    return "code"


def reason_of(error: Exception) -> str:
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


def _located(error: OSError, source: str, tries: int) -> OSError:
    """Return an I/O error that also names the file (or source) and the number of tries.

    >>> _located(OSError(5, "Input/output error"), "a.tar", 4)
    OSError(5, 'Input/output error (tried 4 times)')
    >>> str(_)
    "[Errno 5] Input/output error (tried 4 times): 'a.tar'"
    """
    text = error.strerror or f"{type(error).__name__}: {error}"
    times = f"tried {tries} times" if tries > 1 else "not tried again"
    where = source if error.filename is None else error.filename
    return OSError(error.errno or errno.EIO, f"{text} ({times})", where)

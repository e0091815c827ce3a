"""What happens when a sample fails: raise, skip (a hole) or try again.

Three kinds of failure. "io": the disk or the network (an OSError with an error number); tried
again with growing pauses, then raised whatever the policy, since the sample itself may be fine.
"data": a SampleError, or an OSError without a number, which is how decoders complain; trying
again is no use. "code": anything else that a transform raised. Under `retry` these two are tried
again as well before they are raised.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from .interface import SampleError

Kind = Literal["data", "io", "code"]
OnError = Literal["raise", "skip", "retry"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """`on_error` for bad samples; `retries` more tries, the n-th after backoff_s * 2**n seconds.

    >>> ErrorPolicy(backoff_s=0.5, backoff_max_s=3.0).pauses()
    (0.5, 1.0, 2.0)
    """

    on_error: OnError = "raise"
    retries: int = 3
    backoff_s: float = 0.1
    backoff_max_s: float = 5.0

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip", "retry"):
            raise ValueError(f"on_error must be raise, skip or retry, got {self.on_error!r}")
        if self.retries < 0 or self.backoff_s < 0 or self.backoff_max_s < 0:
            raise ValueError("retries, backoff_s and backoff_max_s must not be negative")

    def pauses(self) -> tuple[float, ...]:
        """Return the pauses before each further try, in seconds."""
        return tuple(
            min(self.backoff_s * 2**number, self.backoff_max_s) for number in range(self.retries)
        )


# Reading is tried again after these many pauses; broken samples are not.
RETRIES = ErrorPolicy("raise")


@dataclass(frozen=True, slots=True)
class SkippedSample:
    """A sample that could not be used: its key, the reason, and the kind of failure."""

    key: str
    reason: str
    kind: Kind


def attempt(
    load: Callable[[], T], key: str, policy: ErrorPolicy, sleep: Callable[[float], None]
) -> T | SkippedSample:
    """Return what `load()` returns, or a Hole under `skip`; else the last error is raised.

    >>> def broken(): raise SampleError("a", "no text")
    >>> attempt(broken, "a", ErrorPolicy("skip"), sleep=print)
    SkippedSample(key='a', reason='no text', kind='data')
    """
    pauses = iter(policy.pauses())
    while True:
        try:
            return load()
        except Exception as error:
            kind = kind_of(error)
            again = _passing(error) if kind == "io" else policy.on_error == "retry"
            pause = next(pauses, None) if again else None
            if pause is not None:
                sleep(pause)
            elif policy.on_error == "skip" and kind != "io":
                return SkippedSample(
                    error.key if isinstance(error, SampleError) else key, reason_of(error), kind
                )
            else:
                raise


def patiently(
    load: Callable[[], T],
    key: str,
    policy: ErrorPolicy,
    sleep: Callable[[float], None],
    source: str,
) -> T | SkippedSample:
    """Do as `attempt` does; an I/O error that stays says where it was, and after how many tries."""
    tries = 0

    def once() -> T:
        nonlocal tries
        tries += 1
        return load()

    try:
        return attempt(once, key, policy, sleep)
    except OSError as error:
        if kind_of(error) != "io":
            raise
        raise located(error, source, tries) from error


def kind_of(error: Exception) -> Kind:
    """Return whose fault an error is.

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
    """Return why, in one line, without the key."""
    if isinstance(error, SampleError):
        return error.reason
    return f"{type(error).__name__}: {error}"


def located(error: OSError, source: str, tries: int) -> OSError:
    """Return an I/O error that also says which file (or source) it is about, and how often.

    >>> located(OSError(5, "Input/output error"), "a.tar", 4)
    OSError(5, 'Input/output error (tried 4 times)')
    >>> str(_)
    "[Errno 5] Input/output error (tried 4 times): 'a.tar'"
    """
    text = error.strerror or f"{type(error).__name__}: {error}"
    times = f"tried {tries} times" if tries > 1 else "not tried again"
    where = source if error.filename is None else error.filename
    return OSError(error.errno or errno.EIO, f"{text} ({times})", where)


def _passing(error: Exception) -> bool:
    """Whether an I/O error may be gone the next time."""
    lasting = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
    return not isinstance(error, lasting)

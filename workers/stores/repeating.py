"""Says what an error of a store means, and makes a request again where that may help.

What a store's library says of an error may hold signed URLs and keys. So it is never quoted: an
error is told by its kind alone.
"""

import errno
import logging
import os
import random
import time
from collections.abc import Callable
from typing import TypeVar

from ..sources.failures import DataChangedError, RepeatedReadError
from ..sources.urls import parse_scheme, shown
from .options import StoreOptions

logger = logging.getLogger(__name__)
T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
CREDENTIALS = {
    "s3": " (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE)",
    "gs": " (GOOGLE_APPLICATION_CREDENTIALS)",
    "hf": " (HF_TOKEN)",
    **dict.fromkeys(("az", "abfs", "abfss"), " (AZURE_STORAGE_ACCOUNT_NAME and its key)"),
}
# Errors of libraries that may not be here, by name.
MISSING = ("NotFoundError", "EntryNotFoundError", "RepositoryNotFoundError")
FORBIDDEN = (
    "PermissionDeniedError",
    "UnauthenticatedError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "ClientAuthenticationError",
    "GatedRepoError",
)
CHANGED = ("PreconditionError",)


class RefusedError(OSError):
    """A request that is refused whenever it is made; the text is ours, as is NoAnswerError's."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.EACCES, text)


class NoAnswerError(OSError):
    """A request that failed for the moment."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.EIO, text)


NO_RANGES = (
    "the server answers no range requests, it gives whole files only: copy the shards, or serve "
    "them by one that does"
)


def check_size(data: bytes, size: int) -> None:
    """Raise the error that an answer of another size stands for."""
    if len(data) > size:
        raise RefusedError(NO_RANGES)
    if len(data) < size:
        raise NoAnswerError(f"it sent {len(data)} bytes of {size}")


def repeat_request(request: Callable[[], T], url: str, options: StoreOptions) -> T:
    """Return what a request returns, made again after pauses while it fails for the moment.

    Raises FileNotFoundError, PermissionError, RefusedError and DataChangedError at once, and
    RepeatedReadError after the last try. Each names the URL as it may be shown.
    """
    for tried in range(1, options.tries + 1):
        try:
            return request()
        except Exception as error:
            failure = describe_store_error(error, url)
        if type(failure) is not OSError:
            raise failure from None
        logger.debug("%s: %s (try %d)", shown(url), failure.strerror, tried)
        # All workers of a job may have been refused at the same moment.
        longest = min(FIRST_PAUSE_S * 2**tried, LONGEST_PAUSE_S)
        if tried < options.tries:
            time.sleep(_pauses.uniform(longest / 2, longest))
    raise RepeatedReadError(errno.EIO, f"{failure.strerror} (tried {tried} times)", shown(url))


# Its own: what a transform draws must not depend on a network.
_pauses = random.Random()


def describe_store_error(error: Exception, url: str) -> OSError:
    """Return an error of a store as one that names the URL, and nothing secret.

    Of the type OSError itself where the request may be made again.

    >>> str(describe_store_error(TimeoutError("https://host/a?key=secret"), "s3://bucket/a"))
    "[Errno 5] no answer: TimeoutError: 's3://bucket/a'"
    """
    kind, place = type(error).__name__, shown(url)
    if isinstance(error, DataChangedError | RefusedError):
        error.filename = error.filename or place
        return error
    if isinstance(error, FileNotFoundError) or kind in MISSING:
        text = "there is no such object, or no such bucket; check the URL"
        return FileNotFoundError(errno.ENOENT, text, place)
    if isinstance(error, PermissionError) or kind in FORBIDDEN:
        known = CREDENTIALS.get(parse_scheme(url), "")
        text = f"the store refuses access: check the credentials in the environment{known}"
        return PermissionError(errno.EACCES, text, place)
    if kind in CHANGED:  # obstore's, for a version that is gone
        return DataChangedError.at(place)
    if isinstance(error, NoAnswerError):
        text = str(error.strerror)
    elif isinstance(error, OSError) and error.errno is not None:
        text = f"no answer: {os.strerror(error.errno)}"
    else:
        text = f"no answer: {kind}"
    return OSError(errno.EIO, text, place)

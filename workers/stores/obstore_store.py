"""Reads ranges of S3 by obstore, where it is installed: a fifth of the CPU time of s3fs.

Its Rust runtime has threads, which a fork does not take along: a child of a process that has used
it waits for ever. So it is used only in workers, which fork no more, and never in a process whose
parent had so much as imported it.
"""

import importlib
import importlib.util
import multiprocessing
import os
import sys
from datetime import timedelta
from typing import Any

from ..sources.urls import split_url
from .options import StoreOptions
from .repeating import check_size

# Else it asks the services of the machine it is on, which is slow where there are none; profiles
# in ~/.aws are for s3fs.
CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_is_last = False
_was_imported = False


def _note_fork() -> None:
    global _was_imported, _is_last
    _was_imported, _is_last = "obstore" in sys.modules, False


os.register_at_fork(after_in_child=_note_fork)


def forks_no_more() -> None:
    """Say of this process, which is no worker of a pool, that it forks no more."""
    global _is_last
    _is_last = True


def can_be_used(scheme: str) -> bool:
    """Return whether obstore is here and works in this process."""
    return (
        scheme == "s3"
        and not _was_imported
        and (_is_last or multiprocessing.current_process().daemon)
        and any(os.environ.get(name) for name in CREDENTIALS)
        and is_installed()
    )


def is_installed() -> bool:
    """Return whether obstore is here."""
    return importlib.util.find_spec("obstore") is not None


class ObstoreStore:
    """The objects of S3 buckets, for reading ranges only."""

    def __init__(self, options: StoreOptions) -> None:
        self._obstore: Any = importlib.import_module("obstore")
        self._buckets: dict[str, Any] = {}
        time = timedelta(seconds=options.timeout)
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        self._settings: dict[str, Any] = {
            "client_options": {
                "timeout": time * 4,
                "connect_timeout": time,
                "read_timeout": time,
                "allow_http": bool(endpoint and endpoint.startswith("http://")),
            },
            # What fails is repeated by the caller: see repeating.py.
            "retry_config": {"max_retries": 0, "retry_timeout": time * 4},
        }
        if endpoint:
            self._settings["endpoint"] = endpoint

    def read(self, url: str, start: int, end: int, size: int, version: str) -> bytes:  # noqa: ARG002
        """Return the bytes from start to end of an object that has this version."""
        _, bucket, key = split_url(url)
        if bucket not in self._buckets:
            store = importlib.import_module("obstore.store").S3Store
            self._buckets[bucket] = store(bucket, **self._settings)
        asked: dict[str, Any] = {"range": (start, end)}
        if version.startswith('"'):
            asked["if_match"] = version
        answer = self._obstore.get(self._buckets[bucket], key, options=asked)
        data = bytes(answer.bytes())
        check_size(data, end - start)
        return data

"""Directories for unix sockets: private, and with a path that is short enough."""

import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "counterpoise-"
# The longest path of a unix socket is 107 bytes.
_LONGEST_DIRECTORY = 80


def make_socket_directory() -> str:
    """Make a 0700 directory with a path short enough for unix sockets; OSError says what to do."""
    try:
        root = tempfile.gettempdir()
        # The kernel counts bytes, of which a letter outside ASCII has several.
        is_short = len(os.fsencode(root)) < _LONGEST_DIRECTORY
        return tempfile.mkdtemp(prefix=PREFIX, dir=root if is_short else "/tmp")
    except OSError as error:
        raise OSError(
            f"cannot make a directory for sockets: {error}; free some space there, or set TMPDIR "
            "to a directory that can be written to"
        ) from error


def remove_socket_directory(path: str) -> None:
    """Remove a directory of `make_socket_directory`; anything else is left alone."""
    if Path(path).name.startswith(PREFIX):
        shutil.rmtree(path, ignore_errors=True)

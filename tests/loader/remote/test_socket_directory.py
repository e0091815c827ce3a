"""The directory of a balancer's socket is private, short enough, and goes."""

import errno
import os
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import pytest

from counterpoise.loader.remote.balancer_process import (
    make_socket_directory,
    remove_socket_directory,
)


def test_a_full_temporary_directory_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(**given: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device", f"{given['dir']}/x")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(OSError, match=r"sockets: .*No space left.*or set TMPDIR"):
        make_socket_directory()


def test_it_is_its_owners_and_goes() -> None:
    directory = Path(make_socket_directory())
    assert directory.stat().st_mode & 0o777 == 0o700
    remove_socket_directory(str(directory))
    assert not directory.exists()


@pytest.mark.parametrize("name", ["d" * 100, "ß" * 60])
def test_it_has_a_short_path_where_the_temporary_directory_has_none(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        deep = Path(short) / name
        deep.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
        directory = make_socket_directory()
        remove_socket_directory(directory)
    assert len(os.fsencode(directory)) < 107 - len("/balancer")


def test_another_directory_is_left_alone(tmp_path: Path) -> None:
    remove_socket_directory(str(tmp_path))
    assert tmp_path.exists()

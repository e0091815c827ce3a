"""Runs what README tells a newcomer to, with an installed package and nothing of the checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.test_code import few_shards, program_of, reader_of

README = "README.md"


def new_environment(folder: Path) -> Path:
    """Return the Python of a new virtual environment in a folder, in which nothing is installed."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")]
    subprocess.run(command, check=True)
    return folder / "venv" / "bin" / "python"


def try_installed(python: Path, folder: Path) -> None:
    """Run README's blocks and the demo in a folder with this Python.

    Raises subprocess.CalledProcessError with what a command printed last, which it also prints.
    """
    few_shards(folder / "shards")
    given = folder / "tests" / "docs" / "readers" / reader_of(README).name
    given.parent.mkdir(parents=True)
    shutil.copy(reader_of(README), given)
    (folder / "page.py").write_text(program_of(README))
    command = str(python.with_name("counterpoise"))
    # neither the checkout's links nor caches of earlier runs
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**kept, "XDG_CACHE_HOME": str(folder / "cache")}
    for words in ([str(python), "page.py"], [command, "--version"], [command, "demo"]):
        subprocess.run(words, check=True, cwd=folder, env=environment)

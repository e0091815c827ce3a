"""Every example runs, by the command that its docstring gives."""

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
# run by `make test` in a pool of processes: tests/sched/runtime/checkpoint/test_files.py
POOLED = ("train_pipeline",)
PROGRAMS = {
    "python": [sys.executable],
    "torchrun": [str(Path(sys.executable).with_name("torchrun"))],
}


def command_of(example: Path) -> list[str]:
    """The words after `Run:` in an example's docstring, with this Python."""
    docstring = ast.get_docstring(ast.parse(example.read_text())) or ""
    lines = [line for line in docstring.splitlines() if line.startswith("Run: ")]
    assert len(lines) == 1, f"the docstring of {example.name} needs one line `Run: COMMAND`"
    program, *words = shlex.split(lines[0].removeprefix("Run: "))
    return [*PROGRAMS[program], *words]


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.long] if path.stem in POOLED else [])
        for path in EXAMPLES
    ],
)
def test_an_example_runs_as_its_docstring_says(example: Path, root: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        command_of(example), cwd=root, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout

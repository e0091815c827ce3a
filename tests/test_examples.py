"""Every example runs, by the command that its docstring gives."""

import ast
import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.forking.popen import run
from tests.forking.ranks import torchrun

pytestmark = pytest.mark.slow

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
# run by `make test` in a pool of processes: tests/sched/runtime/checkpoint/test_files.py, and
# tests/sched/runtime/families/test_training.py
POOLED = ("train_pipeline", "hf_pipeline")


def command_of(example: Path) -> list[str]:
    """The words after `Run:` in an example's docstring."""
    docstring = ast.get_docstring(ast.parse(example.read_text())) or ""
    lines = [line for line in docstring.splitlines() if line.startswith("Run: ")]
    assert len(lines) == 1, f"the docstring of {example.name} needs one line `Run: COMMAND`"
    return shlex.split(lines[0].removeprefix("Run: "))


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.long] if path.stem in POOLED else [])
        for path in EXAMPLES
    ],
)
def test_an_example_runs_as_its_docstring_says(example: Path, root: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    program, *words = command_of(example)
    if program == "torchrun":
        done = torchrun(words, cwd=root, env=environment)
    else:
        assert program == "python"
        done = run([sys.executable, *words], cwd=root, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_page_of_rollouts_shows_its_script(root: Path) -> None:
    script = (root / "examples" / "rollouts.py").read_text()
    (_, code) = script.split('"""\n\n', maxsplit=1)
    assert f"```python\n{code}```" in (root / "docs" / "guides" / "rollouts.md").read_text()

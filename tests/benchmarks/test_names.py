"""The list of benches is true, and every bench explains itself."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import BENCHES, group


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_explains_itself(name: str) -> None:
    result = CliRunner().invoke(group, [name, "--help"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "--json" in result.stdout


def test_a_mistake_is_one_line_on_standard_error(tmp_path: Path) -> None:
    asked = [sys.executable, "-P", "-m", "benchmarks", "faults", "--seeds", "0"]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("counterpoise: --seeds is 0")

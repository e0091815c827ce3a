"""The wheel of a checkout, alone in an environment, does what README says: `make dist`'s trial."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.release.trial import new_environment, try_installed
from tests.test_packaging import source, wheel  # noqa: F401


@pytest.mark.long
def test_an_installed_wheel_runs_readme_and_the_demo(wheel: Path, tmp_path: Path) -> None:  # noqa: F811
    python = new_environment(tmp_path)
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    subprocess.run([*command, "--no-index", str(wheel)], check=True, cwd=tmp_path)
    # its dependencies are this environment's, whose own .pth files are not read there
    (site,) = tmp_path.glob("venv/lib/python*/site-packages")
    (site / "dependencies.pth").write_text(str(Path(torch.__file__).parents[1]))
    try_installed(python, tmp_path)

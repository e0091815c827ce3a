"""What people install: a wheel of the packages and their data, and nothing else."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import counterpoise
from tests.imports import FOLDERS, modules, package_of

NOT_SOURCE = {"tests", "docs", "examples", "build"}
LEFT_BY_TOOLS = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "*.nbi", "*.nbc")


@pytest.fixture(scope="session")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel built from a copy of the checkout, without a network."""
    folder = tmp_path_factory.mktemp("wheel")

    def ignored(place: str, names: list[str]) -> set[str]:
        return LEFT_BY_TOOLS(place, names) | (NOT_SOURCE if Path(place) == root else set())

    shutil.copytree(root, folder / "source", ignore=ignored)
    # no isolation and no dependencies: the setuptools of this environment builds it
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    command += ["--no-index", "-q", "-w", str(folder), str(folder / "source")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def shipped(wheel: Path) -> set[str]:
    """Return the wheel's files below counterpoise/."""
    names = zipfile.ZipFile(wheel).namelist()
    outside = [name for name in names if name.split("/")[0] not in ("counterpoise", wheel.stem)]
    assert all(".dist-info/" in name for name in outside), outside
    return {name.removeprefix("counterpoise/") for name in names if name.startswith("counterpoise")}


def test_the_wheel_holds_the_modules_and_no_other_python_file(shipped: set[str]) -> None:
    ours = {f"{name.replace('.', '/')}.py" for name in modules()}
    packages = {package_of(name) for name in modules()}
    ours -= {f"{package.replace('.', '/')}.py" for package in packages}
    ours |= {f"{package.replace('.', '/')}/__init__.py".lstrip("/") for package in packages}
    assert {name for name in shipped if name.endswith(".py")} == ours


def test_setup_py_is_not_in_the_wheel(shipped: set[str]) -> None:
    assert "setup.py" not in shipped


def test_every_data_file_is_in_the_wheel(shipped: set[str], root: Path) -> None:
    data = {"__init__.pyi", "py.typed"} | {
        str(path.relative_to(root))
        for folder in FOLDERS
        for path in (root / folder).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc", ".nbi", ".nbc")
    }
    assert data == {
        name for name in shipped if not name.endswith(".py") and ".dist-info/" not in name
    }


def test_the_version_is_the_packages(wheel: Path) -> None:
    assert wheel.name.split("-")[1] == counterpoise.__version__


def test_an_editor_sees_the_types_of_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    program = tmp_path / "program.py"
    program.write_text(
        "import counterpoise as cp\n"
        "reveal_type(cp.DataLoader([1]))\n"
        "reveal_type(cp.Balance())\n"
        "reveal_type(cp.scale_loss)\n"
        "reveal_type(cp.sched.Pass)\n"
        "cp.Dataloader\n"
    )
    # without site-packages: torch's types are not needed to see ours, and take long to read
    command = [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=silent"]
    command += ["--no-site-packages", "--ignore-missing-imports", "--hide-error-codes"]
    environment = {**os.environ, "MYPYPATH": str(tmp_path / "installed")}
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache"), str(program)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    lines = [line.partition("program.py:")[2] for line in done.stdout.splitlines()]
    assert lines[:-1] == [
        '2: note: Revealed type is "counterpoise.loader.dataloader.DataLoader[Any]"',
        '3: note: Revealed type is "counterpoise.balancer.planning.problem.balance.Balance"',
        '4: note: Revealed type is "def (loss_sum: Any, info: '
        'counterpoise.loader.step.info.StepInfo, per: str =, reduction: str =) -> Any"',
        '5: note: Revealed type is "def (stage: int, kind: str, microbatch: int =) -> '
        'counterpoise.sched.ir.passes.Pass"',
        '6: error: Module has no attribute "Dataloader"; maybe "DataLoader"?',
    ]

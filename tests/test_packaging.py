"""What people install: a wheel of the packages and their data, and nothing else."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import counterpoise
from tests.imports import FOLDERS, modules, package_of

NOT_SOURCE = {"docs", "build"}
# What `counterpoise demo --pipeline` runs.
EXAMPLE = "examples/train_vlm.py"
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
    assert {name for name in shipped if name.endswith(".py")} == ours | {EXAMPLE}


# The benches of a checkout, and the tests with the simulated cluster: the copy has both.
LABORATORY = {"benchmarks": "__main__.py", "tests": "simulation/cluster.py"}


@pytest.mark.parametrize("folder", LABORATORY)
def test_the_laboratory_and_the_tests_are_not_in_the_wheel(
    wheel: Path, root: Path, folder: str
) -> None:
    assert (root / folder / LABORATORY[folder]).exists()
    assert not [n for n in zipfile.ZipFile(wheel).namelist() if folder in n.split("/")]


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


# What people write, and what a checker must say of its lines: types, and what is misspelled.
PROGRAM = """\
import counterpoise as cp

def joined(samples: list[int]) -> str:
    return " ".join(map(str, samples))

loader = cp.DataLoader([1], collate_fn=joined)
reveal_type(loader)
for batch in loader:
    reveal_type(batch)
for step in loader.steps():
    reveal_type(step.microbatches)
reveal_type(cp.DataLoader([1]))
named: "cp.DataLoader[int, str]" = cp.DataLoader([1], collate_fn=joined)
reveal_type(cp.Balance())
reveal_type(cp.sched.Pass)
cp.Balance(mode="windows")
cp.DataLoader([1], on_error="ignore")
cp.scale_loss(0, step.infos[0], per="batch")
cp.Dataloader
"""
LOADER, BALANCE = "loader.dataloader.DataLoader", "balancer.planning.problem.balance.Balance"
REVEALED = {
    7: f"counterpoise.{LOADER}[Any, str]",
    9: "str",
    11: "tuple[str, ...]",
    12: f"counterpoise.{LOADER}[Any, Any]",
    14: f"counterpoise.{BALANCE}",
    15: "def (stage: int, kind: str, microbatch: int =) -> counterpoise.sched.ir.program.Pass",
}
WRONG = [16, 17, 18, 19]


@pytest.fixture(scope="session")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program beside a folder in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("types")
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    (folder / "program.py").write_text(PROGRAM)
    return folder / "program.py"


def test_mypy_sees_the_types_of_an_installed_wheel(program: Path) -> None:
    # without site-packages: torch's types are not needed to see ours, and take long to read
    command = [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=silent"]
    command += ["--no-site-packages", "--ignore-missing-imports", "--hide-error-codes"]
    done = subprocess.run(
        [*command, "--cache-dir", str(program.parent / "cache"), str(program)],
        capture_output=True,
        text=True,
        env={**os.environ, "MYPYPATH": str(program.parent / "installed")},
        cwd=program.parent,
    )
    said = re.findall(r"program.py:(\d+): (note|error): (.*)", done.stdout)
    notes = {int(line): text for line, kind, text in said if kind == "note"}
    assert notes == {line: f'Revealed type is "{what}"' for line, what in REVEALED.items()}
    assert [int(line) for line, kind, _ in said if kind == "error"] == WRONG


@pytest.mark.long
def test_pyright_sees_the_types_of_an_installed_wheel(program: Path) -> None:
    settings = {"extraPaths": ["installed"], "include": ["program.py"]}
    (program.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, cwd=program.parent)
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = [each["range"]["start"]["line"] + 1 for each in found]
    notes = {n: each["message"] for n, each in zip(lines, found, strict=True) if n not in WRONG}
    assert [*notes] == [*REVEALED]
    assert not [text for text in notes.values() if "Unknown" in text]
    for line, text in ((7, "DataLoader[Any, str]"), (9, "str"), (11, "tuple[str, ...]")):
        assert notes[line].endswith(f'is "{text}"')
    wrong = sorted({n for n in lines if n in WRONG})
    assert wrong == WRONG

"""What people install: a wheel of the packages, kernels and data, and the sources that it is of."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import torch

import counterpoise
from tests.imports import FOLDERS, modules, package_of

LONG = pytest.mark.long
NOT_SOURCE = {"docs", "build"}
# For torchrun -m counterpoise.examples.train_vlm.
EXAMPLE = "examples/train_vlm.py"
LEFT_BY_TOOLS = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "compiled.c", "*.so")
# The folders whose sources become an extension, by setup.py.
KERNELS = ("balancer/planning/kernels", "sched/bubble_filling/kernels")


def call(*command: object, cwd: Path, **variables: str) -> None:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | variables,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def source(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the archive of sources, made of a copy of the checkout."""
    folder = tmp_path_factory.mktemp("source")

    def ignored(place: str, names: list[str]) -> set[str]:
        return LEFT_BY_TOOLS(place, names) | (NOT_SOURCE if Path(place) == root else set())

    shutil.copytree(root, folder / "copy", ignore=ignored)
    call("setup.py", "-q", "sdist", "-d", folder, cwd=folder / "copy")
    (made,) = folder.glob("*.tar.gz")
    return made


def built(source: Path, folder: Path, **variables: str) -> Path:
    """Return a wheel of the sources, built without a network."""
    # no isolation and no dependencies: the setuptools and Cython of this environment build it
    command = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q")
    call(*command, "-w", folder, source, cwd=folder, **variables)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel built from the archive of sources; optimizing takes half of the time."""
    folder = tmp_path_factory.mktemp("wheel")
    compiler = folder / "cc"
    # behind the -O3 of setup.py: CFLAGS would stand before it
    compiler.write_text('#!/bin/sh\nexec gcc "$@" -O0\n')
    compiler.chmod(0o755)
    return built(source, folder, CC=str(compiler))


def files_of(wheel: Path) -> set[str]:
    """Return a wheel's files below counterpoise/."""
    names = zipfile.ZipFile(wheel).namelist()
    outside = [name for name in names if name.split("/")[0] not in ("counterpoise", wheel.stem)]
    assert all(".dist-info/" in name for name in outside), outside
    return {name.removeprefix("counterpoise/") for name in names if name.startswith("counterpoise")}


@pytest.fixture(scope="session")
def shipped(wheel: Path) -> set[str]:
    return files_of(wheel)


def test_the_wheel_holds_compiled_kernels(shipped: set[str]) -> None:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    compiled = {f"{folder}/compiled{suffix}" for folder in KERNELS}
    assert {name for name in shipped if "/compiled" in name} - {"sched/runtime/compiled.py"} == (
        compiled
    )


@LONG
def test_without_a_compiler_a_wheel_is_built_and_runs(source: Path, tmp_path: Path) -> None:
    wheel = built(source, tmp_path, CC="false")
    assert not [name for name in files_of(wheel) if name.endswith(".so")]
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    run = "from counterpoise.balancer.planning.kernels import loops; assert not loops.IS_COMPILED"
    call("-P", "-c", run, cwd=tmp_path, PYTHONPATH=str(tmp_path / "installed"))


def test_the_wheel_holds_the_modules_and_no_other_python_file(shipped: set[str]) -> None:
    ours = {f"{name.replace('.', '/')}.py" for name in modules()}
    packages = {package_of(name) for name in modules()}
    ours -= {f"{package.replace('.', '/')}.py" for package in packages}
    ours |= {f"{package.replace('.', '/')}/__init__.py".lstrip("/") for package in packages}
    assert {name for name in shipped if name.endswith(".py")} == ours | {EXAMPLE, "__main__.py"}


# The benches of a checkout, and the tests with the simulated cluster: the copy has both.
LABORATORY = {"benchmarks": "__main__.py", "tests": "balancer/job/cluster.py"}


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
        if path.is_file()
        and path.suffix not in (".py", ".pyx", ".c", ".so")
        and "__pycache__" not in path.parts
    }
    assert data == {
        name for name in shipped if not name.endswith((".py", ".so")) and ".dist-info/" not in name
    }


def test_the_version_is_the_packages(wheel: Path) -> None:
    assert wheel.name.split("-")[1] == counterpoise.__version__


def test_links_of_the_description_lead_to_what_the_repository_has(wheel: Path, root: Path) -> None:
    (name,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/METADATA"))
    text = zipfile.ZipFile(wheel).read(name).decode()
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", text)
    assert len(links) == len(re.findall(r"\]\(", (root / "README.md").read_text()))
    for mark, link in links:
        found = re.fullmatch(
            rf"https://[^/]+/[^/]+/[^/]+/{'raw' if mark else 'blob'}/main/(.+)", link
        )
        assert found, link
        assert (root / found[1].partition("#")[0]).exists(), link


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
    7: f"counterpoise.{LOADER}[Any, str]", 9: "str", 11: "tuple[str, ...]",
    12: f"counterpoise.{LOADER}[Any, Any]", 14: f"counterpoise.{BALANCE}",
    15: "def (stage: int, kind: str, microbatch: int =) -> counterpoise.sched.ir.program.Pass",
}  # fmt: skip
WRONG = [16, 17, 18, 19]


@pytest.fixture(scope="session", params=["installed", pytest.param("editable", marks=LONG)])
def program(
    request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a program beside an environment `venv` in which nothing but the package is."""
    folder = tmp_path_factory.mktemp("types")
    call("-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    (site,) = folder.glob("venv/lib/python*/site-packages")
    if request.param == "installed":
        made = request.getfixturevalue("wheel")
    else:
        # what `pip install -e` calls; checkers need no kernels
        hook = f"from setuptools.build_meta import build_editable; build_editable({str(folder)!r})"
        call("-c", hook, cwd=source.parent / "copy", CC="false")
        (made,) = folder.glob("*.whl")
    zipfile.ZipFile(made).extractall(site)
    (folder / "program.py").write_text(PROGRAM)
    return folder / "program.py"


def test_mypy_sees_the_types_of_the_package(program: Path) -> None:
    # torch is not in the environment: its types are not needed to see ours, and take long to read
    command = [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=silent"]
    command += ["--python-executable", "venv/bin/python", "--ignore-missing-imports"]
    done = subprocess.run(
        [*command, "--hide-error-codes", "--cache-dir", "cache", "program.py"],
        capture_output=True,
        text=True,
        cwd=program.parent,
    )
    said = re.findall(r"program.py:(\d+): (note|error): (.*)", done.stdout)
    notes = {int(line): text for line, kind, text in said if kind == "note"}
    assert notes == {line: f'Revealed type is "{what}"' for line, what in REVEALED.items()}
    assert [int(line) for line, kind, _ in said if kind == "error"] == WRONG


@LONG
def test_pyright_sees_the_types_of_the_package(program: Path) -> None:
    python = program.parent / "venv" / "bin" / "python"
    # with torch, whose DataLoader's arguments have our types in them
    (site,) = program.parent.glob("venv/lib/python*/site-packages")
    (site / "torch.pth").write_text(str(Path(torch.__file__).parents[1]))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", str(python)]
    done = subprocess.run(
        [*command, "program.py"], capture_output=True, text=True, cwd=program.parent
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = [each["range"]["start"]["line"] + 1 for each in found]
    notes = {n: each["message"] for n, each in zip(lines, found, strict=True) if n not in WRONG}
    assert [*notes] == [*REVEALED]
    assert not [text for text in notes.values() if "Unknown" in text]
    for line, text in ((7, "DataLoader[Any, str]"), (9, "str"), (11, "tuple[str, ...]")):
        assert notes[line].endswith(f'is "{text}"')
    wrong = sorted({n for n in lines if n in WRONG})
    assert wrong == WRONG

"""The walls of the project: imports run downward, shells are named, the packages are listed."""

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import counterpoise

FOLDERS = ("balancer", "loader", "sched", "tools", "workers")
MAY_IMPORT = {
    "tools": {"loader", "workers", "balancer", "sched"},
    "loader": {"balancer", "workers"},
    "workers": {"balancer"},
    "balancer": set[str](),
    "sched": set[str](),
}
TORCH_FREE = ("balancer", "sched")
# The shells, and the bench of their sockets: the only modules that may import zmq.
ZMQ_SHELLS = {
    "balancer/server/clear_payloads.py",
    "balancer/transport/authentication.py",
    "balancer/transport/keys.py",
    "balancer/transport/link.py",
    "balancer/server/loop.py",
    "balancer/transport/sockets.py",
    "workers/daemon/loop.py",
    "loader/connect/remote.py",
    "tools/bench/transport.py",
}


def _files(folder: str, root: Path) -> Iterator[Path]:
    yield from sorted((root / folder).rglob("*.py"))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """(level, dotted name) of every import statement in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module:
                yield node.level, node.module
            else:
                yield from ((node.level, alias.name) for alias in node.names)


def _siblings(path: Path) -> Iterator[str]:
    """The folders of ours that a file at depth one imports."""
    for level, name in _imports(path):
        if level == 2 or (level == 0 and name.startswith("counterpoise.")):
            parts = name.removeprefix("counterpoise.").split(".")
            if parts[0] in FOLDERS:
                yield parts[0]


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_run_downward(folder: str, root: Path) -> None:
    for path in _files(folder, root):
        wrong = set(_siblings(path)) - MAY_IMPORT[folder] - {folder}
        assert not wrong, f"{path.relative_to(root)} imports {wrong}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_our_own_imports_are_relative(folder: str, root: Path) -> None:
    for path in _files(folder, root):
        absolute = [n for level, n in _imports(path) if level == 0 and n.startswith("counterpoise")]
        assert not absolute, f"{path.relative_to(root)} imports {absolute}"


@pytest.mark.parametrize("folder", TORCH_FREE)
def test_planning_and_schedules_do_not_import_torch(folder: str, root: Path) -> None:
    for path in _files(folder, root):
        assert not [n for _, n in _imports(path) if n.split(".")[0] == "torch"], path


def test_zmq_is_imported_only_by_the_named_shells(root: Path) -> None:
    users = {
        str(path.relative_to(root))
        for folder in FOLDERS
        for path in _files(folder, root)
        if any(n.split(".")[0] == "zmq" for _, n in _imports(path))
    }
    assert users <= ZMQ_SHELLS


def test_the_package_list_equals_the_folders(root: Path) -> None:
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    tops = {p.name for p in root.iterdir() if (p / "__init__.py").exists()} - {"tests"}
    found = {p.parent.relative_to(root) for top in tops for p in (root / top).rglob("__init__.py")}
    assert set(listed) == {"counterpoise"} | {"counterpoise." + ".".join(p.parts) for p in found}


def test_every_data_file_is_shipped(root: Path) -> None:
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-data"
    ]
    for folder in FOLDERS:
        shipped = patterns.get(f"counterpoise.{folder}", [])
        for path in (root / folder).rglob("*"):
            if path.is_file() and path.suffix not in (".py", ".pyc", ".nbi", ".nbc"):
                inside = path.relative_to(root / folder)
                assert any(inside.match(pattern) for pattern in shipped), path


def test_no_other_python_file_stands_at_the_root(root: Path) -> None:
    assert [p.name for p in root.glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize("name", ["counterpoise", "counterpoise.sched", "counterpoise.balancer"])
def test_importing_does_not_import_torch_or_zmq(name: str, tmp_path: Path) -> None:
    code = f"import sys, {name}; sys.exit(len({{'torch', 'zmq', 'numba'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0


def _modules() -> list[str]:
    return [
        info.name
        for info in pkgutil.walk_packages(counterpoise.__path__, "counterpoise.")
        if info.name.split(".")[1] in FOLDERS
    ]


@pytest.mark.parametrize("name", _modules())
def test_every_doctest_is_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0

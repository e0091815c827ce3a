"""One way in: `import counterpoise as cp` is cheap, and what we tell people to import exists."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchDataLoader

import counterpoise
from counterpoise.balancer.unknown_arguments import find_value_classes
from counterpoise.loader import Balance, BalancedBatchSampler, Balancer, DataLoader, OnError, Ranks
from counterpoise.sched.runtime import Pipeline
from tests.docs.pages import all_pages
from tests.imports import ROOT, modules, tree_of

HEAVY = ("torch", "zmq", "numpy")
FROM = re.compile(r"\bfrom (counterpoise[\w.]*) import (\([^)]*\)|[\w, ]*\w)")
IMPORT = re.compile(r"\bimport (counterpoise[\w.]*\w)")
PATH = re.compile(r"\b(counterpoise\.[\w.]*\w):([A-Za-z_][\w.]*)")
SHORT = re.compile(r"\bcp\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")


def _texts() -> Iterator[tuple[str, str]]:
    """Yield each text that tells people what to import, with its name."""
    for path in all_pages():
        yield str(path.relative_to(ROOT)), path.read_text()
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text()
    for name, path in modules().items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield f"counterpoise.{name}".rstrip("."), ast.get_docstring(node) or ""


def _advised() -> Iterator[tuple[str, str, str]]:
    """Yield (where it is said, module, name or ""), for everything that is said to be there."""
    for where, text in _texts():
        for module, names in FROM.findall(text):
            for name in re.sub(r"[()]|#.*", "", names).split(","):
                if name.strip():
                    yield where, module, name.split(" as ")[0].strip()
        for module in IMPORT.findall(text):
            yield where, module, ""
        yield from ((where, module, name) for module, name in PATH.findall(text))
        yield from ((where, "counterpoise", name) for name in SHORT.findall(text))


def _exists(module: str, name: str) -> bool:
    try:
        found = importlib.import_module(module)
        for part in filter(None, name.split(".")):
            if not hasattr(found, part):
                found = importlib.import_module(f"{found.__name__}.{part}")
            else:
                found = getattr(found, part)
    except ImportError:
        return False
    return True


def test_what_docs_and_docstrings_tell_to_import_is_there() -> None:
    wrong = [f"{where}: {module} {name}" for where, module, name in _advised()]
    wrong = [line for line in wrong if not _exists(*line.split(": ")[1].partition(" ")[::2])]
    assert not wrong


def test_the_import_reads_nothing_heavy(tmp_path: Path) -> None:
    code = f"import sys, counterpoise; print({{*{HEAVY}}} & {{*sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize("name", counterpoise.__all__)
def test_every_public_name_is_there_and_listed(name: str) -> None:
    assert getattr(counterpoise, name) is not None
    assert name in dir(counterpoise)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'counterpoise' has no attribute 'Dataloader'"):
        _ = counterpoise.Dataloader  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'Dataloader'"):
        exec("from counterpoise import Dataloader")


def test_the_stub_offers_the_names_that_the_package_has(root: Path) -> None:
    stub = ast.parse((root / "__init__.pyi").read_text())
    offered = set()
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            offered |= {alias.name for alias in node.names}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            offered.add(node.target.id)
        elif isinstance(node, ast.Assign):
            assert ast.literal_eval(node.value) == counterpoise.__all__
    assert offered == set(counterpoise.__all__)


# The most arguments of a constructor: torch's 17, and ours. They only fall.
MOST_ARGUMENTS: dict[Any, int] = {
    DataLoader: 17 + 12, Balance: 16, Pipeline: 12, BalancedBatchSampler: 8, Ranks: 3, Balancer: 3,
    OnError: 4,
}  # fmt: skip
# Of these three together, a value counting as its fields; of a Layout only two were Balance's.
MOST_SETTINGS, OWN_OF_LAYOUT = 69, 2
MOST_NAMES = 28


def _settings_of(constructor: Any) -> Iterator[str]:
    """Yield what a user can set by a constructor: its arguments, or the fields of their values."""
    classes = find_value_classes(constructor)
    torchs = (
        {*inspect.signature(TorchDataLoader).parameters} if constructor is DataLoader else set()
    )
    for name in inspect.signature(constructor).parameters:
        value_class = classes.get(name)
        if value_class in (None, Balance):
            yield from {name} - torchs
        else:
            yield from (f"{name}.{field}" for field in inspect.signature(value_class).parameters)


def test_the_constructors_have_few_settings_together() -> None:
    settings = [name for made in (DataLoader, Balance, Pipeline) for name in _settings_of(made)]
    assert len(settings) - OWN_OF_LAYOUT <= MOST_SETTINGS


@pytest.mark.parametrize("constructor", MOST_ARGUMENTS)
def test_constructors_have_few_arguments_and_each_by_its_name(constructor: Any) -> None:
    parameters = inspect.signature(constructor).parameters.values()
    assert len(parameters) <= MOST_ARGUMENTS[constructor]
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    assert not [parameter.name for parameter in parameters if parameter.kind in variable]


def test_the_package_itself_has_few_names() -> None:
    names = {*counterpoise.__all__} - {"__version__"}
    values = [name for name in names if not isinstance(getattr(counterpoise, name), ModuleType)]
    assert len(values) <= MOST_NAMES


def test_no_public_class_has_the_name_of_another() -> None:
    homes: dict[str, list[str]] = {}
    for module, path in modules().items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    public = {*counterpoise.__all__}
    for folder in ("balancer", "loader", "sched", "workers"):
        public |= {*importlib.import_module(f"counterpoise.{folder}").__all__}
    assert not {name: homes[name] for name in public if len(homes.get(name, ())) > 1}


def test_sub_packages_name_their_public_interface() -> None:
    for folder in ("balancer", "loader", "sched", "workers"):
        package = importlib.import_module(f"counterpoise.{folder}")
        assert all(hasattr(package, name) for name in package.__all__), folder

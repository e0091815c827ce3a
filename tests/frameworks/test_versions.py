"""The versions that are declared, tried by `make test-frameworks`, and told in the docs are one."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.pages import page_named
from tests.docs.test_tables import rows
from tests.imports import ROOT

TRIED = ("torch", "numpy")
ADAPTED = ("accelerate", "lightning", "megatron-core", "torchtitan", "transformers")


def pins(root: Path, name: str) -> dict[str, str]:
    """Return the versions of an environment of `make test-frameworks`, or of DEPENDENCIES."""
    text = (root / "tests" / "frameworks" / f"{name}.txt").read_text()
    return dict(re.findall(r"^([\w-]+)==([\d.]+)(?: ;.*< '3.12')?$", text, re.M))


def declared(root: Path) -> dict[str, str]:
    """Return the lower bounds that pyproject.toml declares, for itself and in extras."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = [line for each in project["optional-dependencies"].values() for line in each]
    lines = "\n".join([*project["dependencies"], *extras])
    return dict(re.findall(r"^([\w-]+)>=([\d.]+)$", lines, re.M))


def newest_adapted(root: Path) -> dict[str, str]:
    """Return the pins of the extra `frameworks`, which is in the default environment."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    lines = "\n".join(project["optional-dependencies"]["frameworks"])
    return dict(re.findall(r"^([\w-]+)==([\d.]+)$", lines, re.M))


@pytest.mark.parametrize(
    ("name", "package"),
    [*(("oldest", each) for each in TRIED), *(("oldest-adapters", each) for each in ADAPTED)],
)
def test_the_oldest_that_is_tried_is_the_oldest_that_is_declared(
    root: Path, name: str, package: str
) -> None:
    oldest, bound = pins(root, name)[package], declared(root)[package]
    assert oldest.split(".")[:2] == bound.split(".")[:2]


def test_the_oldest_of_everything_is_what_is_declared(root: Path) -> None:
    bounds, oldest = declared(root), pins(root, "oldest")
    tried = {name: version for name, version in bounds.items() if name in oldest}
    assert len(tried) > 15
    for name, version in tried.items():
        found = [int(part) for part in oldest[name].split(".")]
        least = [int(part) for part in version.split(".")]
        # PyPI has no 6 of PyYAML, but a 6.0
        assert found[: len(least)] == least[: len(found)], name


@pytest.mark.parametrize("name", ["oldest", "newest"])
def test_the_docs_tell_what_is_tried(root: Path, name: str) -> None:
    page = page_named("drop-in").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
    assert all(pins(root, name)[package] in row for package in TRIED)


def test_the_docs_tell_which_frameworks_are_tried() -> None:
    told = " ".join(cells[1] for cells in rows("frameworks", "framework"))
    oldest, newest = pins(ROOT, "oldest-adapters"), newest_adapted(ROOT)
    for package, version in [*oldest.items(), *newest.items()]:
        assert version in told or package == "datasets"

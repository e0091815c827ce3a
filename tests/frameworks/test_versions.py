"""The versions that are declared, tried by `make test-frameworks`, and told in the docs are one."""

import re
import tomllib
from pathlib import Path

import pytest

TRIED = ("torch", "numpy")


def pins(root: Path, name: str) -> dict[str, str]:
    """Return the pinned versions of an environment of `make test-frameworks`."""
    text = (root / "tests" / "frameworks" / f"{name}.txt").read_text()
    return dict(re.findall(r"^(\w+)==([\d.]+)$", text, re.M))


def declared(root: Path) -> dict[str, str]:
    """Return the lower bounds that pyproject.toml declares."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return dict(re.findall(r"^(\w+)>=([\d.]+)$", "\n".join(project["dependencies"]), re.M))


@pytest.mark.parametrize("package", TRIED)
def test_the_oldest_that_is_tried_is_the_oldest_that_is_declared(root: Path, package: str) -> None:
    oldest, bound = pins(root, "oldest")[package], declared(root)[package]
    assert oldest.split(".")[:2] == bound.split(".")[:2]


@pytest.mark.parametrize("name", ["oldest", "newest"])
def test_the_docs_tell_what_is_tried(root: Path, name: str) -> None:
    page = (root / "docs" / "drop-in.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
    assert all(version in row for version in pins(root, name).values())

"""What a source may offer is asked in one file: everything else has a `Source`, with defaults."""

import ast
import inspect
from collections.abc import Iterator

import pytest

from counterpoise.workers.sources.interface import Source
from tests.imports import FOLDERS, ROOT

ASKED_IN = ROOT / "workers/sources/offered.py"
# What a source may offer, but for what every object has; and what makes one of others.
OFFERED = {name for name in dir(Source) if not name.startswith("_")} - {"cost"} | {
    "dataset",
    "rows",
}
# Transforms, tokenizers and models may offer things of the same names.
OTHERS = ("transform", "thing", "processor", "model", "metric", "self.transform")


def questions() -> Iterator[tuple[str, str, str]]:
    """Yield place, receiver and name of each getattr and hasattr."""
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        if path == ASKED_IN:
            continue
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "attr(" in text else ():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id in ("getattr", "hasattr") and isinstance(node.args[1], ast.Constant):
                receiver, name = ast.unparse(node.args[0]), node.args[1].value
                yield f"{path.relative_to(ROOT)}:{node.lineno}", receiver, str(name)


def test_no_file_but_one_asks_what_a_source_offers() -> None:
    found = [
        f"{place}: {name!r} of {receiver}"
        for place, receiver, name in questions()
        if name in OFFERED and not any(other in receiver for other in OTHERS)
    ]
    assert found == []


def test_the_one_file_does_ask() -> None:
    text = ASKED_IN.read_text()
    assert "getattr(" in text
    assert "hasattr(" in text


@pytest.mark.parametrize("name", sorted(n for n in dir(Source) if not n.startswith("_")))
def test_all_that_a_source_offers_has_a_default_and_a_description(name: str) -> None:
    offered = inspect.getattr_static(Source, name)
    if callable(offered) or isinstance(offered, property):
        assert inspect.getdoc(offered)
    else:
        assert f"{name} " in (Source.__doc__ or "")

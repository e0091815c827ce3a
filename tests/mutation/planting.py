"""Tries mutants: in a session that has imported everything, or in one that imports the mutant.

The second takes seconds, so it is left for mutants of what imports run, and to try once more those
that nothing has noticed: with all tests that reach the function, not only the line.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from tests.mutation.operators import Mutant, mutated
from tests.mutation.session import MOST_S, ROOT, Known, Session, collect, test_of
from tests.mutation.swapping import Place, changed_code, swap
from tests.mutation.trial import in_a_copy
from tests.mutation.verdict import Verdict

MOST_CPU_S = 240.0
# Each test has its own limit; this is for what does not heed it.
ALL_CASES_S = 1800.0
# What is assumed of a case that was not measured.
SLOW = Known(MOST_S, {})


class _Changed(importlib.machinery.SourceFileLoader):
    """Loads a module from a changed syntax tree."""

    tree: ast.Module

    def get_code(self, _: str) -> CodeType:
        return compile(self.tree, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, and gives it a loader that changes it."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        self._name, self._path, self._tree = name, path, tree

    def find_spec(self, fullname: str, *_: Any) -> Any:
        if fullname != self._name:
            return None
        loader = _Changed(fullname, self._path)
        loader.tree = self._tree
        return importlib.util.spec_from_file_location(fullname, self._path, loader=loader)


def preload(*names: str) -> None:
    """Import what every session needs, and nothing of the product."""
    for name in ("numpy", "hypothesis.strategies", *names):
        importlib.import_module(name)
    product = [name for name in sys.modules if name.split(".")[0] == "counterpoise"]
    assert not product, product


def path_of(module: str) -> str:
    """Return the file of a module, `folder/name` below the root, as its code objects name it."""
    package = importlib.util.find_spec("counterpoise")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / f"{module}.py"
    assert path.samefile(ROOT / f"{module}.py"), f"not the package of these tests: {path}"
    return str(path)


def try_in(
    session: Session, mutant: Mutant, known: Mapping[str, Known],
    functions: dict[Place, list[FunctionType]],
) -> Verdict | None:  # fmt: skip
    """Try a mutant with the tests that reach its line; None where it must be imported."""
    path = path_of(mutant.module)
    source = Path(path).read_text()
    code = changed_code(ast.parse(source), mutated(source, mutant.number), path)
    if code is None:
        return None
    names = in_order({n: k for n, k in known.items() if k.reaches(path, mutant.lines)})

    def trial() -> dict[str, Any]:
        if not swap(code, functions):
            return {"swapped": False}
        runner = session.run(names, lambda name: most_s(known[name]))
        return {"swapped": True, "failed": runner.failed, "too_long": runner.too_long}

    answer, cpu_s = in_a_copy(trial, _limit_s(names, known))
    if answer is not None and not answer["swapped"]:
        return None
    return _verdict(answer, len(names), cpu_s)


def try_imported(mutant: Mutant, as_python: bool, known: Mapping[str, Known]) -> Verdict:
    """Try a mutant from its import on with all cases of the known tests."""
    left_out: set[str] = set()
    while True:
        verdict = _imported(mutant, as_python, known, left_out)
        if verdict.by not in left_out and (verdict.by in known or "::" not in verdict.by):
            return verdict
        # A case that was not tried before may fail, or take long, without the mutant as well.
        if _imported(None, as_python, {verdict.by: SLOW}, set()).outcome == "survived":
            return verdict
        left_out.add(verdict.by)


def _imported(
    mutant: Mutant | None, as_python: bool, known: Mapping[str, Known], left_out: Set[str]
) -> Verdict:
    if not known:
        return Verdict("survived", "", 0, 0.0)
    found: dict[str, Any] = {"failed": ["the import"], "too_long": False, "tests": 0}

    def use(session: Session) -> None:
        # A mutant can change which cases a test has.
        names = [name for name in in_order(known) if name in session.items]
        tests = {test_of(name) for name in known}
        names += [n for n in session.items if test_of(n) in tests and n not in {*known, *left_out}]
        runner = session.run(names, lambda name: most_s(known.get(name, SLOW)))
        found.update(failed=runner.failed, too_long=runner.too_long, tests=len(names))

    def trial() -> dict[str, Any]:
        if mutant is not None:
            name, path = f"counterpoise.{mutant.module.replace('/', '.')}", path_of(mutant.module)
            tree = mutated(Path(path).read_text(), mutant.number)
            sys.meta_path.insert(0, _Finder(name, path, tree))
        files = sorted({name.partition("::")[0] for name in known})
        try:
            collect(files, as_python, use)
        except AssertionError:
            found["failed"] = ["the import"]
        return found

    answer, cpu_s = in_a_copy(trial, ALL_CASES_S, idle_s=ALL_CASES_S)
    return _verdict(answer, found["tests"] if answer is None else answer["tests"], cpu_s)


def in_order(known: Mapping[str, Known]) -> list[str]:
    """Return tests' names, those that take least first."""
    return sorted(known, key=lambda name: (known[name].cpu_s, name))


def most_s(known: Known) -> float:
    """Return how much CPU a test may take with a mutant; one without an end takes it all."""
    return 3.0 + 3 * known.cpu_s


def _limit_s(names: Sequence[str], known: Mapping[str, Known]) -> float:
    return min(MOST_CPU_S, 10 + sum(most_s(known[name]) for name in names))


def _verdict(answer: dict[str, Any] | None, tests: int, cpu_s: float) -> Verdict:
    if answer is None or answer["too_long"]:
        by = answer["failed"][0] if answer is not None else ""
        return Verdict("timeout", by, tests, cpu_s)
    if answer["failed"]:
        return Verdict("killed", answer["failed"][0], tests, cpu_s)
    return Verdict("survived", "", tests, cpu_s)

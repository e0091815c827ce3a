"""How mutants are tried: copies with limits, the lines that are reached, code put in place."""

import ast
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.mutation.operators import mutants_of, mutated
from tests.mutation.reach import Reached
from tests.mutation.session import Known
from tests.mutation.swapping import changed_code, functions_of, swap
from tests.mutation.trial import in_a_copy

SOURCE = """
LIMIT = 7

def outer(value):
    if value > LIMIT:
        return -1
    return [part(value) for part in PARTS][0]

class Holder:
    factor = 3

    @staticmethod
    def times(value):
        return value * Holder.factor

def enclosing(factor):
    def inner(value):
        return value + factor
    return inner

PARTS = [lambda value: value + 1]
adds = enclosing(2)
"""


def load(folder: Path) -> ModuleType:
    path = folder / "example.py"
    path.write_text(SOURCE)
    module = ModuleType("example")
    exec(compile(ast.parse(SOURCE), str(path), "exec"), module.__dict__)
    module.__file__ = str(path)
    return module


def change(before: str, after: str) -> ast.Module:
    (found,) = (m for m in mutants_of("m", SOURCE) if (m.before, m.after) == (before, after))
    return mutated(SOURCE, found.number)


def plant(module: ModuleType, before: str, after: str) -> bool:
    path = str(module.__file__)
    code = changed_code(ast.parse(SOURCE), change(before, after), path)
    return code is not None and swap(code, functions_of([path]))


def test_a_function_is_changed_for_those_who_have_it_already(tmp_path: Path) -> None:
    module = load(tmp_path)
    outer, times = module.outer, module.Holder.times
    assert (outer(7), outer(8), times(2)) == (8, -1, 6)
    assert plant(module, "if value > LIMIT:", "if value >= LIMIT:")
    assert plant(module, "return value * Holder.factor", "return value + Holder.factor")
    assert (outer(7), outer(6), times(2)) == (-1, 7, 5)


def test_what_imports_run_is_not_changed_in_place(tmp_path: Path) -> None:
    module = load(tmp_path)
    assert not plant(module, "LIMIT = 7", "LIMIT = 8")
    assert not plant(module, "factor = 3", "factor = 4")
    assert (module.outer(7), module.Holder.times(2)) == (8, 6)


def test_a_function_in_another_is_changed_for_calls_to_come(tmp_path: Path) -> None:
    module = load(tmp_path)
    assert plant(module, "return value + factor", "return value - factor")
    assert module.enclosing(2)(5) == 3
    # One that was made while importing is not; such mutants are tried again, imported.
    assert module.adds(5) == 7


def test_lines_that_are_run_are_noted(tmp_path: Path) -> None:
    module = load(tmp_path)
    path = str(module.__file__)
    before = sys.gettrace()
    with Reached([path]) as reached:
        for value in (9, 9, 1):
            module.outer(value)
        module.Holder.times(1)
    sys.settrace(before)
    with Reached([path]) as fewer:
        module.outer(9)
    sys.settrace(before)
    assert set(reached.lines[path]) >= {5, 6, 7, 14}
    assert not {17, 18} & set(reached.lines[path])
    known = Known(0.1, {path: frozenset(fewer.lines[path])})
    assert known.reaches(path, (6, 7))
    assert not known.reaches(path, (7, 7))
    assert not known.reaches("another.py", (6, 7))


def spin() -> dict[str, Any]:
    while True:
        pass


def test_a_copy_answers_or_is_ended_when_its_cpu_is_used_up() -> None:
    found, cpu_s = in_a_copy(lambda: {"value": 5}, limit_s=20)
    assert found == {"value": 5}
    assert cpu_s < 20
    found, cpu_s = in_a_copy(spin, limit_s=0)
    assert found is None
    assert cpu_s < 20


def test_an_error_of_the_driver_is_not_taken_for_a_verdict() -> None:
    with pytest.raises(RuntimeError, match="invalid literal"):
        in_a_copy(partial(int, "x"), limit_s=20)  # type: ignore[arg-type]

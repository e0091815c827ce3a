"""Plant a bug in the running product: replace an expression, a constant or a table row.

A mutant names a function as "module:Class.method" and the code in it that is replaced. The code is
matched by its syntax tree, so neither formatting nor anything outside of the function matters; it
must occur exactly once. Only the function's code object is exchanged: no module is copied, and
whoever imported the function by name runs the mutated one as well.
"""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest

ROOT = "counterpoise.balancer."
Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """A planted bug: what it is, how to plant it, and a seed of the simulation that shows it."""

    what: str
    plants: tuple[Plant, ...]
    seed: int


def edit(where: str, old: str, new: str) -> Plant:
    """Return what replaces an expression or consecutive statements in one function."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        function = find_function(where)
        patch.setattr(function, "__code__", mutated(function, old, new).__code__)

    return plant


def constant(where: str, value: object) -> Plant:
    """Return what gives a module's constant another value."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        module, _, name = where.partition(":")
        patch.setattr(importlib.import_module(ROOT + module), name, value)

    return plant


def row(table: str, key: tuple[str, str], value: object) -> Plant:
    """Return what replaces one row of a table of transitions."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        module, _, name = table.partition(":")
        rows = getattr(importlib.import_module(ROOT + module), name)
        assert key in rows
        patch.setitem(rows, key, value)

    return plant


def find_function(where: str) -> FunctionType:
    """Return the function or method, or the getter of the property, of that name.

    >>> find_function("planning.problem.shuffle:permutation").__name__
    'permutation'
    """
    module, _, names = where.partition(":")
    found: Any = importlib.import_module(ROOT + module)
    for name in names.split("."):
        found = inspect.getattr_static(found, name)
    found = found.fget if isinstance(found, property) else found
    assert isinstance(found, FunctionType), f"{where} is no function"
    return found


def mutated(function: FunctionType, old: str, new: str) -> FunctionType:
    """Return a function with one piece of its code replaced."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    new_names: dict[str, Any] = {}
    code = compile(replaced(tree, old, new), f"<mutant of {function.__qualname__}>", "exec")
    exec(code, function.__globals__, new_names)
    made: FunctionType = new_names[function.__name__]
    return made


def replaced(tree: ast.Module, old: str, new: str) -> ast.Module:
    """Return a syntax tree in which `old` is replaced by `new` ("" removes statements).

    >>> tree = ast.parse("if a+b:\\n  c()\\n  d()")
    >>> print(ast.unparse(replaced(replaced(tree, "a + b", "True"), "c(); d()", "")))
    if True:
        pass
    """
    before, after = ast.parse(textwrap.dedent(old)).body, ast.parse(textwrap.dedent(new)).body
    edits = _Replace(before, after or [ast.Pass()])
    changed = edits.visit(tree)
    assert edits.count == 1, f"{old!r} occurs {edits.count} times in {ast.unparse(tree)}"
    return ast.fix_missing_locations(changed)


class _Replace(ast.NodeTransformer):
    """Replaces an expression, or a run of statements, wherever it occurs; counts how often."""

    def __init__(self, before: list[ast.stmt], after: list[ast.stmt]) -> None:
        self.before, self.after = [ast.unparse(each) for each in before], after
        first = before[0]
        self.expression = ast.unparse(first.value) if isinstance(first, ast.Expr) else None
        self.count = 0

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and ast.unparse(node) == self.expression:
            (only,) = self.after
            assert isinstance(only, ast.Expr), "an expression is replaced by an expression"
            self.count += 1
            return only.value
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, self._in_block(block))
        return self.generic_visit(node)

    def _in_block(self, block: list[ast.stmt]) -> list[ast.stmt]:
        texts = [ast.unparse(each) for each in block]
        size = len(self.before)
        for start in range(len(block) - size + 1):
            if texts[start : start + size] == self.before:
                self.count += 1
                return [*block[:start], *self.after, *block[start + size :]]
        return block

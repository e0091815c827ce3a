"""The shape of the product: small folders, plain names, one meaning a class, short functions.

Run as a script, it prints what it counts: `PYTHONPATH=.venv/typing python -m tests.test_structure`.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.imports import FOLDERS, ROOT, cycles, module_graph, modules, tree_of

MAX_ENTRIES = 15
MAX_SHARED_PREFIX = 2
MAX_LINES = 40
MAX_COMPLEXITY = 15
MAX_LONG_FUNCTIONS = 10
# Functions that may be longer or more complex, each with its reason; at most MAX_LONG_FUNCTIONS.
ALLOWED: dict[str, str] = {
    "loader.dataloader.DataLoader.__init__": "torch's parameters and ours, one a line",
    "sched.bubble_filling.problem.jit_place.place": (
        "one compiled walk over arrays: its 13 parameters, one a line, and what they mean are half"
    ),
}


def _folders() -> Iterator[Path]:
    for top in FOLDERS:
        inside = [path for path in (ROOT / top).rglob("*") if path.is_dir()]
        yield from (path for path in [ROOT / top, *inside] if path.name != "__pycache__")


def _entries(folder: Path) -> list[str]:
    """Return the names in a folder, without what Python and numba leave there."""
    return [p.name for p in folder.iterdir() if p.name != "__pycache__" and p.name[0] != "."]


def _modules_in(folder: Path) -> list[str]:
    return [path.stem for path in folder.glob("*.py") if path.name != "__init__.py"]


def crowded_folders() -> list[str]:
    """Return the folders that have more entries than MAX_ENTRIES."""
    counted = ((folder, len(_entries(folder))) for folder in _folders())
    return [f"{folder.relative_to(ROOT)}: {n}" for folder, n in counted if n > MAX_ENTRIES]


def shared_prefixes() -> list[str]:
    """Return the first words that more than MAX_SHARED_PREFIX modules of a folder share."""
    return [
        f"{folder.relative_to(ROOT)}/{prefix}_*: {n}"
        for folder in _folders()
        for prefix, n in Counter(name.split("_")[0] for name in _modules_in(folder)).items()
        if n > MAX_SHARED_PREFIX
    ]


def echoes() -> list[str]:
    """Return the modules whose name starts with their folder's, in singular or plural."""
    return [
        f"{folder.relative_to(ROOT)}/{name}.py"
        for folder in _folders()
        for name in _modules_in(folder)
        if name.startswith(folder.name.removesuffix("s"))
    ]


def shared_class_names() -> dict[str, list[str]]:
    """Return the public classes' names that more than one module defines, with the modules."""
    found = defaultdict(list)
    for name, path in modules().items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    return {name: where for name, where in sorted(found.items()) if len(where) > 1}


class _Branches(ast.NodeVisitor):
    """Counts the branches of a function's body by radon's rules; closures count for themselves."""

    def __init__(self) -> None:
        self.count = 0

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return
            case ast.Assert():
                self.count += 1
                return
            case ast.Try() | ast.TryStar():
                self.count += len(node.handlers) + bool(node.orelse)
            case ast.BoolOp():
                self.count += len(node.values) - 1
            case ast.If() | ast.IfExp():
                self.count += 1
            case ast.Match():
                # the case `_` is an else
                wild = any(getattr(case.pattern, "pattern", 0) is None for case in node.cases)
                self.count += len(node.cases) - wild
            case ast.For() | ast.AsyncFor() | ast.While():
                self.count += 1 + bool(node.orelse)
            case ast.comprehension():
                self.count += 1 + len(node.ifs)
        self.generic_visit(node)


def complexity(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return a function's cyclomatic complexity, as radon counts it."""
    branches = _Branches()
    for statement in function.body:
        branches.visit(statement)
    return 1 + branches.count


def _functions(
    tree: ast.AST, name: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield each function below a node with its dotted name."""
    for node in ast.iter_child_nodes(tree):
        inner = name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{node.name}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield inner, node
        yield from _functions(node, inner)


def long_functions() -> dict[str, tuple[int, int]]:
    """Return the lines, docstring included, and complexity of each function over a limit."""
    found = {}
    for module, path in modules().items():
        for name, function in _functions(tree_of(path), module):
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines > MAX_LINES or complexity(function) > MAX_COMPLEXITY:
                found[name] = (lines, complexity(function))
    return found


def test_no_folder_is_crowded() -> None:
    assert not crowded_folders()


def test_no_prefix_replaces_a_folder() -> None:
    assert not shared_prefixes()


def test_no_module_repeats_its_folders_name() -> None:
    assert not echoes()


def test_no_modules_import_each_other() -> None:
    assert not cycles(module_graph())


def test_no_public_classes_share_a_name() -> None:
    assert not shared_class_names()


def test_functions_are_short_and_simple_but_for_the_named_ones() -> None:
    assert set(long_functions()) == set(ALLOWED)


def test_complexity_counts_what_radon_counts() -> None:
    (function,) = ast.parse(
        """
def f(a):
    if a and f:  # 2
        return [b for b in a if b]  # 2
    try:
        while a:  # 2, with its else
            assert a or f  # 1
        else:
            a()
    except OSError:  # 1
        match a:  # 1: the case `_` is an else
            case 1:
                def closure(): return a or f  # none: it counts for itself
            case _:
                a = lambda: 1 if a else 2  # 1
    """
    ).body
    assert isinstance(function, ast.FunctionDef)
    assert complexity(function) == 1 + 2 + 2 + 2 + 1 + 1 + 1 + 1


def test_few_functions_are_named_as_long_and_each_has_a_reason() -> None:
    assert len(ALLOWED) <= MAX_LONG_FUNCTIONS
    assert all(ALLOWED.values())


if __name__ == "__main__":
    print("folders with too many entries:", crowded_folders())
    print("prefixes of three or more modules:", shared_prefixes())
    print("modules that repeat their folder's name:", echoes())
    print("import cycles:", cycles(module_graph()))
    print("public classes that share a name:", shared_class_names())
    for name, (lines, branches) in sorted(long_functions().items()):
        print(f"{name}: {lines} lines, complexity {branches}. {ALLOWED.get(name, 'not allowed')}")

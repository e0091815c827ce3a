"""The shape of the product: no import cycle, one meaning a class.

Run as a script, it prints what it counts: `PYTHONPATH=.venv/typing python -m tests.test_structure`.
"""

import ast
import builtins
from collections import defaultdict

from tests.imports import cycles, module_graph, modules, tree_of


def shared_class_names() -> dict[str, list[str]]:
    """Return the public classes' names that more than one module defines, with the modules."""
    found = defaultdict(list)
    for name, path in modules().items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    return {name: where for name, where in sorted(found.items()) if len(where) > 1}


def late_names() -> dict[str, set[str]]:
    """Return the names of its module that a `__del__` looks up when it runs."""
    found = defaultdict(set)
    for name, path in modules().items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef) and node.name == "__del__":
                own = {each.arg for each in node.args.args}
                used = {each.id for part in node.body for each in ast.walk(part)
                        if isinstance(each, ast.Name)}  # fmt: skip
                found[name] |= used - own - {*dir(builtins)}
    return {name: names for name, names in found.items() if names}


def test_no_finalizer_needs_a_name_of_its_module() -> None:
    # At the interpreter's end it may be None, and to print that error can hang.
    assert not late_names()


def test_no_modules_import_each_other() -> None:
    assert not cycles(module_graph())


def test_no_public_classes_share_a_name() -> None:
    assert not shared_class_names()


if __name__ == "__main__":
    print("import cycles:", cycles(module_graph()))
    print("public classes that share a name:", shared_class_names())

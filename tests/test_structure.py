"""The shape of the product: no import cycle, one meaning a class, files of one sitting.

Run as a script, it prints what it counts: `PYTHONPATH=.venv/typing python -m tests.test_structure`.
"""

import ast
from collections import defaultdict

from tests.imports import cycles, module_graph, modules, tree_of

MAX_LINES = 400


def shared_class_names() -> dict[str, list[str]]:
    """Return the public classes' names that more than one module defines, with the modules."""
    found = defaultdict(list)
    for name, path in modules().items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    return {name: where for name, where in sorted(found.items()) if len(where) > 1}


def long_files() -> dict[str, int]:
    """Return the number of lines of each module that has more than MAX_LINES."""
    lines = {name: path.read_text().count("\n") for name, path in modules().items()}
    return {name: n for name, n in lines.items() if n > MAX_LINES}


def test_no_modules_import_each_other() -> None:
    assert not cycles(module_graph())


def test_no_public_classes_share_a_name() -> None:
    assert not shared_class_names()


def test_no_file_is_long() -> None:
    assert not long_files()


if __name__ == "__main__":
    print("import cycles:", cycles(module_graph()))
    print("public classes that share a name:", shared_class_names())
    print(f"files of more than {MAX_LINES} lines:", long_files())

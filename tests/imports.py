"""The import graph of the product, read from its source: no module is imported to make it."""

import ast
import functools
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("balancer", "loader", "sched", "tools", "workers")


def name_of(path: Path) -> str:
    """Return a file's module name below `counterpoise`: "loader.step.info", "" for the root."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def modules() -> Mapping[str, Path]:
    """Return the file of every module of the product, by name."""
    found = [ROOT / "__init__.py"]
    for folder in FOLDERS:
        found += sorted((ROOT / folder).rglob("*.py"))
    return {name_of(path): path for path in found}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text(), str(path))


def package_of(name: str) -> str:
    """Return the sub-package that a module is in; a package's `__init__` is in the package."""
    if modules()[name].name == "__init__.py":
        return name
    return name.rpartition(".")[0]


@functools.cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return a file's imports and constants: one walk, which takes most of the time, for both."""
    kinds = (ast.Import, ast.ImportFrom, ast.Constant)
    return tuple(node for node in ast.walk(tree_of(path)) if isinstance(node, kinds))


@functools.cache
def imported(path: Path) -> tuple[tuple[int, str, str | None], ...]:
    """Return (level, module, name) for every import of a file, at whatever depth it stands."""
    found: list[tuple[int, str, str | None]] = []
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            found += ((0, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found += ((node.level, node.module or "", alias.name) for alias in node.names)
    return tuple(found)


def _target(source: str, level: int, module: str, name: str | None) -> str | None:
    """Return which module of ours an import reads; None for somebody else's."""
    if level:
        above = package_of(source).split(".") if package_of(source) else []
        parts = above[: len(above) - (level - 1)] + (module.split(".") if module else [])
        base = ".".join(parts)
    elif module.split(".")[0] == "counterpoise":
        base = module.removeprefix("counterpoise").removeprefix(".")
    else:
        return None
    # `from .package import module` reads the module; `from .package import name` its __init__.
    inner = f"{base}.{name}".lstrip(".")
    if (ROOT / base.replace(".", "/")).with_suffix(".pyx").exists():
        return None  # an extension, made of modules beside it
    return inner if inner in modules() else base


def _named(source: str, path: Path) -> set[str]:
    """Return which modules of ours a file names in strings, as tables of lazy imports do.

    Two words or more count: "bench.command". A name "module:Class" does not: that is how a user
    asks for a plug-in, ours among others.
    """
    found = set()
    for node in _nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.lstrip(".")
            for name in (text.removeprefix("counterpoise."), f"{package_of(source)}.{text}"):
                if "." in text and name in modules():
                    found.add(name)
    return found


@functools.cache
def module_graph() -> Mapping[str, frozenset[str]]:
    """Return which modules each module imports: lazily, for type checking and by string too."""
    graph = {}
    for name, path in modules().items():
        targets = {_target(name, *line) for line in imported(path)} | _named(name, path)
        if (stub := path.with_suffix(".pyi")).exists():
            targets |= {_target(name, *line) for line in imported(stub)}
        graph[name] = frozenset(t for t in targets if t is not None and t != name)
    return graph


def layer_graph(layers: Collection[str]) -> dict[str, frozenset[str]]:
    """Return which layers each layer imports.

    A layer is a sub-package, or a module that `layers` names: one that others of its folder use.
    """
    graph: dict[str, set[str]] = {}
    for name, targets in module_graph().items():
        layer = name if name in layers else package_of(name)
        found = graph.setdefault(layer, set())
        found |= {target if target in layers else package_of(target) for target in targets}
        found.discard(layer)
    return {layer: frozenset(found) for layer, found in graph.items()}


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node, each sorted (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return found

"""All ranks make the same groups in the same order, whatever the hash seeds of their strings."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from counterpoise.sched.runtime import Units, UnitSize
from counterpoise.sched.runtime.units.place import Place
from tests.imports import ROOT
from tests.sched.runtime.units.processes import UnitSetting, run_units

pytestmark = pytest.mark.slow

SETS = ("set", "frozenset")
# Where the order of a set changes nothing.
ORDERLESS = ("sorted", "set", "frozenset", "any", "all", "sum", "min", "max", "len", "union")


def is_set(node: ast.expr | None, known: frozenset[str]) -> bool:
    """Return whether an expression is a set by its form, or by the name of a local variable."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.Sub | ast.BitAnd):
        return is_set(node.left, known) or is_set(node.right, known)
    if isinstance(node, ast.Call):
        function = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        return isinstance(function, ast.Name) and function.id in SETS
    named = isinstance(node, ast.Name) and node.id in known
    return isinstance(node, ast.Set | ast.SetComp) or named


def is_set_type(node: ast.expr | None) -> bool:
    outer = node.value if isinstance(node, ast.Subscript) else node
    return isinstance(outer, ast.Name) and outer.id in SETS


def sets_of(function: ast.AST) -> frozenset[str]:
    """Return the names of arguments and local variables that are sets."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.arg | ast.AnnAssign) and is_set_type(node.annotation):
            target = node.target if isinstance(node, ast.AnnAssign) else None
            found.add(target.id if isinstance(target, ast.Name) else getattr(node, "arg", ""))
        if isinstance(node, ast.Assign) and is_set(node.value, frozenset()):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(found)


def walks(tree: ast.AST) -> Iterator[int]:
    """Yield the lines where a set is walked into something that has an order."""
    orderless = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", "")) in ORDERLESS
        for argument in node.args
    }
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        known = sets_of(function)
        for node in ast.walk(function):
            if isinstance(node, ast.For) and is_set(node.iter, known):
                yield node.lineno
            if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
                inside = any(is_set(one.iter, known) for one in node.generators)
                if inside and id(node) not in orderless:
                    yield node.lineno
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("list", "tuple"):
                yield from (node.lineno for one in node.args if is_set(one, known))
            if isinstance(node, ast.List | ast.Tuple):
                starred = (one.value for one in node.elts if isinstance(one, ast.Starred))
                yield from (node.lineno for one in starred if is_set(one, known))


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n  for a in {1, 2}:\n    g(a)",
        "def f(b: set[str]):\n  return [a for a in b]",
        "def f():\n  b = {x for x in 'ab'}\n  return {a: c for c in range(2) for a in b}",
        "def f(a, b):\n  return list(set(a) - b)",
        "def f(b: frozenset[str]):\n  return (1, *b)",
    ],
)
def test_a_walk_through_a_set_is_found(text: str) -> None:
    assert [*walks(ast.parse(text))]
    assert not [*walks(ast.parse("def f(b: set[str]):\n  return sorted(a for a in b)"))]


def test_no_set_of_the_runtime_is_walked_into_an_order() -> None:
    files = sorted((ROOT / "sched" / "runtime").rglob("*.py"))
    assert len(files) > 40
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in files
        for line in sorted({*walks(ast.parse(path.read_text()))})
    ]
    assert not found


def test_communicators_of_units_have_one_order() -> None:
    units = Units(UnitSize(2, 2), UnitSize(1, 1))
    place = object.__new__(Place)
    object.__setattr__(place, "units", units)
    names = ["b", "a", "c"]
    assert [*place.communicator_ranks(names)] == [*place.communicator_ranks(names[::-1])]


def reversed_order(rank: int) -> str:
    """Return the error of units of which one process has another order of communicators."""
    right = Place.communicator_ranks

    def other(self: Place, names: Iterable[str]) -> Mapping[str, Sequence[int]]:
        found = right(self, names)
        return {name: found[name] for name in ([*found][::-1] if rank == 3 else found)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Place, "communicator_ranks", other)
        with pytest.raises(ValueError, match="as group 0, process 0 would make") as found:
            run_units(rank, UnitSetting("1f1b-alg1", (1, 2), (2, 1)))
    return str(found.value)


def test_ranks_that_would_make_groups_in_another_order_say_so(pool) -> None:
    for text in pool.run(reversed_order):
        assert "and process 3 '" in text


# Interpreters that import torch anew.
@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 9))
def test_a_job_under_torchrun_with_a_hash_seed_for_each_rank(tmp_path: Path, seed: int) -> None:
    command = [str(Path(sys.executable).with_name("torchrun")), "--standalone"]
    command += ["--nproc-per-node", "4", "--no-python", "bash", "-c"]
    script = f"{sys.executable} -m tests.sched.runtime.seeded {tmp_path / 'found'}"
    command.append(f"PYTHONHASHSEED=$(({seed} + 10 * RANK)) exec {script}")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    done = subprocess.run(
        command, env=environment, timeout=200, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in (tmp_path / "found").read_text().splitlines()]
    assert len({seed for _, seed, _ in lines}) == 4
    assert max(float(error) for _, _, error in lines) <= 1e-5

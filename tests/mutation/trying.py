"""Tries the mutants that have the same tests: most of them in one session, the others imported."""

import ast
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.mutation.log import Log
from tests.mutation.operators import Mutant
from tests.mutation.planting import path_of, try_imported, try_in
from tests.mutation.session import Known, Session, collect
from tests.mutation.swapping import functions_of
from tests.mutation.trial import in_a_copy

# A session of hundreds of mutants ends by itself; this is for a driver that does not.
SESSION_S = 6 * 3600.0


def try_with(tests: Sequence[str], as_python: bool, mutants: Sequence[Mutant], log: Log) -> None:
    """Try mutants with some test files and folders, and log what becomes of each."""

    def in_session() -> dict[str, Any]:
        left: dict[str, Any] = {}
        collect(tests, as_python, lambda session: left.update(_in_session(session, mutants, log)))
        return left

    log.say(f"{len(mutants)} mutants with {' '.join(tests)}")
    answer, _ = in_a_copy(in_session, SESSION_S, idle_s=SESSION_S)
    assert answer is not None, "the session has ended before its mutants were tried"
    known = {
        name: Known(cpu_s, {file: frozenset(at) for file, at in lines.items()})
        for name, cpu_s, lines in answer["known"]
    }
    for mutant in mutants:
        if mutant.name in answer["left"]:
            log.add(mutant, try_imported(mutant, as_python, _to_import_with(mutant, known)))


def _in_session(session: Session, mutants: Sequence[Mutant], log: Log) -> dict[str, Any]:
    """Try what can be tried in a session; return what is known of tests, and mutants left."""
    files = sorted({path_of(mutant.module) for mutant in mutants})
    known, left_out = session.measure(files)
    log.say(f"{len(known)} tests; left out: {json.dumps(left_out)}")
    functions = functions_of(files)
    left = []
    for mutant in mutants:
        verdict = try_in(session, mutant, known, functions)
        if verdict is None or verdict.outcome == "survived":
            left.append(mutant.name)
        else:
            log.add(mutant, verdict)
    shown = [
        (name, each.cpu_s, {file: sorted(lines) for file, lines in each.lines.items()})
        for name, each in known.items()
    ]
    return {"known": shown, "left": left}


def _to_import_with(mutant: Mutant, known: Mapping[str, Known]) -> dict[str, Known]:
    """Return the tests that reach the function of a mutant.

    All of them where it is in none, or in one that no test reaches: imports may call it.
    """
    path = path_of(mutant.module)
    lines = _function_lines(Path(path).read_text(), mutant.lines[0])
    if lines is None:
        return dict(known)
    reaching = {name: each for name, each in known.items() if each.reaches(path, lines)}
    return reaching or dict(known)


def _function_lines(source: str, line: int) -> tuple[int, int] | None:
    """Return the first and the last line of the body of the function that a line is in."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            lines = node.body[0].lineno, node.end_lineno or node.lineno
            if lines[0] <= line <= lines[1]:
                return lines
    return None

"""The mutation tool: what it changes, what it leaves alone, how it counts."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import all_of, report, sample
from tests.mutation.equivalents import EQUIVALENTS
from tests.mutation.operators import mutants_of, mutated
from tests.mutation.session import ROOT
from tests.mutation.table import SCHEDULES, TRIED, VOCABULARY

EXAMPLE = '''
def example(values: list[int] | None = None) -> int:
    """Return 1 + 1."""
    if values is None or 0 in values:
        raise ValueError(f"{1 + 1}")
    total = 0
    for value in values:
        if not value:
            continue
        total += max(value, -1)
    return total if total <= 7 else [v for v in values if v][0]
'''


def test_each_mutant_is_one_change_that_compiles() -> None:
    plain = ast.unparse(ast.parse(EXAMPLE)).splitlines()
    found = mutants_of("m", EXAMPLE)
    for mutant in found:
        tree = mutated(EXAMPLE, mutant.number)
        compile(tree, "m", "exec")
        changed = ast.unparse(tree).splitlines()
        assert len(changed) == len(plain)
        assert sum(one != other for one, other in zip(changed, plain, strict=True)) == 1
    assert len({mutant.name for mutant in found}) == len(found)


def test_what_decides_is_changed_and_what_says_is_not() -> None:
    changes = {(m.before, m.after) for m in mutants_of("m", EXAMPLE)}
    assert changes == {
        ("if values is None or 0 in values:", "if values is not None or 0 in values:"),
        ("if values is None or 0 in values:", "if values is None and 0 in values:"),
        ("if values is None or 0 in values:", "if values is None or 1 in values:"),
        ("if values is None or 0 in values:", "if values is None or 0 not in values:"),
        ("if values is None or 0 in values:", "if not (values is None or 0 in values):"),
        ("total = 0", "total = 1"),
        ("if not value:", "if value:"),
        ("if not value:", "if not not value:"),
        ("continue", "break"),
        ("total += max(value, -1)", "total -= max(value, -1)"),
        ("total += max(value, -1)", "total += min(value, -1)"),
        ("total += max(value, -1)", "total += max(value, 1)"),
        ("total += max(value, -1)", "total += max(value, -2)"),
        ("total += max(value, -1)", "pass"),
        *(
            ("return total if total <= 7 else [v for v in values if v][0]", f"return {after}")
            for after in (
                "total if total < 7 else [v for v in values if v][0]",
                "total if total <= 8 else [v for v in values if v][0]",
                "total if not total <= 7 else [v for v in values if v][0]",
                "total if total <= 7 else [v for v in values if not v][0]",
                "total if total <= 7 else [v for v in values if v][1]",
            )
        ),
    }


def test_the_sample_has_enough_of_each_module_and_is_the_same_again() -> None:
    chosen = sample(650, seed=1)
    assert chosen == sample(650, seed=1) != sample(650, seed=2)
    assert len({each.mutant.name for each in chosen}) == len(chosen) == 650
    for tried in TRIED:
        for name in tried.modules:
            module = f"{tried.folder}/{name}"
            has = len(all_of(module))
            drawn = sum(each.mutant.module == module for each in chosen)
            assert drawn >= min(15, has), module


def test_a_change_of_one_function_leaves_the_others_in_the_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {each.mutant.name for each in sample(200, seed=1)}
    gone = "balancer/planning/kernels/level:level_contest:"
    monkeypatch.setattr(
        "tests.mutation.__main__.all_of",
        lambda module: [m for m in all_of(module) if not m.name.startswith(gone)],
    )
    after = {each.mutant.name for each in sample(200, seed=1)}
    left = {name for name in before if name.startswith(gone)}
    assert left
    assert before - after == left


def test_the_tests_that_are_run_exist() -> None:
    assert all((ROOT / path).exists() for tried in TRIED for path in tried.tests)
    # What starts processes loads no mutant; all other tests of the vocabulary layers are run.
    every = {str(path.relative_to(ROOT)) for path in (ROOT / VOCABULARY[0]).parent.glob("test_*")}
    assert every - {*VOCABULARY} == {f"{SCHEDULES}/runtime/vocabulary/test_processes.py"}


def test_the_score_leaves_equivalents_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EQUIVALENTS, "same", "no difference")
    outcomes = {"dead": "killed", "slow": "timeout", "same": "survived", "alive": "survived"}
    verdicts = [{"name": n, "module": "m", "outcome": o} for n, o in outcomes.items()]
    found = report(verdicts)
    assert found["survivors"] == ["alive"]
    assert found["score"] == pytest.approx(2 / 3, abs=1e-4)
    assert found["score_with_equivalents"] == 0.5
    assert found["modules"] == {"m": [2, 3]}


@pytest.mark.long
def test_mutants_are_tried_and_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def run() -> tuple[dict[str, object], str]:
        words = [
            "--module",
            "vocabulary/logits",
            "--first",
            "300",
            "--kept",
            str(tmp_path / "kept"),
        ]
        done = subprocess.run(
            [sys.executable, "-m", "tests.mutation", *words], capture_output=True, text=True
        )
        return json.loads(done.stdout), done.stderr

    first, tried = run()
    again, nothing = run()
    assert again == first
    assert tried.count("killed") > 0
    assert not nothing

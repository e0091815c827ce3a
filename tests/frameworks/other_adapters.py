"""The adapters of torchtitan and Megatron-LM, by their calls; and the examples of all adapters."""

import ast

import pytest

from tests.frameworks.pool import Pool
from tests.imports import ROOT

CASES = "other_cases"
EXAMPLES = sorted((ROOT / "examples" / "frameworks").glob("*.py"))


@pytest.mark.parametrize("name", [path.stem for path in EXAMPLES])
def test_an_example_runs_and_says_how(one: Pool, name: str) -> None:
    path = ROOT / "examples" / "frameworks" / f"{name}.py"
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert f"Run: python examples/frameworks/{name}.py" in docstring.splitlines()
    (printed,) = one.run(f"{CASES}:example", path=str(path))
    assert printed


def test_torchtitan_makes_the_loader_that_an_override_names(one: Pool) -> None:
    ((dataset, errors, batches),) = one.run(f"{CASES}:overridden")
    assert dataset == "c4"  # what the config had stays
    assert len(batches) == 12
    assert set(batches) == {(True, True, True, True)}
    assert all('give "module:function"' in error for error in errors)


@pytest.mark.parametrize("stages", [2, pytest.param(1, marks=pytest.mark.long)])
def test_virtual_stages_of_megatron_take_the_same_microbatches(one: Pool, stages: int) -> None:
    ((seen, rest, errors),) = one.run(f"{CASES}:through_megatron", stages=stages)
    assert all(each == seen[0] for each in seen)
    first, second = seen[0][:12], seen[0][12:]
    assert second != first[:6]  # another epoch, another order
    assert rest == seen[0][9:18]
    assert all("save after optimizer.step()" in error for error in errors[:-1])
    assert len(errors) == (7 if stages > 1 else 1)
    assert "virtual_stages is 0" in errors[-1]

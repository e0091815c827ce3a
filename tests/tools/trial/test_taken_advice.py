"""What `try` advises is what is then measured as better, by the pasted lines themselves."""

import functools
from typing import Any

import pytest
import torch

import counterpoise as cp
from tests.tools.trial.test_kinds import HERE, tried

RANKS = 4


def step_of(lines: list[str], monkeypatch: Any) -> float:
    """Run the lines on four ranks; return the slowest rank's tokens of all steps a sample."""
    ours = functools.partial(cp.DataLoader, ranks=cp.Ranks(virtual=RANKS))
    found: dict[str, Any] = {}
    with monkeypatch.context() as patched:
        patched.setattr(cp, "DataLoader", ours)
        exec("\n".join(lines), found)
    # the loop that is pasted as a comment
    loop = next((line for line in lines if line.startswith("# your loop")), "")
    more: Any = {"per": "sample"} if "per=" in loop else {}
    work, samples = dict[tuple[int, int], int](), 0
    for batch, info in found["loader"].with_info():
        if loop:
            cp.scale_loss(torch.ones(()), info, **more)
        place = info.step, info.microbatch
        work[place] = max(work.get(place, 0), batch["input_ids"].numel())
        samples += info.samples
    found["loader"].close()
    return sum(work.values()) / samples


@pytest.mark.parametrize(
    ("data", "collate", "accumulate"),
    [
        ("texts", "join", 1), ("texts", "pad", 2), ("unlabelled", "pad_with_new_labels", 2),
        pytest.param("texts", "pad", 1, marks=pytest.mark.long),
        pytest.param("unlabelled", "pad", 2, marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_advice_that_is_taken_is_better(
    data: str, collate: str, accumulate: int, capsys: Any, monkeypatch: Any
) -> None:
    more = ("--ranks", str(RANKS), "--accumulate", str(accumulate))
    report = tried(capsys, f"{HERE}:{data}", "--collate", f"{HERE}:{collate}", *more)
    lines = report["paste"]
    assert "balance=" in lines[-1]
    head, tail = lines[-1].split("balance=")

    def measured(code: str) -> float:
        lines_of = [line for line in lines[:-1] if not line.startswith("# your loop")]
        return step_of([*lines_of, f"{head}balance={code})"], monkeypatch)

    more_code = f", accumulate={accumulate}" if accumulate > 1 else ""
    random = measured(f'cp.Balance("fixed"{more_code})')
    taken = step_of(lines, monkeypatch)
    others = [measured(f'cp.Balance("auto"{more_code}, counts="{c}")') for c in ("equal", "free")]
    assert taken < 0.97 * random
    assert taken <= min(others) * 1.03
    free = next(code for code in report["other_plans"] if "free" in code)
    told = report["other_plans"][free] if "free" in tail else report["forecast"]["time"]
    assert taken / random == pytest.approx(told, abs=0.1)

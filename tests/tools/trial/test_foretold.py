"""The step that is foretold is the step that two ranks then do."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from counterpoise.balancer import Balance
from tests.held_port import held_port
from tests.imports import ROOT
from tests.tools.trial.test_kinds import HERE, tried

pytestmark = pytest.mark.long


def run_two(collate: str, balance: str, meets: int) -> float:
    """Return what two ranks take, who wait for the slower one after `meets` microbatches."""
    words = [sys.executable, "-W", "ignore", "-m", "tests.tools.trial.two_ranks"]
    with held_port() as port:
        ranks = [
            subprocess.Popen(
                [*words, str(rank), str(port), collate, balance],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        said = [each.communicate(timeout=300)[0] for each in ranks]
    work = np.array([list(map(int, each.split())) for each in said])
    assert not any(each.returncode for each in ranks)
    return float(work.reshape(2, -1, meets).sum(axis=2).max(axis=0).sum())


@pytest.mark.parametrize(
    ("collate", "options"),
    [
        ("join", {}),
        ("pad", {"accumulate": 4}),
        ("pad", {"counts": "free"}),
        ("join", {"accumulate": 4}),
        ("pad", {"accumulate": 4, "waits": "step"}),
    ],
)
def test_foretold_within_ten_percent(collate: str, options: Any, capsys: Any) -> None:
    words = (f"{HERE}:long", "--collate", f"{HERE}:{collate}", "--ranks", "2")
    accumulate = options.get("accumulate", 1)
    waits = options.get("waits")
    words += ("--waits", waits) if waits else ()
    report = tried(capsys, *words, "--accumulate", str(accumulate))
    free = report["other_plans"]['cp.Balance("auto", counts="free")'] if "counts" in options else 0
    told = free or report["forecast"]["time"]
    meets = accumulate if waits else 1
    balanced = run_two(collate, Balance("auto", **options).to_json(), meets)
    done = balanced / run_two(collate, "", meets)
    assert told == pytest.approx(done, rel=0.1), json.dumps(report["forecast"])

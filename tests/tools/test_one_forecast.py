"""auto, `try`, `analyze` and a loop's report have one forecast: same data, same figures."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import counterpoise as cp
from counterpoise.loader import automatic
from counterpoise.tools.cli import main
from tests.loader.auto.auto_data import Texts, join, pad

HERE = "tests.tools.test_one_forecast"
RANKS, ACCUMULATE, SIZE = 2, 4, 4
# As many samples as auto looks at: two steps.
texts = Texts(64, labels=False)
LAYOUTS = {"packed": join, "padded": pad}
__all__ = ["join", "pad"]


def called(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--json", "--ranks", str(RANKS), "--accumulate", str(ACCUMULATE)])
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    found: dict[str, Any] = json.loads(printed.out.splitlines()[-1])
    return found


def looped(layout: str, balance: cp.Balance) -> cp.DataLoader[Any]:
    return cp.DataLoader(
        texts, SIZE, shuffle=True, collate_fn=LAYOUTS[layout], balance=balance,
        ranks=cp.Ranks(virtual=RANKS), keep_stats=True,
    )  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_have_the_same_figures(
    layout: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    collate = LAYOUTS[layout].__name__
    analyzed = called(
        capsys, "analyze", f"{HERE}:texts", "--layout", layout, "--batch-size", SIZE,
        "--out", tmp_path, "--workers", 1,
    )  # fmt: skip
    tried = called(
        capsys, "try", f"{HERE}:texts", "--collate", f"{HERE}:{collate}", "--batch-size", SIZE,
        "--workers", 0, "--seconds", 1, "--step-ms", 1_000_000,
    )  # fmt: skip
    told = tried["forecast"]
    for code, time in tried["other_plans"].items():
        assert analyzed["other_plans"][code] == pytest.approx(time, abs=1e-12), code
    assert analyzed["forecast"]["waited"] == pytest.approx(told["waited"], abs=1e-12)
    assert analyzed["forecast"]["padding_random"] == pytest.approx(told["padding_random"])
    auto = f'cp.Balance("auto", accumulate={ACCUMULATE})'
    assert analyzed["other_plans"][auto] == pytest.approx(told["time"], abs=1e-12)

    said: list[str] = []

    def note(_: object, line: str, *level: int) -> None:
        said.extend([line] * (not level))  # warnings say their level

    monkeypatch.setattr(automatic, "tell", note)
    loader = looped(layout, cp.Balance("auto", accumulate=ACCUMULATE))
    assert len(list(loader)) == 2 * RANKS * ACCUMULATE
    counted = loader.stats()
    (line,) = (re.findall(r"[\d.]+(?= of random| and wait| instead|;)", each) for each in said)
    assert line[0] == f"{told['time']:.2f}"
    for kind in ("forecast", "delivered"):
        assert counted["waiting"][kind] == pytest.approx(told["waiting"], abs=1e-12)
    assert counted["waiting"]["random"] == pytest.approx(told["waited"], abs=1e-12)
    assert counted["random_over_delivered"] == pytest.approx(1 / told["time"])


def test_what_analyze_recommends_is_what_a_loop_then_counts(tmp_path: Path, capsys: Any) -> None:
    analyzed = called(
        capsys, "analyze", f"{HERE}:texts", "--batch-size", SIZE, "--out", tmp_path, "--workers", 1
    )
    balance = cp.Balance.from_json(
        json.dumps(analyzed["recommended"]["balance"] | {"layout": "torch"})
    )
    lengths = [texts.length(index) for index in range(len(texts))]
    loader = cp.DataLoader(
        texts, shuffle=True, collate_fn=join, balance=balance, ranks=cp.Ranks(virtual=RANKS),
        keep_stats=True, cost={"tokens": lengths},
    )  # fmt: skip
    list(loader)
    counted = loader.stats()
    assert counted["waiting"]["delivered"] == pytest.approx(analyzed["forecast"]["waiting"])
    lines = loader.report(forecast=tmp_path / "report.json").splitlines()
    assert f"foretold {counted['waiting']['delivered']:.1%}" in lines[1]

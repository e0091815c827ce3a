"""`bench soak`: what grows is seen, whatever else goes up and down; all processes are looked at."""

import json
import os
import random

import pytest
from click.testing import CliRunner

from benchmarks.loading import soak
from benchmarks.loading.usage import Usage, usage_by_part

HOUR_S = 3600


def looks(grown: float) -> list[soak.Look]:
    """An hour in which a trainer's memory grows by so many bytes, and goes up and down by 2,000."""
    draw = random.Random(1)
    found: list[soak.Look] = []
    for at in range(0, HOUR_S, 60):
        nbytes = int(1e6 + grown * at / HOUR_S + draw.uniform(-1000, 1000))
        warm = 10**8 if at < HOUR_S / 10 else 0
        found.append((float(at), {"trainer": Usage(1, nbytes + warm, 12, 5)}))
    return found


def test_what_goes_up_and_down_does_not_grow() -> None:
    (trainer,) = soak.figures_of(looks(0)).values()
    assert abs(trainer["nbytes"]["per_hour"]) < 500
    assert trainer["descriptors"] == {"first": 12, "last": 12, "most": 12, "per_hour": 0}


def test_what_grows_slowly_is_seen() -> None:
    (trainer,) = soak.figures_of(looks(20_000)).values()
    assert trainer["nbytes"]["per_hour"] == pytest.approx(20_000, rel=0.05)
    assert trainer["nbytes"]["last"] > trainer["nbytes"]["first"]
    assert trainer["processes"] == 1


def test_a_process_sees_its_own_files_and_threads() -> None:
    before = usage_by_part(os.getpid())["trainer"]
    ends = os.pipe()
    try:
        assert usage_by_part(os.getpid())["trainer"].descriptors == before.descriptors + 2
    finally:
        for end in ends:
            os.close(end)
    assert before.processes == 1
    assert before.nbytes > 1_000_000


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("plain", {"trainer", "workers"}),
        pytest.param("balanced", {"trainer", "workers"}, marks=pytest.mark.long),
        pytest.param("remade", {"trainer"}, marks=pytest.mark.long),
    ],
)
def test_all_processes_of_a_loader_are_looked_at(kind: str, parts: set[str]) -> None:
    asked = ["--kind", kind, "--seconds", "1", "--every", "0.1", "--workers", "1", "--json"]
    done = CliRunner().invoke(soak.command, [*asked, "--cell", "200000x32"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])["kinds"][kind]
    assert parts <= found["parts"].keys()
    assert found["samples_per_s"] > 0
    assert found["parts"]["trainer"]["threads"]["first"] >= 1


def test_too_few_looks_are_refused() -> None:
    with pytest.raises(ValueError, match="fewer than 10 looks"):
        CliRunner().invoke(soak.command, ["--seconds", "5"], catch_exceptions=False)

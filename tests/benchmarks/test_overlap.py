"""`bench overlap`: the ideal is one, and the report has what it promises."""

import json

import pytest
from click.testing import CliRunner

from benchmarks.runtime.overlap import PARTS, command, ideal

pytestmark = pytest.mark.slow


def test_the_ideal_is_the_longer_of_two_queues() -> None:
    def simulated(count: int, link_s: float, product_s: float) -> float:
        arrived = done = 0.0
        for _ in range(count):
            arrived += link_s / count
            done = max(done, arrived) + product_s / count
        return done

    for count in range(1, 9):
        for link_s in (0.5, 1.0, 4.0):
            assert ideal(count, link_s, 1.0) == pytest.approx(simulated(count, link_s, 1.0))


def test_a_layer_never_takes_less_than_its_sleeps() -> None:
    words = "--chunks 1,2 --link-ms 4 --product-ms 2 --repeats 1 --json"
    found = CliRunner().invoke(command, words.split(), catch_exceptions=False)
    report = json.loads(found.stdout.splitlines()[-1])
    assert report["ranks"] == 2
    for parts in report["chunks"].values():
        assert set(parts) == set(PARTS)
        assert all(each["over_ideal"][1] >= 0.99 for each in parts.values())

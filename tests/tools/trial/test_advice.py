"""Advice is no better than the figures, and turns say which figures differ."""

from collections.abc import Iterator
from typing import Any

import pytest

from counterpoise.tools.trial.advice import advise, foretell_step
from counterpoise.tools.trial.turns import SAME, TORCH, Contender, LoaderTurn, compare, take_turns

FREE = 'cp.Balance("auto", counts="free")'


def report(
    time: float, free: float = 1.0, rate: float = 1000.0, ours: str = SAME, **more: Any
) -> dict[str, Any]:
    """Return a report: 8 samples a step of 100 ms, so that 80 a second are needed."""
    steps = {
        name: foretell_step(100 * share, 0.2, 8, rate)
        for name, share in (("torch", 1.0), ("ours", 1.0), ("auto", time))
    }
    return {
        "systems": {name: {"failed": ""} for name in steps},
        "is_stream": False,
        "settings": {"batch_size": 8, "accumulate": 1, "waits": None, "workers": 2, "cores": 4},
        "against_torch": {"ours": {"says": ours}},
        "rates": dict.fromkeys(steps, rate),
        "needed_samples_per_s": 80.0,
        "steps": steps,
        "forecast": {"time": time},
        "other_plans": {FREE: free},
        "costs": {
            "vary": True, "found": "tokens", "work": "", "recognised": True, "labels": "samples",
            "only_loading_shows": False,
        },
        "broken": {"count": 0},
        **more,
    }  # fmt: skip


def advised(given: dict[str, Any]) -> tuple[str, str, list[str]]:
    """Return the sentence, the last line to paste, and what would be better."""

    def line(*more: str, **changed: Any) -> str:
        shown = (f"{name}={value}" for name, value in changed.items())
        return ", ".join(["loader", *shown, *more])

    found = advise(given, ("from mine import dataset",), line)
    return found["verdict"], found["paste"][-1], [each["change"] for each in found["better"]]


def test_a_shorter_step_is_recommended() -> None:
    said, line, _ = advised(report(0.8))
    assert said == 'balance="auto" makes a step 20 % shorter: 100 ms now, 80 ms then (forecast).'
    assert line == 'loader, balance="auto"'


def test_a_gain_below_three_percent_is_none() -> None:
    said, line, better = advised(report(0.98))
    assert said.startswith("Balance would gain less than 3 %: leave it off.")
    assert line.startswith("# nothing to paste")
    assert better == []


def test_free_counts_are_recommended_where_equal_ones_gain_nothing() -> None:
    said, line, better = advised(report(1.0, free=0.7))
    assert "a step is 30 % shorter" in said
    assert line == f"loader, balance={FREE}"
    assert better == [FREE]


@pytest.mark.parametrize(("time", "free"), [(0.8, 1.0), (1.0, 0.7)])
def test_where_loading_is_the_limit_no_balance_is_recommended(time: float, free: float) -> None:
    said, line, better = advised(report(time, free=free, rate=40.0))
    assert said.startswith("Loading is the limit: a step needs 80 samples/s")
    assert better[0] == "num_workers=4"
    assert line == "# in your DataLoader: num_workers=4"


def test_a_slower_balanced_loader_takes_its_gain_away() -> None:
    given = report(0.8)
    given["rates"]["auto"], given["steps"]["auto"] = 79.0, foretell_step(80, 0.2, 8, 79.0)
    assert advised(given)[0].startswith("Loading is the limit")


def test_costs_that_only_loading_shows_are_said_where_balance_is_recommended() -> None:
    costs = {**report(0.8)["costs"], "only_loading_shows": True}
    assert advised(report(0.8, costs=costs))[2][0].startswith("a length column")
    assert advised(report(0.99, costs=costs))[2] == []


def test_our_loader_alone_is_recommended_only_where_it_is_faster() -> None:
    alike = report(
        1.0,
        costs={
            "vary": False,
            "found": "all alike",
            "recognised": True,
            "only_loading_shows": False,
        },
    )
    said, line, _ = advised(alike)
    assert said == "Balance cannot gain: all alike. Our loader is as fast as torch's."
    assert line.startswith("# nothing to paste")
    said, line, _ = advised({**alike, "against_torch": {"ours": {"says": "faster"}}})
    assert said.endswith("Our loader alone is faster than torch's.")
    assert line == "loader"


def of_rates(name: str, *rates: float) -> Contender:
    return Contender(name, lambda _: None, [LoaderTurn(rate, 0.1, 0.001) for rate in rates])


@pytest.mark.parametrize(
    ("rates", "says"),
    [
        ((110, 120, 130), "faster"),
        ((110, 120, 99), SAME),  # one round says otherwise
        ((101, 102, 103), SAME),  # all do, by next to nothing
        ((80, 90, 70), "slower"),
        ((150, 150), SAME),  # too few
    ],
)
def test_differences_within_the_range_of_the_rounds_are_none(
    rates: tuple[float, ...], says: str
) -> None:
    found = compare(of_rates("ours", *rates), of_rates(TORCH, *[100] * len(rates)))
    assert found["says"] == says


class Clocked:
    """A loader whose batches take a second each, on a clock of its own."""

    def __init__(self, log: list[str], name: str, fails: bool = False) -> None:
        self.log, self.name, self.fails = log, name, fails

    def __iter__(self) -> Iterator[int]:
        for number in range(100):
            if self.fails and number == 2:
                raise ValueError("sample 2 is torn")
            self.log.append(self.name)
            yield number


def test_turns_go_to_and_fro_and_broken_samples_are_left_out_from_where_they_end_one() -> None:
    log = list[str]()
    both = [
        Contender(TORCH, lambda skip: Clocked(log, TORCH, fails=not skip)),
        Contender("ours", lambda _: Clocked(log, "ours")),
    ]
    order = list[str]()
    take_turns(both, 8, 1, 36.0, order.append, lambda: float(len(log)))
    assert order[:4] == [TORCH, "ours", "ours", TORCH]
    assert both[0].stops == "sample 2 is torn"
    assert not both[0].failed
    assert both[0].skips
    for one in both:
        # 8 samples a batch, a batch a second
        assert {turn.rate for turn in one.turns} == {8.0}


def test_work_that_was_not_recognised_foretells_nothing() -> None:
    costs = {"vary": True, "work": "pixels not recognised, planned as adding up"}
    costs |= {"recognised": False, "only_loading_shows": False}
    said, last, _ = advised(report(0.5, costs=costs))
    assert said.startswith("A step cannot be foretold: pixels not recognised")
    assert "balance" not in last


def test_free_counts_are_recommended_where_they_gain_more_than_equal_ones() -> None:
    said, line, _ = advised(report(0.9, free=0.5))
    assert said.startswith("With 8 samples in every microbatch balance gains 10 %. With counts")
    assert line == f"loader, balance={FREE}"


@pytest.mark.parametrize(("labels", "by"), [("samples", ""), ("", ', per="sample"')])
def test_samples_without_labels_are_weighed_by_their_number(labels: str, by: str) -> None:
    given = report(0.9, free=0.5)
    given["costs"]["labels"] = labels
    lines = advise(given, (), lambda *_, **__: "loader")["paste"]
    assert f"cp.scale_loss(loss_sum, info{by}).backward()" in lines[-2]


def test_a_slower_loader_is_not_said_to_be_as_fast() -> None:
    alike = report(1.0, ours="slower", costs={"vary": False, "found": "all", "recognised": True})
    alike["costs"]["only_loading_shows"] = False
    assert advised(alike)[1] == "# nothing to paste: your DataLoader is faster"

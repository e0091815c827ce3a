"""A loop's report: waits by hand, random order a second way, and what each kind of loop knows."""

import json
import re
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise.balancer import PlanConfig
from counterpoise.loader.metrics.report import report_lines
from counterpoise.loader.metrics.stats import LoopStats
from counterpoise.loader.metrics.waits import step_times
from tests.loader.metrics.texts import Texts

COUNT, RANKS, STEP = 96, 4, 32
SIZES = np.minimum(200, np.random.default_rng(5).lognormal(3, 1, COUNT)).astype(int) + 1


def balanced(broken=(), balance=None, **changes):
    balance = balance or cp.Balance(budgets={"tokens": 2000}, samples_per_step=STEP)
    given: dict[str, Any] = {
        "cost": {"tokens": SIZES},
        "ranks": cp.Ranks(virtual=RANKS),
        "shuffle": True,
    }
    given |= {"collate_fn": list, "on_error": "skip", "keep_stats": True}
    return cp.DataLoader(Texts(SIZES, broken), balance=balance, **(given | changes))


class Cell:
    def __init__(self, *ordinals):
        self.ordinals = ordinals


class Plan:
    """Two ranks with two microbatches each, the ordinals from 10 on."""

    class batch:  # noqa: N801
        ranks = ((Cell(12), Cell(11, 14)), (Cell(10), Cell(13)))

    microbatches, start = 2, 10
    costs = np.array([[1, 5], [0, 6], [1, 7], [2, 8], [0, 4]])  # tiles of 307 tokens, tokens


def config(**changes):
    given: Any = {
        "ranks": 2,
        "samples_per_step": 5,
        "accumulate": 2,
        "resources": ("tiles", "tokens"),
    }
    return PlanConfig(**(given | {"budgets": (None, None)} | changes))


@pytest.mark.parametrize("waits", ["microbatch", "step"])
def test_ranks_wait_for_the_slowest_where_they_meet(waits):
    found = step_times(Plan, {14}, config(waits=waits))
    times = {
        # encoders of both microbatches, then both LLMs; random: (10) (11), then (12) (13)
        "microbatch": {
            "forecast": 307 + 2 * 307 + 7 + 10,
            "delivered": 307 + 2 * 307 + 7 + 8,
            "random": 307 + 2 * 307 + 6 + 8,
        },
        "step": {
            "forecast": max(307 + 7 + 10, 3 * 307 + 5 + 8),
            "delivered": max(307 + 7 + 6, 3 * 307 + 5 + 8),
            "random": max(2 * 307 + 5 + 7, 2 * 307 + 6 + 8),
        },
    }
    assert {kind: each.time for kind, each in found.items()} == times[waits]
    assert found["delivered"].by_rank.tolist() == [307 + 7 + 6, 3 * 307 + 5 + 8]
    assert found["delivered"].work == found["random"].work == (4 * 307 + 26) / 2


def test_imbalance_is_of_the_costs_of_ranks_by_plan_and_without_holes():
    found = step_times(Plan, {14}, config())
    assert found["forecast"].imbalance == pytest.approx((3 / 2, 17 / 15))
    assert found["delivered"].imbalance == pytest.approx((3 / 2, 13 / 13))


def test_padded_work_is_count_times_largest():
    found = step_times(Plan, (), config(padded=("tokens",)))
    assert found["delivered"].time == 307 + 2 * 307 + 7 + 2 * 6
    # (10 11) (12) | (13) (14): what random order pads is its work
    assert found["random"].by_rank.tolist() == [307 + 2 * 6 + 2 * 307 + 8, 307 + 7 + 4]


def test_label_tokens_are_no_work():
    only = config(resources=("tokens", "label_tokens"))
    assert step_times(Plan, (), only)["delivered"].by_rank.tolist() == [1, 3]


def test_a_report_counts_what_the_delivered_batches_hold():
    loader = balanced(broken=(3, 50))
    work, time = 0.0, 0
    for step in loader.steps():
        ranks = [sum(map(len, chain(*each.microbatches))) for each in step.by_rank()]
        work, time = work + sum(ranks) / RANKS, time + max(ranks)
    found = loader.stats()
    assert found["waiting"]["delivered"] == pytest.approx(1 - work / time)
    assert found["waiting"]["delivered"] < found["waiting"]["random"] / 2
    lines = loader.report().splitlines()
    assert [line.split()[0] for line in lines] == ["data", "ranks", "samples"]
    assert f"{RANKS} ranks waited {1 - work / time:.1%} of the time" in lines[1]
    assert f"in random order {found['waiting']['random']:.1%}" in lines[1]
    assert (
        "94 in 3 steps of this process; left out: 2 KeyError; padding: 0.0% of tokens" in lines[2]
    )


def test_random_order_is_that_of_a_loop_that_deals_samples_out():
    """Grouping "fixed" with partition "given" hands samples out as they come."""
    dealt = cp.Balance("fixed", partition="given")
    loader = balanced(balance=dealt, batch_size=STEP // RANKS)
    list(loader)
    found = loader.stats()
    assert found["waiting"]["random"] == pytest.approx(found["waiting"]["delivered"])
    assert found["random_over_delivered"] == 1
    other = balanced()
    list(other)
    assert other.stats()["waiting"]["random"] == pytest.approx(found["waiting"]["delivered"])


def plain_loop():
    return cp.DataLoader(Texts(SIZES), 8, collate_fn=list, keep_stats=True)


def packed_stream(keep_stats=True, **changes):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([{"input_ids": np.arange(n), "labels": np.arange(n)} for n in SIZES])

    balance = cp.Balance(budgets={"tokens": 400}, layout="packed")
    return cp.DataLoader(Stream(), balance=balance, keep_stats=keep_stats, **changes)


def test_what_a_loop_cannot_know_it_does_not_say():
    loader = plain_loop()
    assert "nothing was handed out yet" in loader.report()
    list(loader)
    said = loader.report()
    assert "not known: only a balanced loop without a balancer" in said
    assert "padding: not known" in said
    assert loader.stats()["random_over_delivered"] is None
    stream = packed_stream()
    infos = [info for _, info in stream.with_info()]
    assert "one, which waits for no other" in stream.report()
    assert re.search(r"padding: .*% of tokens", stream.report())
    # what a rank with a balancer, or of a stream, sees: its own microbatches
    stats = LoopStats()
    stats.take([(None, replace(info, ranks=2)) for info in infos])
    said = report_lines(stats.summary())
    assert "not known: only a balanced loop without a balancer" in said[1]
    assert re.search(r"padding: .*% of tokens", said[2])
    alone = balanced(ranks=cp.Ranks(virtual=1))
    list(alone)
    assert "one, which waits for no other" in alone.report()


def test_a_report_is_written_after_each_epoch_by_the_first_rank(capfd):
    balance = cp.Balance(budgets={"tokens": 2000}, samples_per_step=STEP)
    loader = balanced(balance=balance, keep_stats="report")
    for _ in range(2):
        list(loader)
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 6
    assert said[3:] == loader.report().splitlines()
    loader._stats.rank = 1
    list(loader)
    assert not capfd.readouterr().err


def test_a_report_is_written_after_each_epoch_of_a_stream(capfd):
    loader = packed_stream("report")
    list(loader)
    assert capfd.readouterr().err.splitlines()[-3:] == loader.report().splitlines()


def test_a_report_decides_no_plan():
    with_report, without = (
        [info.keys for _, info in balanced(keep_stats=keep_stats).with_info()]
        for keep_stats in ("report", False)
    )
    assert with_report == without


def test_a_forecast_stands_beside(tmp_path):
    loader = balanced()
    list(loader)
    saved = tmp_path / "forecast.json"
    forecast = {"settings": {"ranks": RANKS}, "forecast": {"waiting": 0.03, "waited": 0.4}}
    saved.write_text(json.dumps(forecast))
    said = loader.report(forecast=saved)
    assert "; foretold 3.0%, in random order 40.0%\n" in said
    saved.write_text(json.dumps(forecast | {"settings": {"ranks": 8}}))
    assert "in random order 40.0%, for 8 ranks\n" in loader.report(forecast=saved)
    for wrong in ("[]", "{}", "no"):
        saved.write_text(wrong)
        with pytest.raises(ValueError, match="is no forecast"):
            loader.report(forecast=saved)


def test_a_loop_that_counts_nothing_says_what_to_give():
    with pytest.raises(ValueError, match=r"report\(\) needs counts"):
        balanced(keep_stats=False).report()

"""Each sample of an epoch is delivered once, is a named hole, or counts as left out.

Random settings against a reference: in mode "exact" it says which samples each step delivers; in
the others, which moves samples between steps, what may be missing at most.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoise import Ranks
from counterpoise.loader import Balance, DataLoader
from tests.loader.delivered import TIMES, Data, faults, make


def check(seeds: Sequence[int], folder: Path) -> None:
    logging.disable(logging.WARNING)
    try:
        wrong = [
            f"{seed}: {fault}" for seed in seeds for fault in faults(make(seed), folder / str(seed))
        ]
    finally:
        logging.disable(logging.NOTSET)
    assert not wrong, "\n".join(wrong)


def test_samples_are_delivered_or_named(tmp_path: Path) -> None:
    check(range(120), tmp_path)


@pytest.mark.long
def test_samples_of_many_settings_are_delivered_or_named(tmp_path: Path) -> None:
    check(range(120, 5300), tmp_path)


def left_out(loader: DataLoader) -> tuple[list[int], int]:
    """Return the samples of each step of an epoch, and how many were left out."""
    steps = [sum(info.samples for info in step.infos) for step in loader.steps()]
    loader.close()
    return steps, loader.left_out


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 6, 7])
def test_a_raised_accumulate_delivers_what_does_not_divide_by_the_ranks(ranks: int) -> None:
    balance = Balance(budgets={"tokens": 15}, samples_per_step=16, accumulate="auto")
    made = DataLoader(
        Data((10,) * 160, frozenset(), False), shuffle=True, ranks=Ranks(virtual=ranks),
        cost={"tokens": [10] * 160}, balance=balance,
    )  # fmt: skip
    assert left_out(made) == ([16] * 10, 0)


@pytest.mark.parametrize(("layout", "collate"), [("padded", None), ("torch", list), ("torch", len)])
def test_a_broken_sample_does_not_cost_its_step_under_auto(layout: Any, collate: Any) -> None:
    data = Data((3, 5, 4, 9) * 64, frozenset(range(5, 256, 16)), True)
    made = DataLoader(
        data, shuffle=True, ranks=Ranks(virtual=8), batch_size=1, collate_fn=collate,
        on_error="skip",
        balance=Balance("auto", accumulate=2, layout=layout),
    )  # fmt: skip
    steps, lost = left_out(made)
    assert (sum(steps), lost) == (240, 16)


@pytest.mark.parametrize("seed", range(3))
def test_no_step_of_a_window_has_fewer_samples_than_microbatches(seed: int) -> None:
    budgets: Any = {"budgets": {"tokens": 50}, "oversize": "error"}
    made = DataLoader(
        Data((1,) * 400, frozenset(), False), shuffle=True,
        cost={"tokens": np.random.default_rng(1).choice([40, 45, 50], 400)},
        balance=Balance(samples_per_step=11, accumulate=2, mode="window", seed=seed, **budgets),
    )  # fmt: skip
    assert left_out(made) == ([2] * 200, 0)


@pytest.mark.parametrize("mode", ["exact", "window", "epoch"])
@pytest.mark.parametrize("collate", [None, list])
@pytest.mark.parametrize("more", [{}, {"drop_last": True}, {"waits": "step", "work": TIMES}])
def test_samples_that_are_all_refused_are_counted(mode: Any, collate: Any, more: Any) -> None:
    if mode == "epoch" and "work" in more:
        pytest.skip("times are for the other modes")
    given = dict(more)
    drop_last = given.pop("drop_last", False)
    balance = Balance(
        budgets={"tokens": 5}, samples_per_step=2, accumulate="auto", mode=mode, oversize="refuse",
        **given,
    )  # fmt: skip
    made = DataLoader(
        Data((9, 10, 11, 12, 13), frozenset(), False), shuffle=True, ranks=Ranks(virtual=2),
        collate_fn=collate, cost={"tokens": [9, 10, 11, 12, 13]}, balance=balance,
        drop_last=drop_last,
    )  # fmt: skip
    steps, lost = left_out(made)
    is_dropped = drop_last and mode == "exact"  # the last is no whole step
    assert (sum(steps), lost) == (0, 4 if is_dropped else 5)

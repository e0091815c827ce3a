"""`auto` never makes more work than random order, and a table of lengths never more than none.

Counted are the token ids that the batches have, those of the slowest rank and all together.
"""

import functools
from typing import Any

import pytest

from counterpoise import Ranks
from counterpoise.loader import Balance, DataLoader
from tests.loader.auto.batch_forms import FORMS, Drawn, draw


def work_of(data: Drawn, form: str, table: bool, **balance: Any) -> tuple[int, int]:
    """Return the token ids of the slowest rank of each step, added up, and those of all."""
    make, size_of = FORMS[form]
    loader = DataLoader(
        data, batch_size=data.size, shuffle=True, collate_fn=functools.partial(make, data),
        ranks=Ranks(virtual=data.ranks), cost=data.table() if table else None,
        balance=Balance(accumulate=data.accumulate, **balance),
    )  # fmt: skip
    steps: dict[int, dict[int, int]] = {}
    for batch, info in loader.with_info():
        ranks = steps.setdefault(info.step, {})
        ranks[info.rank] = ranks.get(info.rank, 0) + size_of(batch)
    loader.close()
    return sum(max(each.values()) for each in steps.values()), sum(
        sum(each.values()) for each in steps.values()
    )


def check(seed: int, form: str, has_text: bool, *counts: Any) -> None:
    if form == "a BatchEncoding":
        pytest.importorskip("transformers")
    data = draw(seed, has_text)
    random = work_of(data, form, False, grouping="fixed")
    for count in counts:
        found = work_of(data, form, False, grouping="auto", counts=count)
        said = work_of(data, form, True, grouping="auto", counts=count)
        shown = f"{data.size} x {data.accumulate} x {data.ranks}, {count}: random "
        shown += f"{random}, found {found}, with a table {said}"
        assert max(found[0], said[0]) <= random[0], shown
        assert max(found[1], said[1]) <= random[1], shown
        assert said[0] <= 1.02 * found[0], shown


@pytest.mark.parametrize("form", FORMS)
def test_auto_makes_no_more_work_than_random_order(form: str) -> None:
    number = list(FORMS).index(form)
    check(number, form, number % 4 < 2, ("equal", "free")[number % 2])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("form", FORMS)
def test_auto_makes_no_more_work_than_random_order_in_forty_data_sets(form: str, seed: int) -> None:
    check(seed, form, (seed + list(FORMS).index(form)) % 2 == 0, "equal", "free")

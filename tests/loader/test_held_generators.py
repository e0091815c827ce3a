"""A data set that draws from a generator of its own: the log says so, and what to draw from."""

import logging

import numpy as np
import pytest

from counterpoise.loader import DataLoader


class Own:
    """Draws from its own generator, or from numpy's."""

    def __init__(self, holds):
        self.held = {"rng": np.random.default_rng(0)} if holds else {}
        self.__dict__.update(self.held)

    def __len__(self):
        return 16

    def __getitem__(self, index):
        held = self.held.get("rng")
        draw = np.random.random if held is None else held.random
        return index, draw()


@pytest.mark.parametrize("balance", ["fixed", "auto"])
@pytest.mark.parametrize("holds", [True, False])
def test_the_attribute_is_named_once_at_the_start(holds, balance, caplog):
    loader = DataLoader(
        Own(holds), 4, shuffle=True, balance=balance, cost=lambda _: {"tokens": 3}
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "counterpoise"):
        list(loader), list(loader)
    told = [each.message for each in caplog.records if "random choices" in each.message]
    assert len(told) == holds
    assert all("from Own.rng depend on" in each for each in told)
    loader.close()


def test_numpys_own_functions_give_the_same_with_any_number_of_workers():
    def draws(workers):
        loader = DataLoader(
            Own(False), 4, shuffle=True, balance="fixed", num_workers=workers, collate_fn=list
        )
        found = [sample for batch in loader for sample in batch]
        loader.close()
        return found

    assert draws(0) == draws(2)

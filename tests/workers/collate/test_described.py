"""A layout's description makes the batches that the loader makes, and wrong ones are refused."""

import json
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from counterpoise import Layout
from counterpoise.balancer import Images, Shapes
from counterpoise.balancer.planning.problem.balance import Balance
from counterpoise.loader.collate.chosen import BatchMaker
from counterpoise.workers.collate.described import describe_layout, read_layout
from tests.workers.codec.values import same

SAMPLES = [
    {"input_ids": np.arange(5), "labels": np.arange(5), "mel": np.ones((3, 2)), "at": 1.5},
    {"input_ids": np.arange(3), "labels": np.arange(3), "mel": np.ones((4, 2)), "at": 2.5},
]
SPEECH = Layout("speech", {"mel": "pad 0.5"}, base="packed")
BARE = Layout("bare", {"input_ids": "pad 0", "labels": "pad 0", "mel": "list", "at": "stack"})
BALANCES = [
    Balance(layout=Layout("padded", pad_id=7), images=Images(dummy_tile=4)),
    Balance(layout=Layout("packed", shift_labels=False)),
    Balance(layout="padded", shapes=16),
    Balance(layout="packed", shapes=Shapes(cp=2, buckets={"tokens": [32, 64]}), oversize="refuse"),
    Balance(layout=SPEECH, budgets={"tokens": 64}, shapes="fixed", oversize="refuse"),
    Balance(layout=BARE),
]


def described(balance: Balance, collate_fn: Any = None) -> Any:
    """Return a description as it is after its way as JSON."""
    return json.loads(json.dumps(describe_layout(balance, collate_fn)))


@pytest.mark.parametrize("balance", BALANCES)
def test_a_description_makes_the_batches_that_the_loader_makes(balance):
    description = described(balance)
    collate: Any = read_layout(description)
    assert description["kind"] == "layout"
    same(BatchMaker(balance, None).in_worker(SAMPLES), collate(SAMPLES))
    assert description["takes_empty"] == (balance.layout != BARE)
    if description["takes_empty"]:
        same(BatchMaker(balance, None).in_worker([]), collate([]))


@pytest.mark.parametrize("collate_fn", [None, default_collate])
def test_torchs_own_batches_are_described_with_notes_to_their_errors(collate_fn):
    description = described(Balance(), collate_fn)
    assert description == {"kind": "stacked", "takes_empty": False}
    collate: Any = read_layout(description)
    same({"x": torch.tensor([1, 2])}, collate([{"x": 1}, {"x": 2}]))
    with pytest.raises(RuntimeError) as raised:
        collate([{"x": torch.ones(1)}, {"x": torch.ones(2)}])
    assert "collate_fn that pads" in " ".join(raised.value.__notes__)


class Coded(Layout):
    """A layout with code."""


@pytest.mark.parametrize(
    ("balance", "collate_fn"),
    [(Balance(), list), (Balance(layout=Coded("mine", base="padded")), None)],
)
def test_what_is_code_is_made_of_samples_by_the_trainer(balance, collate_fn):
    description = described(balance, collate_fn)
    assert description["kind"] == "samples"
    assert read_layout(description) is None


def test_a_changed_default_collate_is_code():
    default_collate_fn_map[OrderedDict] = lambda batch, **_: batch
    try:
        assert described(Balance())["kind"] == "samples"
    finally:
        del default_collate_fn_map[OrderedDict]
    assert described(Balance())["kind"] == "stacked"


PACKED = {"kind": "layout", "takes_empty": True, "layout": {"name": "packed", "base": "packed"}}


@pytest.mark.parametrize(
    ("description", "why"),
    [
        ([], "needed is a JSON object, got list"),
        ({}, "missing required field kind"),
        ({"kind": "pickle"}, "layout.kind: invalid enum value 'pickle'"),
        ({"kind": "stacked", "code": "x"}, "field 'code' that is unknown"),
        ({"kind": "stacked", "pad_id": 0}, "kind 'stacked' has no pad_id"),
        ({"kind": "samples", "takes_empty": 1}, "layout.takes_empty: expected bool"),
        ({"kind": "layout"}, "a layout's name is ''"),
        ({**PACKED, "layout": "packed"}, "layout.layout: expected object"),
        ({**PACKED, "layout": {"name": "x", "call": "os"}}, "no call"),
        ({**PACKED, "layout": {"name": "x", "fields": {"a": "eval"}}}, "'eval' is no rule"),
        ({**PACKED, "layout": {"name": "x", "fields": {"a": 3}}}, "3 is no rule"),
        ({**PACKED, "layout": {"name": "x", "base": ["packed"]}}, "base is"),
        ({**PACKED, "layout": {"name": 3}}, "name is 3"),
        ({**PACKED, "takes_empty": False}, "layout.takes_empty: it follows"),
        ({**PACKED, "pad_id": 1 << 64}, "layout.pad_id"),
        ({**PACKED, "pad_id": True}, "layout.pad_id: expected int"),
        ({**PACKED, "dummy_tile": -1}, "layout.dummy_tile"),
        ({**PACKED, "dummy_tile": 1 << 20}, "layout.dummy_tile"),
        ({**PACKED, "align": 0}, "layout.align"),
        ({**PACKED, "length": 64}, "layout.length: expected array"),
        ({**PACKED, "length": [1 << 40]}, r"layout.length\[0\]"),
        ({**PACKED, "shift_labels": None}, "layout.shift_labels"),
    ],
)
def test_wrong_descriptions_are_refused_by_their_field(description, why):
    with pytest.raises(ValueError, match=why):
        read_layout(description)

"""Layout: rules in one notation, saved with a Balance, noticed where ranks and ledgers agree."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from counterpoise.balancer import Balance, Layout, PlanConfig
from counterpoise.balancer.planning.problem.layout import BUILT_IN, as_layout, find_base, read_rule

FILLS = st.sampled_from(["", " 0", " -1", " 0.5", " pad_id"])
RULES = st.one_of(
    FILLS.map("tokens{}".format),
    FILLS.map("pad{}, optional".format),
    FILLS.map("concatenate, pad{}, axes 3, optional".format),
    st.sampled_from(["tokens next", "concatenate", "concatenate, optional", "stack", "list"]),
)
SPEECH = Layout("speech", {"mel": "pad 0", "ends": "cumulative lengths of mel"}, base="packed")


@given(
    fields=st.dictionaries(st.text(min_size=1, max_size=3), RULES),
    base=st.sampled_from(["padded", "packed"]),
)
def test_a_balance_is_saved_and_printed_with_its_layout(fields: Any, base: Any) -> None:
    balance = Balance(layout=Layout("mine", fields, base))
    for same in (Balance.from_json(balance.to_json()), eval(repr(balance))):
        assert (same, hash(same)) == (balance, hash(balance))


@pytest.mark.parametrize(
    "rule",
    ["tokens, pad 0", "stack 3", "mask of", "pad next", "concatenate, pad next", 3, "pad 1e5",
     "list, optional 3", "stack, optional", "pad 0, axes 3", "sum of x", "", "positions"],
)  # fmt: skip
def test_what_is_no_rule_is_refused_with_those_that_are(rule: Any) -> None:
    with pytest.raises(ValueError, match=r"is no rule of a layout: give 'tokens FILL', .*'pad FIL"):
        read_rule(rule)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (("packed", {"x": "stack"}, "packed"), "'torch', 'padded', 'packed', which have a meaning"),
        (("", {}, "packed"), "a layout's name is ''"),
        (("m", {}, "rows"), "base is 'rows', allowed are 'padded', 'packed' or None"),
        (("m", ["x"], None), "give a rule for each field's name"),
        (("m", {"ends": "lengths of x"}, "packed"), "made of 'x', which has no rule of its own"),
        (("m", {"x": "list", "y": "mask of x"}), "'y' is a mask of 'x', which is not filled up"),
        (
            ("m", {"x": "tokens 0"}),
            "a layout without base has none: give base='padded' or 'packed'",
        ),
        (("m", {"labels": "pad 0"}, "padded"), "'labels' of a layout with base 'padded' follows"),
    ],
)
def test_rules_that_do_not_go_together_are_refused(layout: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout(*layout)


def test_another_layout_is_another_plan_to_ranks_and_ledgers_but_built_in_ones_are_not() -> None:
    def plan(layout: Any) -> PlanConfig:
        balance = Balance(layout=layout, work="packed")
        return PlanConfig.from_balance(balance, ranks=1, resources=("n",), samples_per_step=1)

    other = Layout("speech", {**SPEECH.fields, "mel": "pad 1"}, base="packed")
    digests = [plan(each).digest() for each in ("torch", SPEECH, other, Layout("s", {}, "packed"))]
    assert len({*digests}) == 4
    for built_in in ("padded", "packed", BUILT_IN["packed"]):
        assert plan(built_in) == plan("torch")
    assert plan(Layout(*(SPEECH.name, dict(SPEECH.fields), "packed"))) == plan(SPEECH)


@pytest.mark.parametrize(
    ("layout", "work", "base"),
    [
        ("padded", "padded", "padded"), ("packed", "packed", "packed"), ("torch", "packed", None),
        (Layout("m", {"x": "stack"}, "padded"), "padded", "padded"), (SPEECH, "packed", "packed"),
        (Layout("m", {"x": "pad 0"}), "padded", None),
        (Layout("m", {"x": "stack"}), "packed", None),
    ],
)  # fmt: skip
def test_a_layout_that_pads_is_planned_so(layout: Any, work: str, base: str | None) -> None:
    assert Balance(layout=layout).resolved_work == work
    assert find_base(layout) == base
    assert (as_layout(layout) is None) == (layout == "torch")


def test_json_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="a layout has name, fields and base, no padding"):
        Layout.from_dict({**SPEECH.to_dict(), "padding": 3})
    with pytest.raises(
        ValueError, match=r"layout is 'rows', allowed are .*'packed', or a cp.Layout"
    ):
        Balance(layout="rows")  # type: ignore[arg-type]

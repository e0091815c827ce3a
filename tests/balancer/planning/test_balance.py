"""Balance: each option is checked, printed and saved in one place."""

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from counterpoise.balancer import Balance, Images, Layout, PipelineOrder, PlanConfig, Shapes, Work
from counterpoise.balancer.planning.problem.balance import DEFAULTS, VALUES, as_balance
from counterpoise.balancer.planning.problem.options import NAMES

BUDGETS, TIMES = {"tiles": 9, "tokens": 4096}, {"tokens": 3}


AUTO: Any = st.just("auto")


@st.composite
def balances(draw: st.DrawFn) -> Balance:
    grouping = draw(st.sampled_from(NAMES["grouping"]))
    names = st.dictionaries(st.text(max_size=3), st.integers(1, 2**70), max_size=3)
    budgets = {} if grouping == "fixed" else draw(names)
    ordering = draw(st.sampled_from(NAMES["ordering"]))
    bounded = bool(budgets) or grouping == "fixed"
    if grouping == "auto":  # it decides about most of the others
        return Balance("auto", budgets, None, draw(st.integers(1)), seed=draw(st.integers()))
    return Balance(
        grouping=grouping, budgets=budgets, samples_per_step=draw(st.none() | st.integers(1)),
        accumulate=draw(AUTO | st.integers(1)),
        mode=draw(st.sampled_from(NAMES["mode"])) if bounded else "exact",
        partition=draw(st.sampled_from(NAMES["partition"])),
        pipeline=None if ordering == "given" else PipelineOrder(draw(st.text()), ordering),
        oversize=draw(st.sampled_from(NAMES["oversize"])), seed=draw(st.integers()),
        layout=draw(st.sampled_from(NAMES["layout"]) | st.builds(Layout, st.just("packed"))),
        images=Images(dummy_tile=draw(st.integers(0))), shapes=Shapes(draw(st.integers(1))),
        label_tokens=draw(st.none() | st.text(min_size=1, max_size=3)),
    )  # fmt: skip


@given(balances())
def test_json_and_repr_give_the_same_balance_back(balance: Balance) -> None:
    for same in (Balance.from_json(balance.to_json()), eval(repr(balance))):
        assert same == balance
        assert hash(same) == hash(balance)
        assert list(same.budgets) == list(balance.budgets)


def test_repr_says_only_what_differs_from_the_defaults() -> None:
    assert repr(Balance()) == "Balance()"
    balance = Balance("isf", {"tokens": 9}, mode="window")
    assert repr(balance) == "Balance(grouping='isf', budgets={'tokens': 9}, mode='window')"


def test_a_file_holds_a_balance(tmp_path: Path) -> None:
    balance = Balance(budgets=BUDGETS, samples_per_step=64, accumulate="auto")
    balance.save(tmp_path / "balance.json")
    assert Balance.load(tmp_path / "balance.json") == balance
    written = json.loads((tmp_path / "balance.json").read_text())
    assert [*written] == ["version", *(field.name for field in fields(Balance))]


def test_options_that_json_does_not_name_have_their_default() -> None:
    assert Balance.from_json('{"version": 2, "grouping": "isf"}') == Balance(grouping="isf")


def test_balances_of_equal_values_are_equal_and_do_not_change() -> None:
    limits = dict(BUDGETS)
    one = Balance(budgets=limits)
    limits["tiles"] = 0
    assert one.budgets == BUDGETS
    assert one == Balance(budgets=dict(reversed(BUDGETS.items())))
    assert len({one, Balance(budgets=BUDGETS)}) == 1
    assert replace(one, seed=1).budgets == BUDGETS
    with pytest.raises(TypeError):
        one.budgets["tiles"] = 1  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        one.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ({"work": "padded"}, {"work": Work("padded")}),
        ({"work": TIMES}, {"work": Work(time_ns=TIMES)}),
        ({"shapes": 8}, {"shapes": Shapes({"tokens": 8})}),
        ({"shapes": {"tiles": 2}}, {"shapes": Shapes(align={"tiles": 2})}),
        ({"shapes": "fixed"}, {"shapes": Shapes(buckets=1)}),
        ({"pipeline": "costs.json"}, {"pipeline": PipelineOrder("costs.json", "two_opt")}),
        ({"pipeline": Path("costs.json")}, {"pipeline": PipelineOrder("costs.json")}),
    ],
)
def test_a_short_form_is_the_value_that_it_stands_for(
    short: dict[str, Any], whole: dict[str, Any]
) -> None:
    limits: dict[str, Any] = {"budgets": {"tokens": 64}, "oversize": "refuse"}
    assert Balance(**limits, **short) == Balance(**limits, **whole)


def test_a_value_in_json_may_be_short_too() -> None:
    assert Balance.from_json('{"version": 2, "work": "padded", "shapes": 8}') == Balance(
        work="padded", shapes=8
    )


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"grouping": "magic"}, "grouping is 'magic', allowed are 'balanced', 'isf', 'fixed', 'auto'$"),
    ({"grouping": ["isf"]}, r"grouping is \['isf'\], allowed are"),
    ({"mode": "strict"}, "mode is 'strict', allowed are 'exact', 'window', 'epoch'"),
    ({"partition": "kk"}, "partition is 'kk', allowed are 'multi_resource', 'greedy', 'given'"),
    ({"pipeline": {"profile": "p", "ordering": "best"}}, "ordering is 'best', allowed are 'given'"),
    ({"oversize": "drop"}, "oversize is 'drop', allowed are 'alone', 'refuse'"),
    ({"layout": "round"}, "layout is 'round', allowed are 'torch', 'padded', 'packed'"),
    ({"budgets": {"tokens": 0}}, r"budgets is {'tokens': 0}, allowed is a positive integer for"),
    ({"budgets": {"tokens": 1.5}}, "budgets is {'tokens': 1.5}"),
    ({"budgets": {"tokens": True}}, "budgets is {'tokens': True}"),
    ({"budgets": {"tokens": None}}, "leave out a resource without limit"),
    ({"budgets": None}, "budgets is None"),
    ({"budgets": [9]}, r"budgets is \[9\]"),
    ({"samples_per_step": 0}, "samples_per_step is 0, allowed is a positive integer or None"),
    ({"samples_per_step": 8.0}, "samples_per_step is 8.0"),
    ({"accumulate": "more"}, "accumulate is 'more', allowed is a positive integer or 'auto'"),
    ({"accumulate": True}, "accumulate is True"),
    ({"seed": "0"}, "seed is '0', allowed is an integer"),
    ({"layout": {"name": "packed", "pad_id": 0.0}}, "pad_id is 0.0"),
    ({"images": {"dummy_tile": -1}}, "dummy_tile is -1, allowed is 0 or a positive integer"),
    ({"images": {"dummy_tile": False}}, "dummy_tile is False"),
    ({"grouping": "fixed", "budgets": {"tokens": 9}}, "cannot hold budgets: give none"),
    ({"mode": "window"}, "mode 'window' needs a budget"),
    ({"waits": "step", "partition": "greedy"}, "partition 'greedy' does not look"),
    ({"waits": "often"}, "waits is 'often', allowed are 'microbatch', 'step'"),
    ({"work": "padded", "grouping": "isf"}, "grouping 'isf' fills microbatches by sums"),
    ({"work": "padded", "mode": "epoch"}, "mode 'epoch' groups by sums"),
    ({"work": "paded"}, "work is 'paded', .* 'packed', 'padded' or None; did you mean 'padded'"),
    ({"work": {"kind": "padded", "time_ns": {}}}, "time_ns is {}"),
    ({"work": {"time_ns": TIMES}, "grouping": "fixed"}, "time_ns weighs what grouping"),
    ({"work": {"time_ns": TIMES}, "grouping": "isf"}, "time_ns weighs what grouping"),
    ({"work": {"time_ns": TIMES}, "mode": "epoch", "budgets": TIMES}, "time_ns weighs what"),
    ({"counts": "free", "grouping": "fixed"}, "puts batch_size samples"),
    ({"counts": "equal", "grouping": "isf"}, "is planned by grouping 'balanced'"),
    ({"counts": "equal", "budgets": {"tokens": 9}}, "use oversize 'refuse' or 'error'"),
    ({"images": {"dispatch": "tiles"}}, "allowed are 'samples', 'images'"),
    ({"images": {"dispatch": "images"}, "budgets": {"patches": 9}}, "leave patches out of budgets"),
    (
        {"images": {"dispatch": "images"}, "grouping": "auto"},
        "'images', and grouping 'auto' chooses",
    ),
    ({"pipeline": "p", "grouping": "auto"}, "is 'two_opt', and grouping 'auto' chooses it"),
    ({"pipeline": {"profile": "p", "ordering": "given"}}, "'given' looks at none"),
    ({"pipeline": {"profile": 3}}, "profile is 3, allowed is the path of a cost profile"),
    ({"pipeline": 3}, "pipeline is 3, allowed are the path of a cost profile"),
    ({"grouping": "auto", "samples_per_step": 8}, "leave samples_per_step"),
    ({"grouping": "auto", "accumulate": "auto"}, "give accumulate as a number"),
    ({"grouping": "auto", "mode": "epoch"}, "in mode 'exact' or 'window'"),
    ({"grouping": "auto", "partition": "greedy"}, "is 'greedy', and grouping 'auto' chooses it"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_a_wrong_option_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Balance(
            **{
                name: VALUES[name](**value) if name in VALUES and isinstance(value, dict) else value
                for name, value in options.items()
            }
        )
    with pytest.raises(ValueError, match=message):
        Balance.from_json(json.dumps({"version": 2, **options}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"), ("[" * 100_000, "not JSON"),
        ("[1]", "needed is a JSON object, got list"), ("{}", "version is None, allowed is 2"),
        ('{"version": 1}', "version is 1, allowed is 2"), ('{"version": true}', "version is True"),
        ('{"version": 2, "shapes": {"aling": 8}}', "aling is 8, but Shapes has no .*'align'"),
        ('{"version": 2, "layout": {"base": "packed"}}', "layout: .* missing .* 'name'"),
        ('{"version": 2, "bugdets": {"a": 1}}', "bugdets is {'a': 1}, but Balance has no bugdets"),
    ],
)  # fmt: skip
def test_other_text_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Balance.from_json(text)
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(ValueError, match=f"settings.json: {message}"):
        Balance.load(tmp_path / "settings.json")


def test_a_string_is_shorthand_for_a_grouping() -> None:
    assert as_balance("isf") == Balance(grouping="isf")
    assert as_balance(DEFAULTS) is DEFAULTS
    with pytest.raises(TypeError, match=r"budgets go into Balance\(budgets={'tokens': 9}\)"):
        as_balance({"tokens": 9})  # type: ignore[arg-type]


def test_a_plan_configuration_has_the_same_defaults_and_checks() -> None:
    config = PlanConfig(2, 8, 1, ("tokens",), (9,))
    assert config == PlanConfig.from_balance(
        Balance(budgets={"tokens": 9}), ranks=2, resources=("tokens",), samples_per_step=8
    )
    for name in ("accumulate", "grouping", "partition", "ordering", "mode", "seed", "oversize"):
        assert getattr(config, name) == getattr(DEFAULTS, name)
        wrong: Any = {name: 0.5}
        with pytest.raises(ValueError, match=f"{name} is 0.5, allowed"):
            replace(config, **wrong)


def test_importing_it_imports_neither_torch_nor_zmq(tmp_path: Path) -> None:
    code = (
        "import sys; from counterpoise.balancer import Balance, PlanConfig; Balance();"
        "sys.exit(len({'torch', 'zmq'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0

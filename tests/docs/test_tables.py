"""Tables of docs/ are true: arguments and defaults, fields of batches, messages of the sources."""

import inspect
import re
from typing import Any

import numpy as np
import pytest

from counterpoise import (
    Balance,
    Balancer,
    Images,
    Layout,
    OnError,
    PipelineOrder,
    Ranks,
    Shapes,
    Work,
)
from counterpoise.balancer.planning.problem.layout import BUILT_IN, RULES, read_rules
from counterpoise.loader import DataLoader, StepInfo, collate_packed, collate_padded
from counterpoise.sched.runtime import families
from tests.docs.pages import all_pages, page_named
from tests.imports import FOLDERS, ROOT

ROW = re.compile(r"^\| (.*) \|$", re.M)
SAMPLES = [
    {
        "input_ids": np.arange(length),
        "labels": np.arange(length),
        "pixel_values": np.zeros((2, 3, 4, 4), np.uint8),
        "tiles_per_image": np.array([2], np.int32),
    }
    for length in (3, 5)
]


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table whose first head is `heading`, without its two head rows."""
    found, is_ours = [], False
    for line in page_named(page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        is_ours = bool(cells) and (is_ours or cells[0] == heading)
        if is_ours and cells[0] not in (heading, "--"):
            found.append(cells)
    return found


@pytest.mark.parametrize(
    ("page", "heading", "constructor"),
    [
        ("arguments", "argument", DataLoader), ("arguments", "`Ranks`", Ranks),
        ("arguments", "`Balancer`", Balancer), ("arguments", "`OnError`", OnError),
        ("balance", "argument", Balance), ("balance", "`Layout`", Layout),
        ("balance", "`PipelineOrder`", PipelineOrder), ("balance", "`Work`", Work),
        ("balance", "`Shapes`", Shapes), ("balance", "`Images`", Images),
    ],
)  # fmt: skip
def test_the_tables_of_arguments_are_the_constructors(
    page: str, heading: str, constructor: Any
) -> None:
    parameters = {
        name: "required" if each.default is each.empty else each.default
        for name, each in inspect.signature(constructor).parameters.items()
    }
    told = {cells[0].strip("`"): cells[1].strip("`") for cells in rows(page, heading)}
    assert [*told] == [*parameters]
    for name, text in told.items():
        # names and numbers as Python has them: None, "raise", 2**30
        value = "required" if text == "required" else eval(text)
        assert value == parameters[name], name


def test_what_only_balanced_loaders_take_is_marked() -> None:
    for name, _, where, *_ in rows("arguments", "argument")[17:]:
        if where == "balanced":
            with pytest.raises(ValueError, match="needs a balanced loader"):
                DataLoader([1], **dict[str, Any]({name.strip("`"): 2}))


@pytest.mark.parametrize(("column", "collate"), [(1, collate_padded), (2, collate_packed)])
def test_the_fields_of_a_batch_are_those_of_the_table(column: int, collate: object) -> None:
    batch = collate(SAMPLES)  # type: ignore[operator]
    fields = rows("batch-fields", "field")[len(SAMPLES[0]) :]  # after the table of a sample's
    told = {row[0].strip("`"): row for row in fields}
    assert {name for name, row in told.items() if row[column] != "-"} == set(batch)
    for name, row in told.items():
        text = row[column] if row[column] != "the same" else row[1]
        kind = text.split(" ")[0].rstrip(",")
        if kind == "int":
            assert type(batch[name]) is int
        elif text != "-":
            assert str(batch[name].dtype) == f"torch.{kind}", name
            dims = re.search(r"\(([^)]*)\)", text)
            assert dims is not None
            assert len([each for each in dims[1].split(",") if each.strip()]) == batch[name].ndim


def test_the_rules_of_both_layouts_are_told() -> None:
    told = {
        name: re.findall(r'"(.*)"', row[1])[0]
        for row in rows("batch-fields", "fields")
        for name in re.findall(r"`(\w+)`", row[0])
    }
    for base, rules in RULES.items():
        made = {name for name, rule in read_rules(BUILT_IN[base]).items() if rule.of}
        assert told == {n: rules[n] for n in rules if n not in {"input_ids", "labels", *made}}


def test_the_fields_of_a_stepinfo_are_told() -> None:
    told = {
        name
        for row in rows("batch-fields", "`StepInfo`")
        for name in re.findall(r"`(\w+)`", row[0])
    }
    properties = {name for name, each in vars(StepInfo).items() if isinstance(each, property)}
    assert told | {"last"} == {*StepInfo.__dataclass_fields__} | properties


@pytest.fixture(scope="module")
def sources() -> str:
    """Return the sources with their texts in one piece each; where a value stands, dots."""
    whole = "\n".join(path.read_text() for name in FOLDERS for path in (ROOT / name).rglob("*.py"))
    joined = re.sub(r"""["']\s*\n?\s*f?["']""", "", whole)
    return re.sub(r"\{[^{}\n]*\}|%[\d.]*[a-z]", "...", joined).replace("\\'", "'")


def test_each_message_is_in_the_sources(sources: str) -> None:
    messages = [row[0].strip("`") for row in rows("messages", "message")]
    assert len(messages) > 30
    for message in messages:
        parts = map(re.escape, message.split("..."))
        assert re.search(r"[^\n]*".join(parts), sources), message


@pytest.mark.parametrize("page", [str(path.relative_to(ROOT)) for path in all_pages()])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, target


def test_the_families_of_models_in_pipelines_are_those_that_are_known() -> None:
    told = [re.findall(r"`(\w+)`", cells[1]) for cells in rows("pipeline-families", "family")]
    assert sorted(kind for kinds in told for kind in kinds) == sorted(families())

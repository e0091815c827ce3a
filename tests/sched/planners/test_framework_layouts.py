"""Splits in other frameworks' forms: every layer once, in order, where the plan has it."""

import re

import pytest
from hypothesis import given, strategies as st

from counterpoise.sched.planners.framework_layouts import (
    AUTOMODEL,
    decoder_layers,
    megatron_layout,
    merge_encoder,
    module_names,
)
from counterpoise.sched.shapes import LayerCost

SPLITS = st.lists(st.integers(1, 12), min_size=1, max_size=24)


def stages_of(layout: str) -> list[str]:
    """Read a layout by Megatron's grammar: commas mean nothing, groups and letters repeat."""
    text = layout.replace(",", "")
    text = re.sub(r"\(([^)]+)\)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    text = re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    return text.split("|")


@given(SPLITS)
def test_megatron_reads_the_split_that_was_written(decoders: list[int]) -> None:
    stages = stages_of(megatron_layout(decoders))
    wanted = ["t" * count for count in decoders]
    wanted[0] = "E" + wanted[0]
    wanted[-1] += "L"
    assert stages == wanted


def test_the_ends_may_have_no_layers() -> None:
    assert stages_of(megatron_layout([0, 4, 4, 0])) == ["E", "tttt", "tttt", "L"]
    assert module_names([0, 1, 0])[0] == ["tok_embeddings"]


def test_a_layout_of_many_equal_stages_is_short() -> None:
    assert megatron_layout([3, *[2] * 29, 0]) == "Et*3|(tt|)*29L"


@given(SPLITS)
def test_every_module_is_on_one_stage_in_order(decoders: list[int]) -> None:
    parts = module_names(decoders)
    names = [name for part in parts for name in part]
    layers = [f"layers.{number}" for number in range(sum(decoders))]
    assert names == ["tok_embeddings", *layers, "norm", "lm_head"]
    assert [sum(n.startswith("layers.") for n in part) for part in parts] == decoders


def test_automodel_has_hugging_faces_names() -> None:
    assert module_names([1, 1], AUTOMODEL, encoder=True) == [
        ["model.visual", "model.embed_tokens", "model.layers.0", "model.rotary_emb"],
        ["model.layers.1", "model.norm", "lm_head", "model.rotary_emb"],
    ]


def model(encoder: int, language: int) -> list[LayerCost]:
    vision, text = LayerCost("encoder", 2, 4, 10, 8, 1), LayerCost("language", 3, 6, 20, 9, 1)
    return [vision] * encoder + [text] * language


def test_a_whole_encoder_costs_what_its_layers_cost() -> None:
    (whole, *rest) = merge_encoder(model(5, 3))
    assert whole == LayerCost("encoder", 10, 20, 50, 8, 5)
    assert rest == model(0, 3)
    assert merge_encoder(model(0, 3)) == tuple(model(0, 3))


def test_a_split_of_the_encoder_cannot_be_written() -> None:
    assert decoder_layers(model(2, 4), (3, 2, 1)) == (1, 2, 1)
    with pytest.raises(ValueError, match="stage 1 has encoder layers"):
        decoder_layers(model(4, 2), (3, 3))


@pytest.mark.parametrize(
    ("decoders", "message"),
    [([], "give 0 or more"), ([1, -1], "give 0 or more"), ([2, 0, 2], "stage 1 of .* no layers")],
)
def test_bad_splits_are_refused(decoders: list[int], message: str) -> None:
    for write in (megatron_layout, module_names):
        with pytest.raises(ValueError, match=message):
            write(decoders)

"""The table of families in docs/reference/packed-models.md is what the models compute."""

from importlib.metadata import version

import pytest

from .families import families
from .table import RESULTS, in_docs, results_of, table_version

# One of each result, with and without images; all of them take a minute.
SAMPLE = (
    "bamba", "blip", "gpt_oss", "llama", "llava", "paligemma", "qwen2_5_vl", "qwen3_vl", "udop",
)  # fmt: skip


made_of_this_version = pytest.mark.skipif(
    table_version() != version("transformers"), reason="the table is of another transformers"
)


@made_of_this_version
@pytest.mark.parametrize("kind", SAMPLE)
def test_a_family_does_what_the_table_says(kind: str) -> None:
    assert results_of(kind) == in_docs()[kind]


@made_of_this_version
def test_the_sample_has_every_result_and_the_table_every_family() -> None:
    said = in_docs()
    assert set(said) == set(families())
    seen = {result for kind in SAMPLE for result in said[kind]}
    there = {result for results in said.values() for result in results}
    assert seen >= there - {"image kernels", "not built"}
    assert there <= set(RESULTS)
    ran = [kind for kind, results in said.items() if results[0] not in ("not proved", "not built")]
    assert len(ran) >= 40


@made_of_this_version
@pytest.mark.long
def test_all_families_do_what_the_table_says() -> None:
    said = in_docs()
    assert {kind: results_of(kind) for kind in families()} == said

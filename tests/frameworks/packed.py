"""Packed batches under Trainer: each sample as if it were alone, or an error before training."""

from importlib.metadata import version
from pathlib import Path

import pytest

from counterpoise.loader.adapters.accelerate import NO_MODEL
from tests.frameworks.pool import Pool
from tests.frameworks.trainer import assert_close

CASES = "packed_cases"
ARGUMENTS = (
    "cu_seq_lens_k", "cu_seq_lens_q", "input_ids", "labels", "max_length_k", "max_length_q",
    "position_ids", "use_cache",
)  # fmt: skip
LEAKING = ["made to", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("bloom", "mamba"))]


def test_a_packed_batch_is_what_the_model_takes(one: Pool) -> None:
    assert one.run(f"{CASES}:arguments") == [list(ARGUMENTS)]


@pytest.mark.parametrize("kind", ["balanced", pytest.param("plain", marks=pytest.mark.long)])
def test_packed_samples_train_as_one_by_one(one: Pool, tmp_path: Path, kind: str) -> None:
    ((ours, alone, names),) = one.run(f"{CASES}:trained", folder=str(tmp_path), kind=kind)
    assert_close(ours, alone)
    # Trainer may turn the cache off itself, and position_ids are enough then: so by name
    assert names == {ARGUMENTS}


@pytest.mark.skipif(
    version("transformers").startswith("4."), reason="its tiny model is not so made"
)
def test_packed_samples_with_images_train_as_one_by_one(one: Pool, tmp_path: Path) -> None:
    ((ours, alone, names),) = one.run(f"{CASES}:trained_with_images", folder=str(tmp_path))
    assert_close(ours, alone)
    more = ("image_grid_thw", "mm_token_type_ids", "pixel_values")
    assert names == {tuple(sorted([*ARGUMENTS, *more]))}


@pytest.mark.parametrize("kind", LEAKING)
def test_a_model_that_mixes_packed_samples_is_not_trained_by_trainer(
    one: Pool, tmp_path: Path, kind: str
) -> None:
    (errors,) = one.run(f"{CASES}:under_trainer", folder=str(tmp_path), kind=kind)
    balanced, plain, late, evaluation, padded = errors
    for error in (balanced, plain, late):
        assert "does not keep packed samples apart" in error
        assert 'Balance(layout="padded")' in error
    assert "collate_fn=cp.loader.collate_padded" in evaluation
    assert padded == ""


@pytest.mark.parametrize("kind", LEAKING)
def test_a_model_that_mixes_packed_samples_is_not_trained_by_accelerate(
    one: Pool, kind: str
) -> None:
    ((*errors, right),) = one.run(f"{CASES}:under_accelerate", kind=kind)
    assert len(errors) == 4
    assert all("does not keep packed samples apart" in error for error in errors)
    assert right == ""


def test_accelerate_says_that_it_knows_no_model(one: Pool) -> None:
    (found,) = one.run(f"{CASES}:without_a_model")
    assert found == [[NO_MODEL], [NO_MODEL]]


@pytest.mark.parametrize("kind", LEAKING)
def test_check_equivalence_does_not_advise_what_leaks(one: Pool, kind: str) -> None:
    ((is_same, packing, causes),) = one.run(f"{CASES}:checked", kind=kind)
    assert not is_same
    assert packing == "refused"
    assert any("does not keep packed samples apart" in cause for cause in causes)
    assert not any("hf_kwargs" in cause for cause in causes)

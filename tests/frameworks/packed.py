"""Packed batches under Trainer: each sample as if it were alone, or an error before training."""

from pathlib import Path

import pytest

from tests.frameworks.pool import Pool
from tests.frameworks.trainer import assert_close

CASES = "packed_cases"
ARGUMENTS = (
    "cu_seq_lens_k", "cu_seq_lens_q", "input_ids", "labels", "max_length_k", "max_length_q",
    "position_ids", "use_cache",
)  # fmt: skip
MASKLESS = "attention 'mine' makes no mask of position_ids"


def test_a_packed_batch_is_what_the_model_takes(one: Pool) -> None:
    assert one.run(f"{CASES}:arguments") == [list(ARGUMENTS)]


@pytest.mark.parametrize("kind", ["balanced", pytest.param("plain", marks=pytest.mark.long)])
def test_packed_samples_train_as_one_by_one(one: Pool, tmp_path: Path, kind: str) -> None:
    ((ours, alone, names),) = one.run(f"{CASES}:trained", folder=str(tmp_path), kind=kind)
    assert_close(ours, alone)
    # Trainer may turn the cache off itself, and position_ids are enough then: so by name
    assert names == {ARGUMENTS}


def test_a_model_that_mixes_packed_samples_is_refused(one: Pool) -> None:
    (errors,) = one.run(f"{CASES}:refusals")
    assert "takes no position_ids, which keep" in errors.pop("no positions")
    assert "set model.config.use_cache = False" in errors.pop("no cache")
    assert "takes no cu_seq_lens_q" in errors.pop("no more")
    assert MASKLESS in errors.pop("unknown attention")
    assert 'attn_implementation="flash_attention_2"' in errors.pop("not causal")
    assert set(errors.values()) == {""}


def test_the_model_is_checked_when_a_packing_loader_is_attached(one: Pool, tmp_path: Path) -> None:
    ((balanced, plain, evaluation, late, padded),) = one.run(f"{CASES}:told", folder=str(tmp_path))
    assert all(MASKLESS in error for error in (balanced, plain, late))
    assert "collate_fn=cp.loader.collate_padded" in evaluation
    assert padded == ""

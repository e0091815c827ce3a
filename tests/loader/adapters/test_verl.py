"""`partition_verl_batch` on stand-ins of verl's; tests/programs/verl has verl itself."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import counterpoise as cp

LENGTHS = [900, 100, 500, 300, 400, 200, 50, 60]


class Batch:
    """What both batches of verl have in common."""

    def __init__(self, **fields: Any) -> None:
        self.rows = list(range(len(LENGTHS)))
        self.__dict__.update(fields)

    def reorder(self, order: Any) -> None:
        self.rows = [self.rows[row] for row in order]


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    balancing, padding = ModuleType("seqlen_balancing"), ModuleType("padding_utils")
    balancing.calculate_workload = lambda lengths: 24576 * lengths + lengths**2  # type: ignore[attr-defined]
    balancing.log_seqlen_unbalance = lambda lengths, parts, prefix: {  # type: ignore[attr-defined]
        prefix: [sum(lengths[row] for row in part) for part in parts]
    }
    padding.upsample_batch_to_divisible_size = lambda batch, _multiple, _eos: batch  # type: ignore[attr-defined]
    for name in ("verl", "verl.utils", "verl.trainer", "verl.trainer.ppo"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "verl.utils.seqlen_balancing", balancing)
    monkeypatch.setitem(sys.modules, "verl.trainer.ppo.padding_utils", padding)
    return SimpleNamespace(
        actor_rollout_wg=SimpleNamespace(_dispatch_info={"actor": [0, 0, 1, 1]}),
        tokenizer=SimpleNamespace(eos_token_id=0),
        _get_required_batch_multiple=lambda ranks: ranks,
        config=SimpleNamespace(
            actor_rollout_ref=SimpleNamespace(actor=SimpleNamespace(ppo_mini_batch_size=4))
        ),
    )


def test_rollouts_of_v1_are_in_order_within_a_rank(trainer: SimpleNamespace) -> None:
    batch, metrics = Batch(tags=[{"seq_len": length} for length in LENGTHS]), {}
    assert cp.adapters.partition_verl_batch(trainer, batch, metrics) is batch
    first, second = batch.rows[:4], batch.rows[4:]
    assert (first, second) == (sorted(first), sorted(second))
    assert sorted(batch.rows) == list(range(8))
    assert metrics == {"global_seqlen": [1250, 1260]}


@pytest.mark.parametrize("keep_minibatch", [False, True])
def test_rollouts_of_the_deprecated_trainer_have_little_work_at_both_ends(
    trainer: SimpleNamespace, keep_minibatch: bool
) -> None:
    mask = torch.arange(1000) < torch.tensor(LENGTHS)[:, None]
    batch, metrics = Batch(batch={"attention_mask": mask}, non_tensor_batch={}), {}
    cp.adapters.partition_verl_batch(trainer, batch, metrics, "tokens", keep_minibatch)
    for rank in (batch.rows[:4], batch.rows[4:]):
        ascending = sorted(rank, key=LENGTHS.__getitem__)
        assert rank == [ascending[0], ascending[2], ascending[3], ascending[1]]
        assert not keep_minibatch or sum(row < 4 for row in rank) == 2
    assert sum(metrics["tokens"]) == sum(LENGTHS)


def test_prompts_stay_together_for_the_prefix_grouper(trainer: SimpleNamespace) -> None:
    trainer.use_prefix_grouper = True
    mask = torch.arange(1000) < torch.tensor(LENGTHS)[:, None]
    batch = Batch(batch={"attention_mask": mask}, non_tensor_batch={"uid": list("abcdabcd")})
    cp.adapters.partition_verl_batch(trainer, batch, {})
    assert {row % 4 for row in batch.rows[:4]}.isdisjoint(row % 4 for row in batch.rows[4:])

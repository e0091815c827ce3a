"""verl's PPO trainers deal rollouts by `partition_verl_batch`, without Ray's workers."""

import os
import subprocess
import sys
import types
from itertools import chain

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl import DataProto
from verl.trainer.ppo import padding_utils
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

import counterpoise as cp
from tests.programs.verl.trainer import BalancedTrainer

RANKS, MINI_BATCH = 4, 16


class BalancedRayTrainer(RayPPOTrainer):
    """The deprecated trainer, its rollouts dealt by `cp.partition`."""

    _balance_batch = cp.adapters.partition_verl_batch


def make_lengths(rollouts):
    lengths = np.random.default_rng(0).lognormal(6.5, 0.8, rollouts)
    return np.clip(lengths, 16, 32768).astype(int).tolist()


def make_trainer(kind):
    """Return a trainer with no more than its balancing reads: ranks, mini-batch, a tokenizer."""
    trainer = kind.__new__(kind)
    # two processes a rank, as with tensor parallelism
    ranks = [rank for rank in range(RANKS) for _ in range(2)]
    trainer.actor_rollout_wg = types.SimpleNamespace(
        _dispatch_info={}, _query_dispatch_info={"actor": ranks}.get
    )
    trainer.tokenizer = types.SimpleNamespace(eos_token_id=0)
    trainer.use_critic, trainer.global_steps = False, 1
    model = {"actor": {"ppo_mini_batch_size": MINI_BATCH}, "rollout": {"n": 1}}
    trainer.config = OmegaConf.create({"actor_rollout_ref": model, "trainer": {"critic_warmup": 0}})
    return trainer


def balance_keys(kind, lengths, **options):
    """Return the numbers of rollouts of each rank, and metrics, after v1's balancing."""
    tags = [{"seq_len": length} for length in lengths]
    batch = KVBatchMeta([str(n) for n in range(len(lengths))], tags, "train")
    metrics = {}
    batch = make_trainer(kind)._balance_batch(batch, metrics, **options)
    return np.array_split(batch.keys, RANKS), np.array_split(batch.tags, RANKS), metrics


def work_of(tags):
    tokens = np.array([tag["seq_len"] for tag in tags], dtype=np.int64)
    return int((24576 * tokens + tokens**2).sum())


def test_rollouts_of_v1_are_evened_out():
    lengths, measured = make_lengths(512), {}
    for kind in (PPOTrainerSync, BalancedTrainer):
        keys, tags, metrics = balance_keys(kind, lengths)
        numbers = [[int(key) for key in part] for part in keys]
        assert sorted(chain.from_iterable(numbers)) == list(range(512))
        assert all(part == sorted(part) for part in numbers)  # verl's order within a rank
        assert [lengths[n] for part in numbers for n in part] == [
            tag["seq_len"] for part in tags for tag in part
        ]
        work = np.array([work_of(part) for part in tags])
        measured[kind] = work.max() / work.mean(), metrics
    theirs, ours = measured[PPOTrainerSync], measured[BalancedTrainer]
    assert ours[0] < theirs[0]
    assert ours[0] < 1.0001
    assert ours[1].keys() == theirs[1].keys()
    for name in ("min", "max", "minmax_diff", "mean"):  # before it was dealt
        assert ours[1][f"global_seqlen/{name}"] == theirs[1][f"global_seqlen/{name}"]
    spread = ours[1]["global_seqlen/balanced_max"] - ours[1]["global_seqlen/balanced_min"]
    assert 0 <= spread < ours[1]["global_seqlen/minmax_diff"]
    print(f"\n512 rollouts on 4 ranks, work max/mean: verl {theirs[0]:.6f}, ours {ours[0]:.6f}")


def test_metrics_have_the_name_that_is_asked_for():
    *_, metrics = balance_keys(BalancedTrainer, make_lengths(64), logging_prefix="critic")
    assert {name.split("/")[0] for name in metrics} == {"critic"}


def test_v1_pads_first(monkeypatch):
    stored = {}
    sample = {"uid": "0", "input_ids": torch.ones(16, dtype=torch.int64)}
    queue = types.SimpleNamespace(
        kv_batch_get=lambda **_: [sample],
        kv_batch_put=lambda keys, **rest: stored.update(dict.fromkeys(keys, rest["partition_id"])),
    )
    monkeypatch.setattr(padding_utils, "tq", queue)
    keys, tags, _ = balance_keys(BalancedTrainer, make_lengths(509))
    assert [len(part) for part in keys] == [128] * RANKS
    padding = [key for part in keys for key in part if key in stored]
    assert len(padding) == len(stored) == 3
    assert sum(tag.get("is_padding", False) for part in tags for tag in part) == 3


def test_it_is_chosen_by_name_and_stays_synchronous():
    """verl makes another replay buffer for any mode that is not named "sync"."""
    program = (
        "from verl.trainer.ppo.v1 import get_trainer_cls; "
        "print(get_trainer_cls('counterpoise')._balance_batch.__name__)"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program], check=True, capture_output=True, text=True,
        env=os.environ | {"VERL_USE_EXTERNAL_MODULES": "tests.programs.verl.trainer"},
    )  # fmt: skip
    assert ran.stdout.split()[-1] == "partition_verl_batch"
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", ["trainer.v1.trainer_mode=counterpoise"])
    assert type(BalancedTrainer(config).replay_buffer) is ReplayBuffer


def balance_rows(kind, lengths, *, prefix_groups=False, **options):
    """Return the numbers of rollouts of each rank, and metrics, after RayPPOTrainer's balancing."""
    tokens = torch.tensor(lengths)
    mask = (torch.arange(max(lengths)) < tokens[:, None]).long()
    rows = torch.arange(len(lengths))
    batch = DataProto.from_dict(
        {"attention_mask": mask, "row": rows}, {"uid": np.arange(len(lengths)) // 4}
    )
    trainer, metrics = make_trainer(kind), {}
    trainer.use_prefix_grouper = prefix_groups
    trainer._balance_batch(batch, metrics, **options)
    assert batch.batch["attention_mask"].sum(1).tolist() == tokens[batch.batch["row"]].tolist()
    return batch.batch["row"].view(RANKS, -1).tolist(), metrics


@pytest.mark.parametrize(
    "options", [{}, {"keep_minibatch": True}, {"prefix_groups": True}], ids=["", "mini", "groups"]
)
def test_rollouts_of_the_deprecated_trainer_are_evened_out(options):
    lengths, most = [min(n, 2048) for n in make_lengths(512)], {}
    work = 24576 * np.array(lengths) + np.array(lengths) ** 2
    for kind in (RayPPOTrainer, BalancedRayTrainer):
        parts, metrics = balance_rows(kind, lengths, **options)
        assert sorted(chain.from_iterable(parts)) == list(range(512))
        most[kind] = max(work[part].sum() for part in parts)
        tokens = [sum(lengths[n] for n in part) for part in parts]
        assert metrics["global_seqlen/balanced_max"] == max(tokens)
        assert metrics["global_seqlen/balanced_min"] == min(tokens)
        if "prefix_groups" in options:
            assert all(part == sorted(part) for part in parts)
            for part in parts:
                assert {4 * (n // 4) + k for n in part for k in range(4)} == set(part)
        else:  # from the least work up to the most, and down again
            for part in parts:
                order = sorted(part, key=lambda n: (work[n], n))
                assert part == order[::2] + order[1::2][::-1]
    assert most[BalancedRayTrainer] <= 1.001 * most[RayPPOTrainer]


def test_mini_batches_stay_what_they_were():
    """A short last one, too: verl leaves its rollouts out."""
    lengths = [min(n, 2048) for n in make_lengths(60)]
    parts, _ = balance_rows(BalancedRayTrainer, lengths, keep_minibatch=True)
    for part in parts:
        assert np.bincount(np.array(part) // MINI_BATCH).tolist() == [4, 4, 4, 3]
    metrics, rows = {}, torch.arange(60)
    batch = DataProto.from_dict({"attention_mask": torch.ones(60, 8), "row": rows})
    make_trainer(RayPPOTrainer)._balance_batch(batch, metrics, keep_minibatch=True)
    assert len(batch) == 48


@pytest.mark.parametrize(
    ("rollouts", "options"),
    [(63, {}), (62, {"keep_minibatch": True}), (52, {"prefix_groups": True})],
)
def test_what_ranks_cannot_get_alike_is_an_error(rollouts, options):
    """verl asserts, raises, and (in mini-batches) leaves the last rollouts out."""
    lengths = [min(n, 2048) for n in make_lengths(rollouts)]
    with pytest.raises(ValueError, match="4"):
        balance_rows(BalancedRayTrainer, lengths, **options)

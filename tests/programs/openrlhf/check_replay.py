"""OpenRLHF's replay buffer on 2 gloo ranks: no rollout is lost, and gradients are those of all."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from openrlhf.utils.loss_utils import get_loss_batch_info
from torch.multiprocessing.spawn import start_processes

from tests.programs.openrlhf.balanced_replay import BalancedReplayBuffer

RANKS, ROLLOUTS, TRAIN_BATCH, BUDGET = 2, 37, 32, 8192
VOCABULARY = 64


def draw_rollouts(rank):
    """Return a rank's rollouts as its generation gives them: a padded batch."""
    draw = np.random.default_rng(rank)
    lengths = torch.from_numpy(np.clip(draw.lognormal(6.5, 0.8, ROLLOUTS), 16, 4096).astype(int))
    random = torch.Generator().manual_seed(rank)
    shape = (ROLLOUTS, int(lengths.max()))
    mask = (torch.arange(shape[1]) < lengths[:, None]).long()
    return Experience(
        sequences=torch.randint(VOCABULARY, shape, generator=random), attention_mask=mask,
        action_mask=mask.bool() & (torch.arange(shape[1]) >= lengths[:, None] // 3),
        advantages=torch.randn(shape, generator=random), total_length=lengths,
    )  # fmt: skip


def fill_buffer(kind, rank):
    torch.cuda.current_device = lambda: 0  # OpenRLHF names the device that it would move to
    buffer = kind(1, dynamic_batch=True)
    buffer.append(draw_rollouts(rank))
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    return buffer


def make_strategy():
    def all_reduce(value, op):
        dist.all_reduce(value, {"max": dist.ReduceOp.MAX}[op])
        return value

    return SimpleNamespace(
        args=SimpleNamespace(
            train=SimpleNamespace(batch_size=TRAIN_BATCH, max_tokens_per_gpu=BUDGET),
            rollout=SimpleNamespace(batch_size=ROLLOUTS, n_samples_per_prompt=RANKS),
            ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
        ),
        ds_device_mesh={"dp": SimpleNamespace(get_group=lambda: dist.group.WORLD)},
        all_reduce=all_reduce,
    )


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY))


def compute_losses(model, batch, info):
    """Return the policy loss by tokens, by sequences, and a mean over the batch's rollouts.

    The first two as OpenRLHF's aggregate_loss, whose module imports deepspeed.
    """
    logits = model(batch.sequences).log_softmax(-1)
    loss = -batch.advantages * logits.gather(-1, batch.sequences[..., None])[..., 0]
    mask = batch.action_mask.float()
    means = (loss * mask).sum(1) / mask.sum(1)
    by_token = (loss * mask).sum() / info["batch_num_tokens"] * info["dp_size"]
    return by_token, means.sum() / info["global_batch_size"] * info["dp_size"], means.mean()


def train_buffers(rank, folder):
    """Set up buffers as OpenRLHF does, and save what a rank's steps are made of."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    strategy, saved = make_strategy(), {}
    for kind in (NaiveReplayBuffer, BalancedReplayBuffer):
        buffer = fill_buffer(kind, rank)
        buffer.setup_dynamic_batch(strategy)
        saved[kind.__name__] = {
            "indices": buffer.dynamic_indices, "scales": buffer.dynamic_sample_loss_scale,
            "ends": buffer.dynamic_optimizer_step, "gradients": train_buffer(buffer, strategy),
            "lengths": [int(item.total_length) for item in buffer.items],
        }  # fmt: skip
    torch.save(saved, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def train_buffer(buffer, strategy):
    """Return the gradient of each optimizer step, averaged over ranks."""
    model, gradients = make_model(), []
    for number in range(len(buffer)):
        batch = buffer.collate_fn([buffer[number]])
        info = get_loss_batch_info(
            strategy, batch.action_mask, replay_buffer=buffer, step=number, dynamic_batch=True
        )
        by_token, by_sequence, mean = compute_losses(model, batch, info)
        (by_token + by_sequence + mean * buffer.dynamic_sample_loss_scale[number]).backward()
        if buffer.dynamic_optimizer_step[number]:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            gradients.append([parameter.grad / RANKS for parameter in model.parameters()])
            model.zero_grad()
    return gradients


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    start_processes(train_buffers, (str(folder),), RANKS, start_method="fork")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def ours(ranks):
    return [rank["BalancedReplayBuffer"] for rank in ranks]


def compute_gradient(step, steps):
    """Return the gradient of a step as one batch of all rollouts, without microbatches."""
    model, batches = make_model(), []
    for rank in range(RANKS):
        items = fill_buffer(NaiveReplayBuffer, rank).items
        batches.append([items[n] for n in np.array_split(np.arange(ROLLOUTS), steps)[step]])
    whole = make_experience_batch([item for items in batches for item in items])
    info = {
        "dp_size": 1, "batch_num_tokens": float(whole.action_mask.sum()),
        "global_batch_size": float(len(whole.sequences)),
    }  # fmt: skip
    by_token, by_sequence, _ = compute_losses(model, whole, info)
    means = [compute_losses(model, make_experience_batch(items), info)[2] for items in batches]
    (by_token + by_sequence + sum(means) / RANKS).backward()
    return [parameter.grad for parameter in model.parameters()]


def test_theirs_loses_rollouts(ranks):
    for rank in ranks:
        used = set(chain.from_iterable(rank["NaiveReplayBuffer"]["indices"]))
        assert len(used) == ROLLOUTS - 5


def test_ours_trains_on_all(ours):
    for rank in ours:
        assert sorted(chain.from_iterable(rank["indices"])) == list(range(ROLLOUTS))
        tokens = [sum(rank["lengths"][n] for n in cell) for cell in rank["indices"]]
        assert max(tokens) <= BUDGET
        print(f"\n{ROLLOUTS} of {ROLLOUTS} rollouts in {len(tokens)} microbatches: {tokens} tokens")


def test_ranks_have_as_many_microbatches_in_each_step(ours):
    assert ours[0]["ends"] == ours[1]["ends"]
    assert sum(ours[0]["ends"]) == 2


def test_scales_of_a_step_sum_to_1(ours):
    for rank in ours:
        ends = np.flatnonzero(rank["ends"]) + 1
        for scales in np.split(np.array(rank["scales"]), ends)[:-1]:
            assert scales.sum() == pytest.approx(1, abs=1e-12)


def test_gradients_are_those_of_all_rollouts(ours):
    steps = len(ours[0]["gradients"])
    for step in range(steps):
        whole = compute_gradient(step, steps)
        largest = max(float(gradient.abs().max()) for gradient in whole)
        for rank in ours:
            for gradient, expected in zip(rank["gradients"][step], whole, strict=True):
                assert float((gradient - expected).abs().max()) < 1e-6 * largest

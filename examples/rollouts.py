"""One step of GRPO over rollouts of different lengths, dealt to ranks and microbatches.

Run: python examples/rollouts.py

One process plays all ranks, so that their gradient can be compared with that of the whole batch.
"""

import torch
from torch.nn.functional import cross_entropy

import counterpoise as cp

RANKS, PROMPTS, ANSWERS, WORDS = 4, 17, 6, 64

# What the generation has left in memory: 102 rollouts, a reward and an advantage of each
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)  # to compare sums made in different orders
lengths = torch.empty(PROMPTS * ANSWERS).log_normal_(5, 0.8).clamp(8, 1024).long().tolist()
rollouts = [torch.randint(WORDS, (length,)) for length in lengths]
rewards = torch.rand(PROMPTS, ANSWERS)
advantages = ((rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True)).flatten()

policy = torch.nn.Sequential(torch.nn.Embedding(WORDS, 32), torch.nn.Linear(32, WORDS))


def log_probs(items):
    """Return the log-probabilities (tokens,) of these rollouts, packed one after another."""
    inputs = torch.cat([rollouts[item][:-1] for item in items])
    targets = torch.cat([rollouts[item][1:] for item in items])
    return -cross_entropy(policy(inputs), targets, reduction="none")


def loss_sum(items):
    """Return GRPO's clipped loss, summed over the tokens of these rollouts."""
    sizes = torch.tensor([lengths[item] - 1 for item in items])
    gains = advantages[list(items)].repeat_interleave(sizes)
    ratio = (log_probs(items) - torch.cat([old[item] for item in items])).exp()
    return -torch.minimum(ratio * gains, ratio.clamp(0.8, 1.2) * gains).sum()


# Every process calls this with the same lengths, and takes the lists of its own rank
partition = cp.partition(lengths, RANKS, budgets=2048)
print(f"microbatches of each rank: {len(partition.microbatches[0])}")
print(f"work of the slowest rank: {partition.imbalance:.3f} of the mean")

# Each rank computes the old log-probabilities of its rollouts; `inverse` puts all in order again
with torch.no_grad():
    results = [log_probs([item]) for items in partition.ranks for item in items]
old = [results[place] for place in partition.inverse]

# The mean over the tokens of the step: each microbatch adds its sum over the tokens of all ranks
tokens = sum(length - 1 for length in lengths)
for rank in range(RANKS):
    for items in partition.microbatches[rank]:
        loss = loss_sum(items) / tokens * RANKS
        (loss / RANKS).backward()  # as DDP does, which averages over ranks
dealt = [parameter.grad.clone() for parameter in policy.parameters()]

policy.zero_grad()
(loss_sum(range(len(rollouts))) / tokens).backward()
for gradient, parameter in zip(dealt, policy.parameters(), strict=True):
    torch.testing.assert_close(gradient, parameter.grad)
print("the gradient is that of the whole batch")

"""`partition_verl_batch`: rollouts dealt by `partition` in verl's PPO trainers.

Both trainers call their `_balance_batch` once a step, and give each rank the next equal piece of
the batch: v1's is a KVBatchMeta, the deprecated RayPPOTrainer's a DataProto. Read in verl 0.9.1.
"""

from typing import Any

from ...balancer.in_memory.partition import partition


def partition_verl_batch(
    trainer: Any, batch: Any, metrics: dict[str, Any], logging_prefix: str = "global_seqlen",
    keep_minibatch: bool = False,
) -> Any:  # fmt: skip
    """Reorder a batch of rollouts such that ranks do equal work by verl's weights, and return it.

    A class attribute `_balance_batch = cp.adapters.partition_verl_batch` makes it a trainer's.
    Padding, metrics and the order within a rank are verl's. keep_minibatch, of RayPPOTrainer alone:
    deal each of its mini-batches. Raises ValueError where one does not divide by the ranks.
    """
    import torch
    from verl.utils.seqlen_balancing import calculate_workload, log_seqlen_unbalance

    workers, is_legacy = trainer.actor_rollout_wg, hasattr(batch, "non_tensor_batch")
    if "actor" not in workers._dispatch_info:
        workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
    ranks = max(workers._dispatch_info["actor"]) + 1
    if is_legacy:
        lengths = batch.batch["attention_mask"].flatten(1).sum(1)
    else:
        from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

        multiple = trainer._get_required_batch_multiple(ranks)
        batch = upsample_batch_to_divisible_size(batch, multiple, trainer.tokenizer.eos_token_id)
        lengths = torch.tensor([tag["seq_len"] for tag in batch.tags])
    loads = calculate_workload(lengths).numpy()
    groups = (
        batch.non_tensor_batch.get("uid") if getattr(trainer, "use_prefix_grouper", False) else None
    )
    size = len(loads)
    if is_legacy and keep_minibatch and groups is None:
        size = trainer.config.actor_rollout_ref.actor.ppo_mini_batch_size
    parts: list[list[int]] = [[] for _ in range(ranks)]
    for begin in range(0, len(loads), size):
        piece = loads[begin : begin + size]
        dealt = partition(piece, ranks, remainder="error", groups=groups)
        for part, items in zip(parts, dealt.ranks, strict=True):
            part += [begin + item for item in sorted(items)]
    if is_legacy and groups is None:
        # Little work at both ends of a rank's microbatches, where a pipeline fills and drains.
        for part in parts:
            part.sort(key=lambda item: (loads[item], item))
            part[:] = part[::2] + part[1::2][::-1]
    order = [item for part in parts for item in part]
    batch.reorder(torch.tensor(order) if is_legacy else order)
    metrics.update(log_seqlen_unbalance(lengths.tolist(), parts, logging_prefix))
    return batch

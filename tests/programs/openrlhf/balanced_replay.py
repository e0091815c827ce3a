"""What a user of OpenRLHF writes; ActorPPOTrainer.__init__ makes the buffer."""

import numpy as np
import torch.distributed as dist
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

import counterpoise as cp


class BalancedReplayBuffer(NaiveReplayBuffer):
    def setup_dynamic_batch(self, strategy):
        args, group = strategy.args, strategy.ds_device_mesh["dp"].get_group()
        mine = [(int(item.total_length), int(item.action_mask.sum())) for item in self.items]
        rank = dist.get_rank(group)
        of_ranks: list = [None] * dist.get_world_size(group)
        dist.all_gather_object(of_ranks, mine, group=group)  # lengths only
        steps = args.rollout.batch_size * args.rollout.n_samples_per_prompt // args.train.batch_size
        fewest = min(map(len, of_ranks)) * len(of_ranks) // args.train.batch_size
        steps = max(1, min(steps, fewest))
        budget = args.train.max_tokens_per_gpu
        budget *= args.ds.ring_attn_size * args.ds.tensor_parallel_size
        self.sample_batch_size, self.dynamic_indices = 1, []
        self.dynamic_sample_loss_scale, self.dynamic_batch_num_tokens = [], []
        self.dynamic_global_batch_size, self.dynamic_optimizer_step = [], []
        for step in range(steps):
            pieces = [np.array_split(np.reshape(sizes, (-1, 2)), steps)[step] for sizes in of_ranks]
            most = max(len(cut_piece(piece, budget)) for piece in pieces)
            if most > min(map(len, pieces)):
                raise ValueError(
                    f"a rank has {min(map(len, pieces))} rollouts in a step, another needs {most} "
                    f"microbatches of {budget} tokens: raise max_tokens_per_gpu"
                )
            items, piece = np.array_split(np.arange(len(mine)), steps)[step], pieces[rank]
            cells = cut_piece(piece, budget, most)
            actions = np.concatenate(pieces)[:, 1]
            self.dynamic_indices += [items[cell].tolist() for cell in cells]
            self.dynamic_sample_loss_scale += [len(cell) / len(piece) for cell in cells]
            self.dynamic_batch_num_tokens += [float(actions.sum())] * most
            self.dynamic_global_batch_size += [float((actions > 0).sum())] * most
            self.dynamic_optimizer_step += [0] * (most - 1) + [1]


def cut_piece(piece, budget, least=1):
    lengths = piece[:, 0]
    return cp.partition(lengths, 1, budgets=budget, min_microbatches=least).microbatches[0]

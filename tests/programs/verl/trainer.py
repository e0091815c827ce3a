"""What a user of verl's PPO writes: trainer.v1.trainer_mode=counterpoise chooses it."""

from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer

import counterpoise as cp


@register_trainer("counterpoise")
class BalancedTrainer(PPOTrainerSync):
    def __init__(self, config):
        config.trainer.v1.trainer_mode = "sync"  # verl chooses the replay buffer by this name
        super().__init__(config)

    _balance_batch = cp.adapters.partition_verl_batch

"""Plugins of tests: Axolotl on several CPU ranks, and its loss by tokens without our loader."""

from axolotl.integrations.base import BasePlugin


class OnCpu(BasePlugin):
    def load_datasets(self, cfg, *_):
        cfg.device_map = {"": "cpu"}  # Axolotl says {"": LOCAL_RANK}, the number of a GPU


class TokenLoss(BasePlugin):
    def post_trainer_create(self, _, trainer):
        trainer.model_accepts_loss_kwargs = trainer.args.average_tokens_across_devices = True

"""As balanced.py, with the loss divided by the tokens of the step: `balanced_tokens.Balanced`."""

from axolotl.integrations.base import BasePlugin

import counterpoise as cp


class Balanced(BasePlugin):
    def post_trainer_create(self, _, trainer):
        trainer.model_accepts_loss_kwargs = trainer.args.average_tokens_across_devices = True
        cp.adapters.attach_trainer(trainer)

"""Axolotl on balanced microbatches: `plugins: [balanced.Balanced]` in its yaml."""

from axolotl.integrations.base import BasePlugin

import counterpoise as cp


class Balanced(BasePlugin):
    def post_trainer_create(self, _, trainer):
        cp.adapters.attach_trainer(trainer)

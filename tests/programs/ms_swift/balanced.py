"""ms-swift on balanced microbatches: --external_plugins balanced.py --callbacks balanced."""

from swift.callbacks import TrainerCallback, callbacks_map

import counterpoise as cp


class Balanced(TrainerCallback):
    def on_init_end(self, *_, **__):
        cp.adapters.attach_trainer(self.trainer)


callbacks_map["balanced"] = Balanced

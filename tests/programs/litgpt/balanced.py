"""litgpt's JSON data with balanced ranks: --data balanced.BalancedJSON --data.accumulate 2."""

from dataclasses import dataclass

from litgpt.data import JSON

import counterpoise as cp


@dataclass
class BalancedJSON(JSON):
    accumulate: int = 1

    def train_dataloader(self):
        return cp.DataLoader(
            self.train_dataset,
            batch_size=self.batch_size,
            shuffle=True,
            collate_fn=super().train_dataloader().collate_fn,
            num_workers=self.num_workers,
            balance=cp.Balance("auto", accumulate=self.accumulate),
        )

"""train.py with balanced ranks: torchrun balanced.py, with its arguments."""

import train
from lhotse import CutSet

import counterpoise as cp


class BalancedModel(train.SpeechModel):
    def train_dataloader(self):
        cuts, budgets = CutSet.from_jsonl("cuts.jsonl"), {"frames": 100 * train.SECONDS}
        return cp.DataLoader(
            cuts,
            shuffle=True,
            drop_last=True,
            num_workers=1,
            collate_fn=lambda cuts: train.speech[CutSet.from_cuts(cuts)],
            cost={"frames": [round(100 * cut.duration) for cut in cuts]},
            balance=cp.Balance(budgets=budgets, samples_per_step=13, mode="window", work="padded"),
        ).with_info()

    def training_step(self, batch, number):
        batch, info = batch
        loss_sum = super().training_step(batch, number) * info.samples
        return cp.scale_loss(loss_sum, info, per="sample")


train.train(BalancedModel)

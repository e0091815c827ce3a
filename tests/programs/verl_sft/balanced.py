"""verl's SFT with balanced ranks: torchrun ... balanced.py, with the overrides of sft_trainer."""

from verl.trainer import sft_trainer

import counterpoise as cp


class BalancedSFTTrainer(sft_trainer.SFTTrainer):
    def _build_dataloader(self):
        super()._build_dataloader()
        self.train_dataloader = cp.DataLoader(
            self.train_dataset,
            batch_size=self.train_batch_size_per_dp,
            shuffle=True,
            drop_last=True,
            collate_fn=self.collate_fn,
            num_workers=self.config.data.num_workers,
            cost={"tokens": [len(sample["input_ids"]) for sample in self.train_dataset]},
            balance=cp.Balance("auto", work="packed"),
            ranks=(self.engine.get_data_parallel_rank(), self.engine.get_data_parallel_size()),
        )


sft_trainer.SFTTrainer = BalancedSFTTrainer
sft_trainer.main()

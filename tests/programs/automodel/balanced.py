"""Automodel's SFT recipe with balanced ranks: `recipe: balanced.BalancedRecipe` in the YAML."""

from dataclasses import replace
from types import SimpleNamespace

from nemo_automodel.recipes.llm import train_ft

import counterpoise as cp


class BalancedRecipe(train_ft.TrainFinetuneRecipeForNextTokenPrediction):
    def setup(self):
        loader, size = self.cfg.dataloader, self.cfg.get("step_scheduler.global_batch_size")
        _, tokenizer = train_ft._build_tokenizer(self.cfg.model, self.cfg.dataset)

        def build(*, dataset_len, rank, world_size):
            dataset = loader.dataset_config.build(tokenizer=tokenizer)
            if len(dataset) != dataset_len:
                raise ValueError("packed_sequence joins samples: leave it out, or this recipe")
            lengths = [len(dataset[index]["input_ids"]) for index in range(dataset_len)]
            microbatches = size // (loader.batch_size * world_size)
            balance = cp.Balance(
                work="padded", samples_per_step=size, accumulate=microbatches, seed=loader.seed
            )
            return cp.BalancedBatchSampler({"tokens": lengths}, balance, ranks=(rank, world_size))

        self.cfg.dataloader = replace(loader, batch_sampler_config=SimpleNamespace(build=build))
        super().setup()

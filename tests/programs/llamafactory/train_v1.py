"""LLaMA-Factory's v1 trainer, balanced: torchrun --nproc-per-node 2 train_v1.py v1.yaml."""

from llamafactory.v1.accelerator.interface import Dim, DistributedInterface
from llamafactory.v1.trainers import sft_trainer
from llamafactory.v1.utils.helper import pad_and_truncate
from torch.utils.data import default_collate

import counterpoise as cp


class Rendered:
    def __init__(self, data, renderer):
        self.data, self.renderer = data, renderer

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.renderer.process_samples([self.data[index]])[0]


class Steps(cp.loader.StepLoader):
    def __iter__(self):
        return (step.microbatches for step in super().__iter__())


class Balanced(sft_trainer.SFTTrainer):
    def _create_batch_generator(self):
        args, data = self.args, Rendered(self.train_dataset, self.renderer)
        accumulate = args.global_batch_size // (self.dp_size * args.micro_batch_size)
        lengths = [len(data[index]["input_ids"]) for index in range(len(data))]
        loader = cp.DataLoader(
            data, batch_size=args.micro_batch_size, shuffle=True, drop_last=True,
            collate_fn=lambda rows: default_collate(pad_and_truncate(rows, args.cutoff_len)),
            balance=cp.Balance("auto", accumulate=accumulate, counts="free", seed=args.seed),
            cost={"tokens": lengths}, num_workers=args.batching_workers,
            ranks=DistributedInterface().get_group(Dim.DP),
        )  # fmt: skip
        self.train_batch_generator = Steps(loader)


sft_trainer.SFTTrainer = Balanced
sft_trainer.run_sft()

"""nanoVLM's train.py with balanced ranks: torchrun balanced.py, with its options."""

from queue import Queue

import train

import counterpoise as cp


def make_balanced(settings, model, make_loaders=train.get_dataloaders):
    theirs, val_loader, _, val_batches = make_loaders(settings, model)
    rows, settings.gradient_accumulation_steps = theirs.dataset, 4
    rows.dataset.dataset = train.concatenate_datasets(train.dist_gather(rows.dataset.dataset))
    rows._balanced_greedy_knapsack = lambda samples, *_, **__: [range(len(samples))]

    def pack(samples):
        rows._producer(lambda: map(dict, samples), packed := Queue())
        return theirs.collate_fn(packed.get())

    loader = cp.DataLoader(
        rows.dataset, shuffle=True, drop_last=True, num_workers=3, collate_fn=pack,
        cost=lambda s: {"tokens": len(s["input_ids"]) + 1, "tiles": sum(map(len, s["images"]))},
        balance=cp.Balance(budgets={"tokens": rows.seq_length}, samples_per_step=15, accumulate=4,
                           mode="window", oversize="refuse"),
    )  # fmt: skip
    return loader, val_loader, iter(loader), val_batches


train.get_dataloaders = make_balanced
train.main()

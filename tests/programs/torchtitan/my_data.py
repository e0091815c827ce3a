"""The loader that torchtitan's trainer gets: conversations as its ChatDataset tokenizes them."""

from datasets import load_dataset
from torchtitan.hf_datasets.text_datasets import ChatDataset
from torchtitan.models.llama3 import config_registry

import counterpoise as cp

PACKED = cp.Layout("packed", shift_labels=False)


def make_loader(ranks, tokenizer, seq_len, **_):
    balance = cp.Balance(
        budgets={"tokens": seq_len},
        samples_per_step=25,
        mode="window",
        accumulate=2,
        shapes="fixed",
        layout=PACKED,
        oversize="refuse",
    )
    samples = make_samples(tokenizer, seq_len)
    return cp.DataLoader(samples, cost=count, shuffle=True, balance=balance, ranks=ranks)


def make_samples(tokenizer, seq_len):
    config = config_registry.sft_debugmodel().dataloader
    rows = load_dataset(config.dataset_path, **config.load_dataset_kwargs)
    chats = ChatDataset(rows, tokenizer, config.sample_processor, seq_len)
    pairs = [chats._tokenize_sample(row) for row in rows]
    return [{"input_ids": ids, "labels": labels} for ids, labels in filter(None, pairs)]


def count(sample):
    return {"tokens": len(sample["input_ids"])}

"""A loader of the samples that the first step of torchtitan's own loader had."""

import json
from pathlib import Path

import torch

import counterpoise as cp
from tests.programs.recording import fingerprint
from tests.programs.torchtitan import my_data


def make_loader(ranks, tokenizer, seq_len, **_):
    wanted = json.loads(Path("first_step.json").read_text())
    samples = my_data.make_samples(tokenizer, seq_len)
    samples = [s for s in samples if fingerprint(torch.tensor(s["input_ids"])) in wanted]
    balance = cp.Balance(
        budgets={"tokens": seq_len},
        samples_per_step=len(wanted),
        accumulate=2,
        shapes="fixed",
        layout=my_data.PACKED,
        oversize="refuse",
    )
    return cp.DataLoader(samples, cost=my_data.count, shuffle=False, balance=balance, ranks=ranks)

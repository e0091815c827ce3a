"""What the tests of TRL's SFTTrainer run in each process of a pool."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import counterpoise as cp

from .loss_cases import loader
from .tiny import VOCABULARY, numbers_of
from .trainer_cases import model


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of VOCABULARY words, which SFTTrainer wants even where nothing is tokenized."""
    words = {f"w{n}": n for n in range(VOCABULARY)}
    made = Tokenizer(WordLevel(words, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="w0", eos_token="w1")


class Noting(SFTTrainer):
    """Notes the samples of each microbatch that is trained on, with the step."""

    seen: list[tuple[int, list[int]]]

    def training_step(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        begins = inputs["position_ids"][0].eq(0).nonzero().flatten()
        ids = inputs["input_ids"][0]
        rows = torch.stack([ids[begins], ids[begins + 1]], 1)
        self.seen.append((self.state.global_step, numbers_of({"input_ids": rows})))
        return super().training_step(model, inputs, *args, **named)


def trained(folder: str, accumulate: int, steps: int) -> Any:
    """(samples of each microbatch by step, weights) of SFTTrainer on packed batches."""
    arguments = SFTConfig(
        folder, use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, optim="sgd",
        learning_rate=0.1, lr_scheduler_type="constant", gradient_accumulation_steps=accumulate,
        max_grad_norm=0.0, max_steps=steps, save_strategy="no", logging_strategy="no",
        gradient_checkpointing=False, dataset_kwargs={"skip_prepare_dataset": True},
    )  # fmt: skip
    made = Noting(
        model(), arguments, processing_class=tokenizer(),
        train_dataset=Dataset.from_dict({"input_ids": [[1, 2]], "labels": [[1, 2]]}),
    )  # fmt: skip
    made.seen = []
    cp.adapters.attach_trainer(made, loader(accumulate, layout="packed")).train()
    return made.seen, [each.detach().numpy().copy() for each in made.model.parameters()]


def reference(accumulate: int, ranks: int, steps: int) -> Any:
    """(samples by step, weights) of one process, sample by sample."""
    made, seen = model().train(), []
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    given = loader(accumulate, ranks=ranks, layout="packed")
    for number, step in zip(range(steps), given.steps(), strict=False):
        for batch, info in zip(step.microbatches, step.infos, strict=True):
            seen.append((number, [int(key) for key in info.keys]))
            ends = batch["cu_seq_lens"].tolist()
            for start, end in pairwise(ends):
                ids = batch["input_ids"][:, start:end]
                logits = made(input_ids=ids, use_cache=False).logits[0, :-1]
                loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
                (loss / info.step_label_tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    weights: list[np.ndarray] = [each.detach().numpy() for each in made.parameters()]
    return seen, weights

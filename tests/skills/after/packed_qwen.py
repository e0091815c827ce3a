"""Fine-tunes a small Qwen2 with a loop and DistributedDataParallel.

Run: torchrun --standalone --nproc-per-node 2 packed_qwen.py
"""

import random
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, DistributedSampler
from transformers import Qwen2Config, Qwen2ForCausalLM

import counterpoise as cp

VOCABULARY, ACCUMULATE = 64, 2


class Answers(Dataset):
    """A prompt and an answer, of which only the answer is learned."""

    def __init__(self, size=128):
        draw = random.Random(1)
        self.rows = []
        for _ in range(size):
            prompt, answer = (2 + int(draw.expovariate(1 / 15)) for _ in range(2))
            ids = [draw.randrange(3, VOCABULARY) for _ in range(prompt + answer)]
            self.rows.append((ids, [-100] * prompt + ids[prompt:]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        ids, labels = self.rows[index]
        return {"input_ids": ids, "labels": labels}


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = Answers()
    sampler = DistributedSampler(dataset, seed=3)
    loader = cp.DataLoader(
        dataset,
        batch_size=4,
        sampler=sampler,
        num_workers=1,
        balance=cp.Balance("auto", accumulate=ACCUMULATE, layout="packed"),
    )
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = Qwen2ForCausalLM(config)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=len(loader) // ACCUMULATE)
    for epoch in range(1):
        sampler.set_epoch(epoch)
        for batch, info in loader.with_info():
            with nullcontext() if info.last else ddp.no_sync():
                loss_sum = ddp(
                    input_ids=batch["input_ids"],
                    labels=batch["labels"],
                    num_items_in_batch=1,
                    **cp.hf_kwargs(batch, ddp),
                ).loss
                cp.scale_loss(loss_sum, info).backward()
            if info.last:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                if dist.get_rank() == 0:
                    loss = loss_sum.item() / max(1, info.label_tokens)
                    print(f"epoch {epoch} step {info.step} loss {loss:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

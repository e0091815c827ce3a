"""Train a language model on texts that are streamed and packed as they come, on several ranks.

Run: torchrun --standalone --nproc-per-node 2 examples/hf/pack_text.py --model NAME --data '*.jsonl'
NAME is HuggingFaceTB/SmolLM2-135M, a Llama, or a folder of save_pretrained.
"""

import argparse
from contextlib import nullcontext
from itertools import islice

import torch
from datasets import load_dataset
from datasets.distributed import split_dataset_by_node
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, AutoTokenizer

import counterpoise as cp


def main() -> None:
    """Train for some steps; each has `accumulate` full packs on each rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a folder of save_pretrained, or a name")
    parser.add_argument("--data", required=True, help="JSON lines with a column text, or messages")
    parser.add_argument("--tokens", type=int, default=8192, help="the most in a pack")
    parser.add_argument("--accumulate", type=int, default=4, help="packs of a rank in a step")
    parser.add_argument("--steps", type=int, default=100, help="at most, of one epoch")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpu else "cpu"

    texts = load_dataset("json", data_files=args.data, split="train", streaming=True)
    texts = split_dataset_by_node(texts.shuffle(seed=0, buffer_size=1000), rank, ranks)
    samples = cp.HFProcessor(
        AutoTokenizer.from_pretrained(args.model), max_length=args.tokens, overlong="cut"
    )
    loader = cp.DataLoader(
        texts.map(samples).select_columns(["input_ids", "labels"]),
        num_workers=args.workers,
        balance=cp.Balance(
            budgets={"tokens": args.tokens}, layout="packed", accumulate=args.accumulate
        ),
    )
    model = DistributedDataParallel(
        AutoModelForCausalLM.from_pretrained(args.model).to(device).train()
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in islice(loader.steps(), args.steps):
        loss, tokens = torch.zeros((), device=device), torch.zeros(ranks, device=device)
        for batch, info in zip(step.microbatches, step.infos, strict=True):
            batch = {k: v.to(device) if torch.is_tensor(v) else v for k, v in batch.items()}
            with nullcontext() if info.last else model.no_sync():
                logits = model(batch["input_ids"], **cp.hf_kwargs(batch, model)).logits
                loss_sum = torch.nn.functional.cross_entropy(
                    logits[0, :-1].float(), batch["labels"][0, 1:], reduction="sum"
                )
                share = cp.scale_loss(loss_sum, info)
                share.backward()
            loss += share.detach() / ranks
            tokens[rank] += info.costs["tokens"]
        optimizer.step()
        optimizer.zero_grad()
        distributed.all_reduce(loss)
        distributed.all_reduce(tokens)
        if rank == 0:
            print(f"step {step.number}: loss {loss:.3f}, tokens of ranks {tokens.int().tolist()}")
    del model  # what outlives its group may hang (torch 2.13, gloo): its threads need Python's lock
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

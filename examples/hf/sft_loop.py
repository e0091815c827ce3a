"""Fine-tune a vision-language model on conversations with images, in a loop of your own.

Run: torchrun --standalone --nproc-per-node 2 examples/hf/sft_loop.py --model NAME --data '*.tar'
NAME is Qwen/Qwen2.5-VL-3B-Instruct, llava-hf/llava-1.5-7b-hf, or another that keeps packed samples
apart (docs/reference/packed-models.md has the table), or a folder of save_pretrained.
"""

import argparse
from contextlib import nullcontext
from itertools import islice

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForImageTextToText, AutoProcessor

import counterpoise as cp


def main() -> None:
    """Train for some steps; each has samples_per_step samples, in packs that ranks have alike."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a folder, or a name on the hub")
    parser.add_argument("--data", required=True, help="tar shards of conversations and images")
    parser.add_argument("--tokens", type=int, default=8192, help="the most in a microbatch")
    parser.add_argument("--samples-per-step", type=int, default=64, help="on all ranks together")
    parser.add_argument("--steps", type=int, default=100, help="at most, of one epoch")
    parser.add_argument("--workers", type=int, default=4, help="processes that load, of each rank")
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpu else "cpu"

    processor = AutoProcessor.from_pretrained(args.model)  # Qwen's needs torchvision
    chat = cp.HFProcessor(processor, max_length=args.tokens, overlong="cut")
    loader = cp.DataLoader(
        cp.TarDataset(args.data, chat), shuffle=True, num_workers=args.workers,
        on_error="skip",  # samples that cannot be cut to max_length, and broken ones
        balance=cp.Balance(
            budgets={"tokens": args.tokens}, samples_per_step=args.samples_per_step,
            accumulate="auto", waits="step", layout="packed",
        ),
    )  # fmt: skip
    model = AutoModelForImageTextToText.from_pretrained(args.model).to(device).train()
    # a pack may have no image, and then the encoder has no gradients
    model = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for step in islice(loader.steps(), args.steps):
        loss, tokens = torch.zeros((), device=device), torch.zeros(ranks, device=device)
        for batch, info in zip(step.microbatches, step.infos, strict=True):
            batch = {k: v.to(device) if torch.is_tensor(v) else v for k, v in batch.items()}
            with nullcontext() if info.last else model.no_sync():
                # positions, what keeps samples apart, and the images
                logits = model(input_ids=batch["input_ids"], **cp.hf_kwargs(batch, model)).logits
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
    print(f"rank {rank} is at the end; {loader.left_out} samples were left out on all ranks")
    del model  # what outlives its group may hang (torch 2.13, gloo): its threads need Python's lock
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
